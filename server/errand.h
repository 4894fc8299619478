/* errand.h - work that reads much: off the lanes, in order, out of the way.
 *
 * What takes seconds to hours (files below a --data-root that a cycle's
 * snapshot needs, a dataset that is looked through) runs on a thread of its own
 * at a low priority, one after the other; one thread for what a job waits for,
 * one for what somebody only wants to know. An errand has a key: what is under
 * way is not begun twice, and whoever waits asks by the key how far it is.
 *
 *     begin ──► waits ──► runs ──► gone              what it found is stored
 *                           └────► failed            until begun anew
 *
 * It holds no database connection: it reads and writes by lanes_call, a little
 * at a time. Whoever waits for one parks (reply_wait) on NOTIFY_ERRAND. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"

struct errand; /* under way, as its run function sees it */
struct errands;
struct lanes;

enum errand_line {
    ERRAND_FREEZE, /* a job waits for it */
    ERRAND_LOOK,   /* somebody looks */
};
#define ERRAND_LINES 2
#define ERRAND_KEY 400

/* < 0: it failed; *err is kept for those who ask. Returns soon once
 * errand_stopped is true, with any error. Runs on the line's thread. */
typedef int errand_run_fn(struct errand *e, void *arg, struct err *err);

/* `notice` is called on any thread when one has ended; may be NULL. */
int errands_new(struct lanes *lanes, void (*notice)(void *arg),
                void *notice_arg, struct errands **ret, struct err *err);
/* Ask all to stop and wait for them; the lanes must still run. */
void errands_free(struct errands *es);

/* 1: it waits or runs now; 0: one of this key does already. Takes arg, freed by
 * `done` (may be NULL), whatever is returned. */
int errands_begin(struct errands *es, enum errand_line line, const char *key,
                  errand_run_fn *run, void *arg, void (*done)(void *),
                  struct err *err);
/* It need not go on. One that waits is dropped, one that runs is asked to
 * stop. */
void errands_cancel(struct errands *es, const char *key);

enum errand_state { ERRAND_NONE, ERRAND_WAITS, ERRAND_RUNS, ERRAND_FAILED };
struct errand_view {
    int64_t done, all; /* bytes; all 0: not known yet */
    struct err err;    /* of ERRAND_FAILED */
};
/* *ret may be NULL. */
enum errand_state errands_look(struct errands *es, const char *key,
                               struct errand_view *ret);

/* ---- for a run function ---- */

bool errand_stopped(const struct errand *e);
/* How far it is; any number of times. */
void errand_progress(struct errand *e, int64_t done, int64_t all);
struct lanes *errand_lanes(const struct errand *e);
