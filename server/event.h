/* event.h - what happened to a job and why, and what its workers logged.
 *
 * An event is one thing that changed, with its cause in a sentence and who
 * brought it about: client, server, or worker NAME. Kinds:
 *
 *   job         submitted patched paused unpaused canceled retried failed
 *               completed
 *   cycle       cycle (added) ready (after a wait) finished parked unparked
 *   lease       started resumed yielded failed lost stalled moving no_room order
 *               inexact
 *   checkpoint  checkpoint (saved) pinned unpinned deleted pruned quarantined
 *
 * Log lines are the workers' own words. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/store.h"

struct event {
    int64_t job, lease; /* 0: none */
    int64_t cycle;      /* its number; 0: none */
    int64_t step;       /* -1: none */
    const char *kind;
    const char *actor;  /* client or server; or NULL, and */
    const char *worker; /* its name */
};

int event_add(struct store *st, const struct event *e, int64_t now_ms,
              struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* {"items": [{id, at, kind, cause, actor, cycle, lease, step}], "next"},
 * oldest first, those after id `after`. */
int event_list(struct store *st, int64_t job, int64_t after, int64_t limit,
               json_t **ret, struct err *err);

/* Lines of a report: [{at_ms, level, text}]. One that was sent before is left
 * out. */
int log_add(struct store *st, int64_t job, int64_t lease, const json_t *lines,
            struct err *err);
int log_list(struct store *st, int64_t job, int64_t after, int64_t limit,
             json_t **ret, struct err *err);
