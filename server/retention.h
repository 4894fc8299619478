/* retention.h - which checkpoints stay.
 *
 * Of a job stay, each for one or more of these reasons:
 *
 *   latest     the newest `keep` good ones, at least two
 *   best       the `keep_best.count` best good ones by the value that a metric
 *              series has at their step, or had last before it
 *   unjudged   good, while its lease has not reported the value yet
 *   model      the end of a cycle that is done
 *   pinned     a client asked for it
 *   lease      a live lease started from it
 *   evidence   it is set aside, for people to look at
 *
 * All others go. The policy may change at any time, after the job's end, too.
 *
 * Letting go is apart from saving, a few at a time on the WRITE lane. Table
 * `prunable` names the jobs to look at, kept by triggers (0003-store.sql): when
 * no checkpoint came or changed, nothing is read. The chunks of what went are
 * swept later (chunk.h). */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/store.h"

enum kept_for {
    KEPT_LATEST = 1,
    KEPT_BEST = 2,
    KEPT_UNJUDGED = 4,
    KEPT_MODEL = 8,
    KEPT_PINNED = 16,
    KEPT_LEASE = 32,
    KEPT_EVIDENCE = 64
};

struct kept {
    int64_t id, step, cycle; /* cycle: its number */
    bool good, cycle_done;
    double value; /* of the series; NaN: none */
    unsigned why; /* of enum kept_for; 0: it may go */
};

struct retention {    /* the plan for a job */
    struct kept *all; /* newest first */
    size_t n;
    char kept_in_words[200]; /* "the newest 2 and the best 3 by loss" */
};

int retention_plan(struct store *st, int64_t job, struct retention *ret,
                   struct err *err);
void retention_release(struct retention *p);
/* ["latest", …] of one checkpoint; empty: it may go. */
json_t *retention_words(const struct retention *p, int64_t id);

/* Let go of what no longer stays, of jobs with an id above *after, which moves
 * on (0 again at the end): a few jobs and checkpoints in one call. The count
 * let go. */
int retention_prune(struct store *st, int64_t *after, int64_t now_ms,
                    struct err *err);

/* What clients ask for. ERR_NOT_FOUND; pinning twice is fine. */
int retention_pin(struct store *st, int64_t id, bool pinned, int64_t now_ms,
                  struct err *err);
/* ERR_CONFLICT: it is pinned, the model of a cycle, being loaded, or the only
 * state from which its cycle can go on. */
int retention_delete(struct store *st, int64_t id, int64_t now_ms,
                     struct err *err);
