/* worker.h - the processes that train.
 *
 * One row is one process, named by the claim id it made up at its start. It
 * holds at most one lease in its life. Rows of processes that are gone stay for
 * a day, for the list; what a lease needs to know of its worker it keeps. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/store.h"

/* A claim's body (schema/wire.h), checked. Borrows from the JSON. */
struct worker_claim {
    const char *claim, *name, *host, *boot, *version;
    int64_t pid, started; /* start time in clock ticks since boot */
    bool local;
    int cpus;
    const json_t *devices; /* [{"kind", …}], not empty */
    const json_t *library; /* its part of the fingerprint */
    const json_t *labels;  /* object of strings, or NULL: none */
    int64_t memory_bytes;  /* of the host; 0: not known */
    double wait_s;
};
int worker_claim_parse(const json_t *body, struct worker_claim *ret,
                       struct err *err);
/* Note that the process asked for work: makes or refreshes its row. *ret_id is
 * the row, *ret_drained whether it shall get no more work. ERR_STALE: it is
 * known to have ended. */
int worker_seen(struct store *st, const struct worker_claim *w, int64_t now_ms,
                int64_t *ret_id, bool *ret_drained, struct err *err);
/* Its lease has ended. */
int worker_let_go(struct store *st, int64_t lease, int64_t now_ms,
                  struct err *err);
/* It is gone for good. */
int worker_gone(struct store *st, int64_t id, int64_t now_ms, struct err *err);
/* The row of a process; ERR_NOT_FOUND. boot NULL: any. */
int worker_find(struct store *st, int64_t pid, int64_t started,
                const char *boot, int64_t *ret_id, struct err *err);

/* Local workers not known to be gone, for the supervisor that adopts them. */
enum worker_hold {
    HOLDS_NOTHING, /* waits for work, or has released its lease */
    HOLDS_LEASE,
    LOST_BY_SILENCE, /* had a lease, and nothing came of it since */
};
typedef int worker_fn(void *arg, int64_t pid, int64_t started,
                      enum worker_hold hold, struct err *err);
int worker_each_local(struct store *st, const char *boot, worker_fn *fn,
                      void *arg, struct err *err);

/* Workers whose claims may be counted with: those that hold a lease, those that
 * asked for work in the last two minutes and, where `ended` is true, since the
 * next process of a worker is like the one before, those that ended or let go
 * of their lease in the last quarter of one; the newest first, at most 256.
 * Drained ones are not among them. fn: 0 to go on, 1
 * to stop, < 0. Returns what fn said last. */
typedef int worker_known_fn(void *arg, const struct worker_claim *w,
                            struct err *err);
int worker_each_known(struct store *st, bool ended, int64_t now_ms,
                      worker_known_fn *fn, void *arg, struct err *err);

/* Let it finish its step, save and go; it gets no more work. */
int worker_drain(struct store *st, int64_t id, int64_t now_ms, json_t **ret,
                 struct err *err);
int worker_list(struct store *st, int64_t after, int64_t limit, int64_t now_ms,
                json_t **ret, struct err *err);
/* Forget processes that have been gone for a day. */
int worker_prune(struct store *st, int64_t now_ms, struct err *err);
