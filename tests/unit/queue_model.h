/* queue_model.h - what the queue should do, told a second time without SQL.
 * Here: what there is, and whose turn it is; model_moves.h: what is done to it.
 *
 * Jobs, cycles, leases and checkpoints as plain structs, and a function for each
 * thing that a client, a worker or the clock can do to them. Each returns what
 * the server should answer: 0 or more, or one of err.h's errors, which leave all
 * as it was. A model is copied whole to take back what was never committed.
 *
 * What it cannot know it learns from the server and checks on the way: ids, how
 * long a back-off is (a range), and which checkpoints a prune left. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "schema/digest.h"
#include "schema/err.h"

#define M_JOBS 10
#define M_CYCLES 4
#define M_STEPS 18
#define M_SAVED 64   /* checkpoints of a cycle that were not pruned */
#define M_LEASES 256 /* the newest ones */
#define M_WORKERS 1024
#define M_AFTER 2
#define M_EXPIRY_MS 30000
#define M_AGE_MS 20000
#define M_OWNERS 3
#define M_PRIORITIES 4
#define M_HALF_LIFE_MS (24 * 3600 * 1000.0)

/* Kinds of events that are counted. */
#define M_KINDS(X)                                                             \
    X(submitted)                                                               \
    X(started)                                                                 \
    X(resumed)                                                                 \
    X(lost)                                                                    \
    X(yielded)                                                                 \
    X(finished)                                                                \
    X(failed)                                                                  \
    X(quarantined)                                                             \
    X(paused)                                                                  \
    X(unpaused)                                                                \
    X(cancel)                                                                  \
    X(canceled)                                                                \
    X(complete)                                                                \
    X(completed)                                                               \
    X(retried)                                                                 \
    X(patched)                                                                 \
    X(cycle)                                                                   \
    X(parked)                                                                  \
    X(unparked)
#define M_KIND_ENUM(k) EV_##k,
enum m_kind { M_KINDS(M_KIND_ENUM) EVS };
#define M_KIND_WORD(k) #k,
static const char *const m_kind_word[] = {M_KINDS(M_KIND_WORD)};

enum m_state { WAITING, READY, LEASED, DONE, C_FAILED, C_CANCELED };
static const char *const m_state_word[] = {"waiting", "ready",  "leased",
                                           "done",    "failed", "canceled"};
enum m_job_state { QUEUED, RUNNING, PAUSED, COMPLETED, FAILED_JOB, CANCELED };
static const char *const m_job_word[] = {"queued",    "running", "paused",
                                         "completed", "failed",  "canceled"};

struct m_saved {
    int64_t id, lease;
    int step, deaths;
    bool good, pinned;
    char digest[DIGEST_HEX];
    int64_t by[M_STEPS + 1]; /* whose step each one was: the lineage */
};

struct m_cycle {
    int64_t id, token;
    int64_t initial, end;         /* checkpoints; 0: none */
    int64_t not_before, wait_min; /* not_before -1: to be learnt */
    int number, steps, best, saved_step, failures, lost, idle, n;
    int64_t since, priority; /* since 0: not to be claimed */
    int owner;
    enum m_state state;
    bool frozen, front, parked;
    struct m_saved saved[M_SAVED];
};

struct m_job {
    int64_t id, version, priority, not_before;
    int owner;
    int64_t after[M_AFTER];
    bool after_any[M_AFTER]; /* whatever its end */
    int cycles, epochs, n, cancel, micro;
    int limit_failures, limit_lost, limit_idle;
    bool there, pause, complete, split;
    enum m_job_state state;
    int events[EVS];
    struct m_cycle cycle[M_CYCLES];
};

enum m_outcome { LIVE, O_FINISHED, O_YIELDED, O_FAILED, O_LOST };
static const char *const m_outcome_word[] = {"", "finished", "yielded",
                                             "failed", "lost"};

struct m_lease {
    int64_t id, job, token, heard;
    int64_t from_id, initial, saved; /* checkpoints; 0: none */
    int cycle, from, best_before, step, seq, micro;
    bool loading, expired, answered;
    bool counted_lost, counted_idle, counted_load, counted_aside;
    enum m_outcome outcome;
    int worker;              /* the process's number */
    int64_t by[M_STEPS + 1]; /* whose step each one up to `from` was */
};

static const char *const m_owner_word[M_OWNERS] = {"", "ann", "bob"};
static const double m_weight[M_OWNERS] = {1, 2, 1};

struct m_use { /* of an owner, as it stood then */
    bool known;
    double use;
    int running;
    int64_t at;
};

struct model {
    int64_t now, mono;
    int64_t served[M_OWNERS][M_PRIORITIES]; /* 0: never */
    struct m_use use[M_OWNERS];
    /* processes, at their number % M_WORKERS */
    bool known[M_WORKERS], gone[M_WORKERS], drained[M_WORKERS];
    struct m_job job[M_JOBS];
    struct m_lease lease[M_LEASES]; /* at id % M_LEASES */
};

/* ---- looking ---- */

static inline struct m_job *m_job(struct model *m, int64_t id)
{
    for (int i = 0; i < M_JOBS; i++)
        if (m->job[i].there && m->job[i].id == id)
            return &m->job[i];
    return NULL;
}

static inline bool m_ended(const struct m_job *j)
{
    return j->state == COMPLETED || j->state == FAILED_JOB ||
           j->state == CANCELED;
}

static inline struct m_lease *m_lease(struct model *m, int64_t id)
{
    struct m_lease *l = &m->lease[id % M_LEASES];
    return l->id == id && m_job(m, l->job) ? l : NULL;
}

static inline struct m_cycle *m_cycle(struct model *m, const struct m_lease *l)
{
    return &m_job(m, l->job)->cycle[l->cycle];
}

static inline struct m_cycle *m_open(struct m_job *j)
{
    for (int i = 0; i < j->n; i++)
        if (j->cycle[i].state <= LEASED)
            return &j->cycle[i];
    return NULL;
}

static inline struct m_cycle *m_last_done(struct m_job *j)
{
    for (int i = j->n - 1; i >= 0; i--)
        if (j->cycle[i].state == DONE)
            return &j->cycle[i];
    return NULL;
}

static inline struct m_saved *m_saved(struct m_job *j, int64_t id)
{
    for (int i = 0; i < j->n; i++)
        for (int k = 0; k < j->cycle[i].n; k++)
            if (j->cycle[i].saved[k].id == id)
                return &j->cycle[i].saved[k];
    return NULL;
}

/* Where the cycle goes on: its newest good checkpoint, or NULL. */
static inline struct m_saved *m_newest(struct m_cycle *c)
{
    for (int i = c->n - 1; i >= 0; i--)
        if (c->saved[i].good)
            return &c->saved[i];
    return NULL;
}

static inline int m_start(struct m_cycle *c)
{
    struct m_saved *s = m_newest(c);
    return s ? s->step : 0;
}

static inline bool m_unmet(struct model *m, const struct m_job *j)
{
    for (int i = 0; i < M_AFTER; i++) {
        if (!j->after[i])
            continue;
        struct m_job *b = m_job(m, j->after[i]);
        if (j->after_any[i] ? b && !m_ended(b) : !b || b->state != COMPLETED)
            return true;
    }
    return false;
}

/* Its turn has not come: others first, then its time. */
static inline bool m_early(struct model *m, struct m_job *j, struct m_cycle *c)
{
    return !c->frozen && c->number == 1 &&
           (m_unmet(m, j) || j->not_before > m->now);
}

static inline bool m_waits(const struct model *m, const struct m_cycle *c)
{
    return c->parked || c->not_before == -1 ||
           (c->not_before > m->now && c->not_before - m->now < 120000);
}

/* ---- whose turn it is ---- */

static inline bool m_claimable(struct m_job *j)
{
    struct m_cycle *c = j->there ? m_open(j) : NULL;
    return c && c->state == READY && j->state == QUEUED;
}

static inline double m_used(const struct model *m, const struct m_use *u)
{
    double passed = m->now > u->at ? (double)(m->now - u->at) : 0;
    double left = exp2(-passed / M_HALF_LIFE_MS);
    return u->use * left +
           (double)u->running * (M_HALF_LIFE_MS / M_LN2) * (1 - left);
}

/* A lease of this owner began (1) or ended (-1). */
static inline void m_uses(struct model *m, int owner, int more)
{
    struct m_use *u = &m->use[owner];
    u->use = u->known ? m_used(m, u) : 0;
    u->running += more;
    u->at = m->now;
    u->known = true;
}

/* The cycle stands where its job is to stand now. */
static inline void m_place(struct model *m, struct m_job *j, struct m_cycle *c)
{
    bool moves = c->state == LEASED && c->owner != j->owner;
    if (moves)
        m_uses(m, c->owner, -1);
    c->owner = j->owner;
    c->priority = j->priority;
    if (c->state != READY || j->pause || j->cancel)
        c->since = 0;
    else if (!c->since)
        c->since = m->now;
    if (moves)
        m_uses(m, c->owner, 1);
}

/* The first of its owner and priority, and how the group stands. */
struct m_group {
    struct m_job *first;
    int64_t level, since;
    double use, running;
};

static inline struct m_group m_group(struct model *m, int owner, int priority)
{
    struct m_group g = {0};
    for (int i = 0; i < M_JOBS; i++) {
        struct m_job *j = &m->job[i];
        struct m_cycle *c = m_claimable(j) ? m_open(j) : NULL;
        if (!c || c->owner != owner || c->priority != priority)
            continue;
        struct m_cycle *b = g.first ? m_open(g.first) : NULL;
        if (!b || c->front > b->front ||
            (c->front == b->front && c->id < b->id))
            g.first = j;
    }
    if (!g.first)
        return g;
    g.since = m_open(g.first)->since;
    if (m->served[owner][priority] > g.since)
        g.since = m->served[owner][priority];
    if (g.since > m->now)
        g.since = m->now;
    g.level = priority + (m->now - g.since) / M_AGE_MS;
    if (m->use[owner].known) {
        g.use = m_used(m, &m->use[owner]) / m_weight[owner];
        g.running = m->use[owner].running / m_weight[owner];
    }
    return g;
}

/* Is a's turn before b's? What differs by rounding alone is equal: either may
 * be first. */
static inline bool m_before(const struct m_group *a, const struct m_group *b)
{
    if (a->level != b->level)
        return a->level > b->level;
    double near = 1e-9 * (a->use + b->use) + 1e-6;
    if (fabs(a->use - b->use) > near)
        return a->use < b->use;
    if (a->use < b->use || a->use > b->use)
        return false;
    if (a->running < b->running || a->running > b->running)
        return a->running < b->running;
    if (a->since != b->since)
        return a->since < b->since;
    return false;
}

/* May this job be claimed now, and before all others? NULL when it may; else
 * one that goes before it (or anything, when it may not be claimed at all). */
static inline struct m_job *m_ahead(struct model *m, struct m_job *j)
{
    if (!j || !m_claimable(j))
        return j;
    struct m_cycle *c = m_open(j);
    struct m_group mine = m_group(m, c->owner, (int)c->priority);
    if (mine.first != j)
        return mine.first;
    for (int o = 0; o < M_OWNERS; o++)
        for (int p = 0; p < M_PRIORITIES; p++) {
            struct m_group other = m_group(m, o, p);
            if (other.first && m_before(&other, &mine))
                return other.first;
        }
    return NULL;
}

static inline bool m_any(struct model *m)
{
    for (int i = 0; i < M_JOBS; i++)
        if (m_claimable(&m->job[i]))
            return true;
    return false;
}

/* A claim sees the clock set back: what lies ahead begins now. */
static inline void m_mend_clock(struct model *m)
{
    bool ahead = false;
    for (int o = 0; o < M_OWNERS; o++)
        for (int p = 0; p < M_PRIORITIES; p++) {
            struct m_group g = m_group(m, o, p);
            ahead |= g.first && (m_open(g.first)->since > m->now ||
                                 m->served[o][p] > m->now);
        }
    if (!ahead)
        return;
    for (int o = 0; o < M_OWNERS; o++)
        for (int p = 0; p < M_PRIORITIES; p++)
            if (m->served[o][p] > m->now)
                m->served[o][p] = m->now;
    for (int i = 0; i < M_JOBS; i++)
        for (int k = 0; k < m->job[i].n; k++)
            if (m->job[i].cycle[k].since > m->now)
                m->job[i].cycle[k].since = m->now;
}
