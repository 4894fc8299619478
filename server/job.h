/* job.h - a submitted spec on its way to a model.
 *
 *                    claim
 *   queued ◄────────────────────► running ───► completed | failed
 *     │  ▲   yield, loss, failure    │
 *     ▼  │ resume                    │ pause: it saves first
 *   paused ◄─────────────────────────┘          any open state ──► canceled
 *
 * The spec never changes; runtime policy, priority and labels may. What state
 * a job is in follows from its cycles and from what was asked of it: every
 * change ends with job_settle, which says what is next and why it waits.
 * `version` grows with every change that can be seen, and wakes those who
 * poll. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "server/store.h"

struct job {
    int64_t id, version, cycles, runtime_version, priority;
    int64_t threads; /* what auto became; 0: not known yet */
    int64_t not_before_ms; /* 0: none */
    int64_t edit;    /* grows with each change of policy, priority, labels */
    bool pause, complete;
    int cancel; /* 0, 1: save first, 2: at once */
    char state[12];
    char dataset[129];
    json_t *spec, *runtime, *labels;
};
int job_load(struct store *st, int64_t id, struct job *ret, struct err *err);
/* Only these documents, the others stay NULL: to parse them all takes longer
 * than all else that a claim does. */
enum job_part { JOB_SPEC = 1, JOB_RUNTIME = 2, JOB_LABELS = 4 };
int job_load_part(struct store *st, int64_t id, unsigned parts, struct job *ret,
                  struct err *err);
void job_release(struct job *j);
bool job_ended(const struct job *j);

/* Submit a resolved spec. ERR_INVALID with a pointer for unknown ids and
 * datasets. */
int job_submit(struct store *st, const struct spec *spec, int64_t now_ms,
               int64_t *ret_id, struct err *err);
/* The two halves of it, for who submits many: look up what it names; add it, as
 * one of a sweep (0: none) with its own values. */
int job_check(struct store *st, const struct spec *spec, struct err *err);
int job_add(struct store *st, const struct spec *spec, int64_t sweep,
            const json_t *values, int64_t now_ms, int64_t *ret_id,
            struct err *err);

/* DESIGN §7's job; `whole` adds the spec. */
int job_get(struct store *st, int64_t id, bool whole, json_t **ret,
            struct err *err);
/* Where it stands in line, by priority and age, into `place` and `reason`: for
 * who asks after one job. Others pass it as they yield, age or have used less. */
int job_add_place(struct store *st, json_t *job, struct err *err);
struct job_filter {
    const char *state, *kind, *q;
    const char *label, *label_value; /* value NULL: any */
    int64_t sweep;         /* 0: any and none */
    int64_t before, limit; /* ids below `before`; 0: from the newest */
};
int job_list(struct store *st, const struct job_filter *f, json_t **ret,
             struct err *err);

/* `patch` may carry any part of a spec; only runtime, priority and labels may
 * differ from what is there: ERR_CONFLICT with the pointer of the field. */
int job_patch(struct store *st, int64_t id, const json_t *patch, int64_t now_ms,
              struct err *err);
/* Where its policy has a ladder whose sizes are yet to be chosen: choose them from
 * the data of its cycle (as a claim has it, paths placed) and keep them. */
int job_choose_sizes(struct store *st, int64_t id, const json_t *data,
                     int64_t now_ms, struct err *err);
/* "e3": a job's ETag is its edit, which a patch raises and progress does not. */
#define JOB_ETAG_MAX 24
void job_etag(int64_t edit, char out[JOB_ETAG_MAX]);
/* 0 when the value of If-Match names it; else ERR_PRECONDITION. */
int job_if_match(struct store *st, int64_t id, const char *header,
                 struct err *err);
/* The job's spec with a cycle's own data and training merged over it; each may
 * be NULL. *ret NULL: nothing is its own. Caller owns *ret. */
int job_own_spec(const struct job *j, const json_t *data,
                 const json_t *training, json_t **ret, struct err *err);

int job_pause(struct store *st, int64_t id, int64_t now_ms, struct err *err);
int job_resume(struct store *st, int64_t id, int64_t now_ms, struct err *err);
/* The first one lets a running worker save, the second does not. */
int job_cancel(struct store *st, int64_t id, int64_t now_ms, struct err *err);
int job_retry(struct store *st, int64_t id, int64_t now_ms, struct err *err);
int job_complete(struct store *st, int64_t id, int64_t now_ms, struct err *err);
int job_delete(struct store *st, int64_t id, struct err *err);
/* The next cycle: {"data"?, "training"?} merged over the spec's. */
int job_add_cycle(struct store *st, int64_t id, const json_t *body,
                  int64_t now_ms, int64_t *ret_number, struct err *err);

/* ---- for the other nouns ---- */

/* What is next, and why: the job's state and reason from its cycles. `strict`:
 * data that cannot be frozen is an error instead of a failed job. */
int job_settle(struct store *st, int64_t id, bool strict, int64_t now_ms,
               struct err *err);
/* The sentences of those that come after it, where an end is no more. */
int job_settle_dependents(struct store *st, int64_t id, int64_t now_ms,
                          struct err *err);
/* Jobs that waited for a time that has come. */
int job_settle_due(struct store *st, int64_t now_ms, struct err *err);
/* error: JSON, or NULL. */
int job_fail(struct store *st, int64_t id, const char *reason,
             const json_t *error, int64_t now_ms, struct err *err);
int job_canceled(struct store *st, int64_t id, int64_t now_ms, struct err *err);
int job_touch(struct store *st, int64_t id, struct err *err);
/* Why no worker takes it, from a claim that could not. */
int job_say_why(struct store *st, int64_t id, const char *reason,
                struct err *err);
