/* owner.h - whose turn it is: the order in which waiting cycles are claimed.
 *
 * Cycles wait in groups, one for each owner (labels.owner of the job; "" when it
 * has none) and priority. A group has waited since its first cycle was ready or
 * since it was served last, whichever was later; each whole `age` that passed
 * lifts it by one priority. The highest level is served first; of equal ones the
 * group whose owner used least for his share; of those the one that waited
 * longest. Inside a group those that yielded come first, then by age.
 *
 *   level = priority + (now - max(ready, served)) / age
 *
 * So nothing starves: a group is behind another for at most (difference of their
 * priorities + 1) ages. What an owner used is device time that counts half after
 * a day, running leases included; his share is a weight, 1 unless told.
 *
 * Cycles of a group that ask for different workers (match.h) stand in the index
 * apart, so a claim looks at one cycle of each need and never at the many behind
 * it; one that this worker cannot train keeps back nobody who fits.
 *
 * A cycle's place follows its job: job_settle calls owner_place after every
 * change. Times are the wall clock's, for a wait outlasts the server; where that
 * is set back, a time that would lie ahead becomes now. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/store.h"
#include "server/worker.h"

/* Fixed before the first claim; tests change it. */
struct share; /* options.h */
struct owner_policy {
    int64_t age_ms;
    const struct share *shares; /* borrowed */
    size_t n_shares;
};
extern struct owner_policy owner_policy;

/* Let the cycle stand where its job is to stand now: owner, priority, need, and
 * whether it may be claimed. */
int owner_place(struct store *st, int64_t cycle, int64_t now_ms,
                struct err *err);

/* One cycle for each group and need that the worker meets, first come first.
 * Caller releases. */
struct turns {
    struct turn *all;
    size_t n, cap;
};
struct turn {
    int64_t cycle, priority, since_ms;
    char *owner, *need;
    bool front;
    size_t group; /* ordinal */
    int64_t level;
    double use, running; /* of its owner, for his share */
};
int owner_turns(struct store *st, const struct worker_claim *w, int64_t now_ms,
                struct turns *ret, struct err *err);
void turns_release(struct turns *t);
/* The one behind it, of the same group and need: 1 and *t is that, or 0. */
int owner_behind(struct store *st, struct turn *t, struct err *err);

/* A lease of the cycle began, or ended: its owner's use. */
int owner_started(struct store *st, int64_t cycle, int64_t now_ms,
                  struct err *err);
int owner_ended(struct store *st, int64_t cycle, int64_t now_ms,
                struct err *err);
/* Its group was served. */
int owner_served(struct store *st, int64_t cycle, int64_t now_ms,
                 struct err *err);
/* Count the running leases anew: once, at a start. */
int owner_recount(struct store *st, struct err *err);

/* What `use_ms` as of then has become, with `running` leases adding to it. */
double owner_use(double use_ms, int64_t running, int64_t passed_ms);
double owner_weight(const char *owner);
