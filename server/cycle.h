/* cycle.h - one training run over frozen data.
 *
 *            data read, frozen               claim
 *   waiting ─────────────────────► ready ──────────────► leased
 *      ▲  after, the cycle before,   ▲                   │ │ │
 *      │  back-off                   │  yielded (front), │ │ │
 *      │                             └── lost, failed ◄──┘ │ │
 *      └──── back-off after a failure ◄────────────────────┘ │
 *                                                            ▼
 *   failed ◄── a budget is spent, or the error is final    done
 *   canceled ◄── the job was
 *
 * A cycle goes on from its newest good checkpoint; without one, from the end
 * of the cycle before (initial), or from the start. Its data, its signature
 * and its count of steps are fixed when it first becomes ready. Only the
 * lowest open cycle of a job may become ready. Where data must be read before
 * it is frozen, or new records must come first, it goes on waiting. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "server/store.h"

struct spec;

/* One that waits for new records below a root looks again after this long. */
#define CYCLE_LOOK_MS 3000

struct cycle {
    int64_t id, job, number, token, step_base;
    int64_t initial;       /* checkpoint; 0: none */
    int64_t records;       /* of an epoch */
    int64_t epochs, steps; /* steps -1: not frozen yet */
    int64_t step, saved_step, best_step;
    int64_t failures, lost, no_progress;
    int64_t not_before_ms; /* 0: none */
    int64_t parked_ms;     /* since then it waits for room on disk; 0: no */
    int64_t checkpoint;    /* the finished state; 0: none */
    char state[12];
    char signature[DIGEST_HEX], data_digest[DIGEST_HEX]; /* "" until frozen */
    char model_sha256[DIGEST_HEX];                       /* "" until done */
};

int cycle_load(struct store *st, int64_t id, struct cycle *ret,
               struct err *err); /* ERR_NOT_FOUND */
/* The lowest cycle that has not ended: 1, or 0. */
int cycle_open(struct store *st, int64_t job, struct cycle *ret,
               struct err *err);
/* The last one that is done: 1, or 0. */
int cycle_last_done(struct store *st, int64_t job, struct cycle *ret,
                    struct err *err);

/* The spec that it trains by: the job's, with its own data and overrides.
 * Caller releases *ret. */
int cycle_spec(struct store *st, const struct cycle *c, struct spec *ret,
               struct err *err);
/* As it is stored, resolved and checked long ago. Caller owns *ret. */
int cycle_spec_json(struct store *st, const struct cycle *c, json_t **ret,
                    struct err *err);

/* A new one, waiting. own_spec: resolved, or NULL for the job's. */
int cycle_add(struct store *st, int64_t job, int64_t number,
              const json_t *own_spec, int64_t now_ms, struct err *err);
/* Would its data freeze now? For one whose turn is not yet: a mistake is said
 * to whoever makes it. The errors are snapshot_make's. */
int cycle_check_data(struct store *st, int64_t id, struct err *err);
/* Freeze the data, count the steps and make it ready: 0. 1: it waits still, for
 * data to be read or for new records, and says so. The errors are
 * snapshot_make's. */
int cycle_ready(struct store *st, struct cycle *c, int64_t now_ms,
                struct err *err);
/* What it is trained on, once it is frozen: as a claim has it. Caller owns. */
int cycle_data(struct store *st, int64_t id, json_t **ret, struct err *err);
/* Told, within the transaction, of a cycle whose data must be read first: sees
 * to it that it is, once that is committed. Set once, by survey.c. */
extern void (*cycle_wants_survey)(int64_t cycle);
/* 1: a ready one's copies (copies.h) are not all there: it waits for a survey to
 * make them again. */
int cycle_back(struct store *st, const struct cycle *c, int64_t now_ms,
               struct err *err);
/* Ready or waiting again after a lease, for `reason`. It stands at `step`. */
int cycle_again(struct store *st, const struct cycle *c, const char *reason,
                bool front, int64_t not_before_ms, int64_t step, int64_t epoch,
                int64_t records, struct err *err);
int cycle_reason(struct store *st, int64_t id, const char *reason,
                 struct err *err);
int cycle_done(struct store *st, const struct cycle *c, int64_t checkpoint,
               const char *model_sha256, int64_t step, int64_t now_ms,
               struct err *err);
/* state: failed or canceled. */
int cycle_end(struct store *st, int64_t id, const char *state,
              const char *reason, int64_t now_ms, struct err *err);

/* DESIGN §7's cycle. *ret_ended: done, failed or canceled. */
/* What its data was frozen to: {"records", "take"?, "validation"?, "shards":
 * [{name, bytes, records, held_out?, weight?}]}; *ret NULL before that. */
int cycle_shards(struct store *st, int64_t job, int64_t number, json_t **ret,
                 struct err *err);
int cycle_get(struct store *st, int64_t job, int64_t number, json_t **ret,
              bool *ret_ended, struct err *err);
int cycle_list(struct store *st, int64_t job, int64_t after, int64_t limit,
               json_t **ret, struct err *err);
