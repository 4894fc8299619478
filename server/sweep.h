/* sweep.h - one submission that makes several jobs.
 *
 * A spec with "sweep": {"/training/seed": [1, 2], "/training/epochs": [1, 5]}
 * stands for each combination of the values, put where the JSON pointers say:
 * four jobs, the last axis turning fastest. All of them are submitted or none.
 * From then on each is a job like any other, which knows its sweep and its own
 * values; they are listed, paused, resumed, canceled and retried together. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "server/store.h"

#define SWEEP_MAX 1000 /* jobs */

struct sweep {
    json_t *spec; /* as submitted, without `sweep` */
    json_t *axes; /* {pointer: [value, …], …} */
    int jobs;
};

bool sweep_is(const json_t *body); /* does it carry one? */
/* Every combination is resolved once, so that a mistake in one of them is said
 * before any is stored: ERR_INVALID at /sweep/<pointer>/<index> where a value
 * is to blame, at the field where the spec is. */
int sweep_parse(const json_t *body, struct sweep *ret, struct err *err);
void sweep_release(struct sweep *s);
/* The n-th combination: its values, and the job that they make. Caller owns
 * *ret_values and *ret. */
int sweep_job(const struct sweep *s, int n, json_t **ret_values,
              struct spec *ret, struct err *err);

/* In one transaction. */
int sweep_submit(struct store *st, const struct sweep *s, int64_t now_ms,
                 int64_t *ret_id, struct err *err);
/* What it would become: the first job explained, the others in brief. */
int sweep_dry_run(struct store *st, const struct sweep *s, int64_t now_ms,
                  json_t **ret, struct err *err);

/* {"id", "name", "jobs", "axes", "states": {"queued": 3, …}, "created_at"};
 * *ret_ended: none of its jobs is open. */
int sweep_get(struct store *st, int64_t id, json_t **ret, bool *ret_ended,
              struct err *err);
int sweep_list(struct store *st, int64_t before, int64_t limit, json_t **ret,
               struct err *err);
/* Its jobs as lists show them, in the order of their ids. */
int sweep_jobs(struct store *st, int64_t id, json_t **ret, struct err *err);

/* Ask it of each job that it means something to: pause, resume and cancel of
 * the open ones, retry of those that failed or were canceled. All or none. */
int sweep_pause(struct store *st, int64_t id, int64_t now_ms, struct err *err);
int sweep_resume(struct store *st, int64_t id, int64_t now_ms, struct err *err);
int sweep_cancel(struct store *st, int64_t id, int64_t now_ms, struct err *err);
int sweep_retry(struct store *st, int64_t id, int64_t now_ms, struct err *err);
