/* lease_row.h - a lease as it stands in the database, for the files that write
 * it: lease.c, lease_claim.c and ending.c. Others use lease.h. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/cycle.h"
#include "server/event.h"
#include "server/stall.h"
#include "server/store.h"

/* What a lost lease was counted as, to be taken back if its worker returns. */
enum {
    COUNTED_LOST = 1,
    COUNTED_NO_PROGRESS = 2,
    COUNTED_LOAD = 4,      /* as a death while loading its checkpoint */
    COUNTED_SET_ASIDE = 8, /* which was set aside for that */
};

struct lease {
    int64_t id, job, cycle, token, worker_id;
    int64_t checkpoint, initial; /* where it went on; 0: none */
    int64_t from_step, best_before, step, epoch, records, micro_batches, seq;
    int64_t saved, runtime_version, threads, counted;
    int64_t exact_since, exact_cycle; /* since -1: bit-exact */
    bool expired, drain, local;
    struct stall stall;
    char outcome[12]; /* "": live */
    char stage[12], worker[129], device[16], reason[256];
    char exact_why[512];
    json_t *fingerprint, *answer;
};
void lease_free(struct lease *l); /* what it points to */

/* The next row of a query for leases: 1, or 0. */
int lease_row(struct stmt *q, struct lease *ret, struct err *err);
int lease_load(struct store *st, int64_t id, struct lease *ret,
               struct err *err); /* ERR_NOT_FOUND */
/* The lease of a write, live; or ERR_STALE with nothing changed. One that
 * silence ended comes back here, when nobody took its cycle since. */
int lease_live(struct store *st, int64_t id, int64_t token, int64_t now_ms,
               struct lease *ret, struct err *err);

/* ERR_STALE: it has ended, and how. */
int lease_stale(const struct lease *l, struct err *err);
/* An event about it, where it stands, brought about by its worker. */
struct event lease_event(const struct lease *l, const struct cycle *c,
                         const char *kind);
