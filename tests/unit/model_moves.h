/* model_moves.h - what clients, workers and the clock do to the queue of
 * queue_model.h, and what comes of it. */
#pragma once
#include "queue_model.h"

/* ---- what is next for a job ---- */

static inline void m_settle(struct model *m, struct m_job *j);

static inline void m_end(struct model *m, struct m_job *j,
                         enum m_job_state state)
{
    enum m_state open = state == FAILED_JOB ? C_FAILED : C_CANCELED;
    for (struct m_cycle *c; (c = m_open(j)); open = C_CANCELED) {
        c->state = open;
        c->since = 0;
    }
    j->state = state;
    j->pause = false;
    j->cancel = 0;
    j->events[state == COMPLETED    ? EV_completed
              : state == FAILED_JOB ? EV_failed
                                    : EV_canceled]++;
    for (int i = 0; i < M_JOBS; i++)
        for (int k = 0; k < M_AFTER; k++) {
            struct m_job *d = &m->job[i];
            if (!d->there || d->after[k] != j->id || m_ended(d))
                continue;
            if (state == CANCELED && !d->after_any[k])
                m_end(m, d, CANCELED); /* it waited for the completion */
            else
                m_settle(m, d);
        }
}

static inline struct m_cycle *m_add(struct m_job *j)
{
    if (j->n >= M_CYCLES)
        abort(); /* the caller looks */
    struct m_cycle *c = &j->cycle[j->n++];
    *c = (struct m_cycle){.number = j->n, .state = WAITING};
    return c;
}

static inline void m_settle(struct model *m, struct m_job *j)
{
    struct m_cycle *c;
    if (m_ended(j))
        return;
    while (!(c = m_open(j))) {
        struct m_cycle *last = m_last_done(j);
        if (j->cancel) {
            m_end(m, j, CANCELED);
            return;
        }
        if (last && (j->complete || (j->cycles && last->number >= j->cycles))) {
            m_end(m, j, COMPLETED);
            return;
        }
        if (!j->cycles) {
            j->state = j->pause ? PAUSED : QUEUED;
            return;
        }
        m_add(j);
    }
    if (c->state == LEASED) {
        m_place(m, j, c);
        j->state = RUNNING;
        return;
    }
    if (j->cancel) {
        m_end(m, j, CANCELED);
        return;
    }
    if (c->state == WAITING && !m_waits(m, c) && !m_early(m, j, c)) {
        c->state = READY;
        c->not_before = 0;
        if (!c->frozen && c->number > 1 && m_last_done(j))
            c->initial = m_last_done(j)->end;
        if (!c->frozen)
            c->steps = 6 * j->epochs;
        c->frozen = true;
    }
    m_place(m, j, c);
    j->state = j->pause ? PAUSED : QUEUED;
}

/* ---- what clients ask for ---- */

static inline int m_pause(struct model *m, int64_t id, bool pause)
{
    struct m_job *j = m_job(m, id);
    if (!j)
        return ERR_NOT_FOUND;
    if (m_ended(j))
        return ERR_CONFLICT;
    if (j->pause == pause)
        return 0;
    j->pause = pause;
    j->events[pause ? EV_paused : EV_unpaused]++;
    m_settle(m, j);
    return 0;
}

static inline int m_cancel(struct model *m, int64_t id)
{
    struct m_job *j = m_job(m, id);
    if (!j)
        return ERR_NOT_FOUND;
    if (j->state == CANCELED)
        return 0;
    if (m_ended(j))
        return ERR_CONFLICT;
    if (j->cancel == 2)
        return 0;
    j->cancel++;
    j->events[EV_cancel]++;
    m_settle(m, j);
    return 0;
}

static inline int m_complete(struct model *m, int64_t id)
{
    struct m_job *j = m_job(m, id);
    if (!j)
        return ERR_NOT_FOUND;
    if (j->state == COMPLETED)
        return 0;
    if (m_ended(j) || (!m_open(j) && !m_last_done(j)))
        return ERR_CONFLICT;
    if (j->complete)
        return 0;
    j->complete = true;
    j->events[EV_complete]++;
    m_settle(m, j);
    return 0;
}

static inline int m_retry(struct model *m, int64_t id)
{
    struct m_job *j = m_job(m, id);
    if (!j)
        return ERR_NOT_FOUND;
    if (j->state != FAILED_JOB && j->state != CANCELED)
        return ERR_CONFLICT;
    for (int i = 0; i < M_AFTER; i++)
        if (j->after[i] && !j->after_any[i] && !m_job(m, j->after[i]))
            return ERR_CONFLICT; /* what it waited for cannot come */
    j->state = QUEUED;
    j->pause = j->complete = false;
    j->cancel = 0;
    for (int i = 0; i < j->n; i++) {
        struct m_cycle *c = &j->cycle[i];
        if (c->state != C_FAILED && c->state != C_CANCELED)
            continue;
        c->state = WAITING;
        c->failures = c->lost = c->idle = 0;
        c->not_before = 0;        /* one that is parked waits for room still */
        c->token += c->token > 0; /* who held it does not come back */
    }
    j->events[EV_retried]++;
    m_settle(m, j);
    for (int i = 0; i < M_JOBS; i++) /* they say something else now */
        for (int k = 0; k < M_AFTER; k++)
            if (m->job[i].there && m->job[i].after[k] == id)
                m_settle(m, &m->job[i]);
    return 0;
}

static inline int m_delete(struct model *m, int64_t id)
{
    struct m_job *j = m_job(m, id);
    if (!j)
        return ERR_NOT_FOUND;
    if (!m_ended(j))
        return ERR_CONFLICT;
    bool completed = j->state == COMPLETED;
    for (int i = 0; i < M_JOBS; i++)
        for (int k = 0; k < M_AFTER; k++)
            if (m->job[i].there && m->job[i].after[k] == id && !completed &&
                !m->job[i].after_any[k] && !m_ended(&m->job[i]))
                return ERR_CONFLICT;
    for (int i = 0; i < M_JOBS; i++) /* its end has let them go on */
        for (int k = 0; k < M_AFTER; k++)
            if (m->job[i].after[k] == id &&
                (completed || m->job[i].after_any[k]))
                m->job[i].after[k] = 0;
    j->there = false;
    return 0;
}

static inline int m_add_cycle(struct model *m, int64_t id)
{
    struct m_job *j = m_job(m, id);
    if (!j)
        return ERR_NOT_FOUND;
    if (m_ended(j) || j->cycles || j->complete || j->cancel)
        return ERR_CONFLICT;
    m_add(j);
    j->events[EV_cycle]++;
    m_settle(m, j);
    return 0;
}

/* priority, micro-batch, owner; -1: as it is */
static inline int m_patch(struct model *m, int64_t id, int priority, int micro,
                          int owner)
{
    struct m_job *j = m_job(m, id);
    if (!j)
        return ERR_NOT_FOUND;
    bool new_micro = micro >= 0 && micro != j->micro;
    if (j->state == COMPLETED && new_micro)
        return ERR_CONFLICT;
    if ((priority < 0 || priority == j->priority) && !new_micro &&
        (owner < 0 || owner == j->owner))
        return 0;
    if (priority >= 0)
        j->priority = priority;
    if (micro >= 0)
        j->micro = micro;
    if (owner >= 0)
        j->owner = owner;
    j->events[EV_patched]++;
    m_settle(m, j);
    return 0;
}

/* ---- checkpoints ---- */

static inline bool m_loads(struct model *m, int64_t id)
{
    for (int i = 0; i < M_LEASES; i++)
        if (m->lease[i].id && m_lease(m, m->lease[i].id) &&
            m->lease[i].outcome == LIVE && m->lease[i].loading &&
            (m->lease[i].from_id == id || m->lease[i].initial == id))
            return true;
    return false;
}

static inline int m_pin(struct model *m, int64_t job, int64_t id, bool pinned)
{
    struct m_job *j = m_job(m, job);
    struct m_saved *s = j ? m_saved(j, id) : NULL;
    if (!s)
        return ERR_NOT_FOUND;
    s->pinned = pinned;
    return 0;
}

/* Not what is pinned, a model, being loaded, or the last that is good. */
static inline int m_drop(struct model *m, int64_t job, int64_t id)
{
    struct m_job *j = m_job(m, job);
    struct m_saved *s = j ? m_saved(j, id) : NULL;
    if (!s)
        return ERR_NOT_FOUND;
    for (int i = 0; i < j->n; i++) {
        struct m_cycle *c = &j->cycle[i];
        int at = -1, others = 0;
        for (int k = 0; k < c->n; k++) {
            if (c->saved[k].id == id)
                at = k;
            others += c->saved[k].id != id && c->saved[k].good;
        }
        if (at < 0)
            continue;
        if (s->pinned || id == c->end ||
            (s->good && c->state != DONE && !others) || m_loads(m, id))
            return ERR_CONFLICT;
        memmove(&c->saved[at], &c->saved[at + 1],
                (size_t)(c->n - at - 1) * sizeof(*c->saved));
        c->n--;
        break;
    }
    return 0;
}

/* There is room on the disk again. */
static inline void m_unpark(struct model *m)
{
    for (int i = 0; i < M_JOBS; i++)
        for (int k = 0; m->job[i].there && k < m->job[i].n; k++) {
            struct m_cycle *c = &m->job[i].cycle[k];
            if (!c->parked || c->state != WAITING)
                continue;
            c->parked = false;
            m->job[i].events[EV_unparked]++;
            m_settle(m, &m->job[i]);
        }
}

/* ---- how a lease ends ---- */

static inline void m_again(struct model *m, struct m_cycle *c, bool front,
                           int failures)
{
    static const int64_t wait[] = {0, 0, 1, 2, 4, 8, 16, 32, 60};
    c->front = front;
    c->wait_min = wait[failures < 8 ? failures : 8] * 1000;
    c->state = c->wait_min ? WAITING : READY;
    c->not_before = c->wait_min ? -1 : 0;
}

static inline bool m_idle(const struct m_lease *l, struct m_cycle *c)
{
    bool idle = c->best <= l->best_before;
    c->idle = idle ? c->idle + 1 : 0;
    return idle;
}

static inline bool m_spent(int n, int limit)
{
    return limit > 0 && n >= limit;
}

static inline void m_set_aside(struct m_job *j, struct m_cycle *c,
                               struct m_saved *s)
{
    j->events[EV_quarantined]++;
    if (s) /* else it was removed while its lease was thought lost */
        s->good = false;
    if (c->saved_step > m_start(c))
        c->saved_step = m_start(c);
}

static inline void m_lost(struct model *m, struct m_lease *l, bool expired)
{
    struct m_job *j = m_job(m, l->job);
    struct m_cycle *c = m_cycle(m, l);
    struct m_saved *from = l->from_id ? m_saved(j, l->from_id) : NULL;
    l->counted_load = from && l->loading;
    l->counted_aside = l->counted_load && ++from->deaths >= 2 && from->good;
    if (l->counted_aside)
        m_set_aside(j, c, from);
    if (c->saved_step > m_start(c)) /* a newer one is gone */
        c->saved_step = m_start(c);
    m_uses(m, c->owner, -1);
    l->outcome = O_LOST;
    l->expired = expired;
    l->counted_lost = true;
    l->counted_idle = m_idle(l, c);
    c->lost++;
    j->events[EV_lost]++;
    m_again(m, c, false, c->lost);
    if (!j->cancel &&
        (m_spent(c->lost, j->limit_lost) || m_spent(c->idle, j->limit_idle)))
        m_end(m, j, FAILED_JOB);
    m_settle(m, j);
}

/* 0: the lease is live, maybe again. */
static inline int m_live(struct model *m, struct m_lease *l)
{
    if (l->outcome == LIVE)
        return 0;
    struct m_job *j = m_job(m, l->job);
    struct m_cycle *c = m_cycle(m, l);
    if (l->outcome != O_LOST || !l->expired || c->token != l->token ||
        (c->state != READY && c->state != WAITING) || m_ended(j))
        return ERR_STALE;
    m_uses(m, c->owner, 1);
    l->outcome = LIVE;
    l->expired = false;
    c->state = LEASED;
    c->since = 0;
    c->not_before = 0;
    c->lost -= l->counted_lost && c->lost;
    c->idle -= l->counted_idle && c->idle;
    l->counted_lost = l->counted_idle = false;
    if (l->counted_load) { /* it was not dead: its checkpoint kills nobody */
        struct m_saved *from = m_saved(j, l->from_id);
        if (from) {
            from->deaths -= from->deaths > 0;
            from->good |= l->counted_aside;
        }
        l->counted_load = l->counted_aside = false;
    }
    j->events[EV_resumed]++;
    m_settle(m, j);
    return 0;
}

static inline void m_heard(struct model *m, struct m_lease *l)
{
    l->heard = m->mono;
}

static inline void m_report(struct model *m, struct m_lease *l, int step,
                            bool past_load)
{
    struct m_cycle *c = m_cycle(m, l);
    l->step = step;
    if (step > c->best)
        c->best = step;
    if (past_load && l->loading) {
        struct m_saved *from = m_saved(m_job(m, l->job), l->from_id);
        if (from)
            from->deaths = 0;
        l->loading = false;
    }
    m_heard(m, l);
}

/* ---- what workers do ---- */

/* The lease that a process got, while its job is there. */
static inline struct m_lease *m_of_worker(struct model *m, int worker)
{
    for (int i = 0; i < M_LEASES; i++)
        if (m->lease[i].id && m->lease[i].worker == worker &&
            m_lease(m, m->lease[i].id))
            return &m->lease[i];
    return NULL;
}

/* Would a write of it count? Changes nothing. */
static inline int m_check(const struct model *m, int64_t id)
{
    static struct model copy;
    copy = *m;
    struct m_lease *l = m_lease(&copy, id);
    return l ? m_live(&copy, l) : ERR_NOT_FOUND;
}

/* The claim got a new lease: for the cycle that is first. */
static inline void m_take(struct model *m, struct m_job *j, int worker,
                          int64_t id)
{
    struct m_cycle *c = m_open(j);
    struct m_saved *s = m_newest(c);
    struct m_lease *l = &m->lease[id % M_LEASES];
    *l = (struct m_lease){.id = id,
                          .job = j->id,
                          .token = ++c->token,
                          .heard = m->mono,
                          .from_id = s ? s->id : 0,
                          .initial = s ? 0 : c->initial,
                          .cycle = c->number - 1,
                          .from = m_start(c),
                          .step = m_start(c),
                          .best_before = c->best,
                          .micro = j->micro,
                          .loading = true,
                          .worker = worker};
    if (s)
        memcpy(l->by, s->by, sizeof(l->by));
    m->served[c->owner][c->priority] = m->now;
    m_uses(m, c->owner, 1);
    c->state = LEASED;
    c->since = 0;
    c->front = false;
    c->not_before = 0;
    j->events[c->token == 1 ? EV_started : EV_resumed]++;
    m_settle(m, j);
}

/* Silent leases are lost, back-offs end. */
static inline void m_tick(struct model *m)
{
    int64_t ids[M_LEASES];
    int n = 0;
    for (int i = 0; i < M_LEASES; i++)
        if (m->lease[i].id && m_lease(m, m->lease[i].id) &&
            m->lease[i].outcome == LIVE &&
            m->lease[i].heard < m->mono - M_EXPIRY_MS)
            ids[n++] = m->lease[i].id;
    for (int i = 0; i < n; i++) /* in the order of their claims */
        for (int k = i + 1; k < n; k++)
            if (ids[k] < ids[i]) {
                int64_t swap = ids[i];
                ids[i] = ids[k];
                ids[k] = swap;
            }
    for (int i = 0; i < n; i++)
        m_lost(m, m_lease(m, ids[i]), true);
    for (int i = 0; i < M_JOBS; i++) {
        struct m_cycle *c = m->job[i].there ? m_open(&m->job[i]) : NULL;
        if (!c || c->state != WAITING)
            continue;
        bool due = c->not_before > 0 &&
                   (c->not_before <= m->now || c->not_before > m->now + 120000);
        bool starts = !c->frozen && m->job[i].not_before &&
                      m->job[i].not_before <= m->now &&
                      !m_early(m, &m->job[i], c);
        if (due || starts)
            m_settle(m, &m->job[i]);
    }
}

static inline void m_died(struct model *m, int worker)
{
    if (m->known[worker % M_WORKERS])
        m->gone[worker % M_WORKERS] = true;
    for (int i = 0; i < M_LEASES; i++) {
        struct m_lease *l = &m->lease[i];
        if (!l->id || l->worker != worker || !m_lease(m, l->id))
            continue;
        l->expired = false;
        if (l->outcome == LIVE)
            m_lost(m, l, false);
    }
}

enum m_do { CONTINUE, YIELD, STOP };

static inline int m_beat(struct model *m, int64_t id, int seq, int step,
                         bool loading, enum m_do *ret)
{
    struct m_lease *l = m_lease(m, id);
    int r = l ? m_live(m, l) : ERR_NOT_FOUND;
    if (r < 0)
        return r;
    struct m_job *j = m_job(m, l->job);
    if (seq > l->seq) {
        l->seq = seq;
        m_report(m, l, step, !loading);
    }
    m_heard(m, l);
    *ret = j->cancel > 1 ? STOP
           : j->cancel || j->pause || m->drained[l->worker % M_WORKERS] ||
                   j->micro != l->micro
               ? YIELD
               : CONTINUE;
    return 0;
}

/* A release, after what it saved. code: err_word of a failure; set_aside: it
 * names the checkpoint that it started from. */
static inline int m_release(struct model *m, struct m_lease *l,
                            enum m_outcome outcome, int step, const char *code,
                            bool final, bool set_aside)
{
    struct m_job *j = m_job(m, l->job);
    struct m_cycle *c = m_cycle(m, l);
    int64_t at = l->saved ? l->saved : l->from_id;
    struct m_saved *last = at ? m_saved(j, at) : NULL;
    bool fails = false;
    if (outcome == O_FINISHED &&
        (!last || !last->good || last->step != c->steps))
        return ERR_CONFLICT;
    m_report(m, l, step, false);
    l->outcome = outcome;
    l->answered = true;
    m_uses(m, c->owner, -1);
    switch (outcome) {
    case O_FINISHED:
        c->state = DONE;
        c->end = last->id;
        j->events[EV_finished]++;
        break;
    case O_YIELDED:
        m_idle(l, c);
        m_again(m, c, true, 0);
        j->events[EV_yielded]++;
        fails = !j->pause && m_spent(c->idle, j->limit_idle);
        break;
    default:
        if (code && !strcmp(code, "no_space")) {
            j->events[EV_parked]++;
            m_again(m, c, true, 0);
            c->state = WAITING;
            c->parked = true;
        } else if (set_aside && l->from_id) {
            m_set_aside(j, c, m_saved(j, l->from_id));
            m_again(m, c, true, 0);
        } else if (set_aside) {
            m_saved(j, l->initial)->good = false;
            fails = true;
            m_again(m, c, false, 0);
        } else if (final) {
            j->events[EV_failed]++;
            fails = true;
            m_again(m, c, false, 0);
        } else if (code && !strcmp(code, "oom") && j->split && j->micro > 1 &&
                   !j->cancel) {
            j->events[EV_failed]++;
            j->micro /= 2;
            m_again(m, c, true, 0);
        } else {
            j->events[EV_failed]++;
            m_idle(l, c);
            c->failures++;
            m_again(m, c, false, c->failures);
            fails = m_spent(c->failures, j->limit_failures) ||
                    m_spent(c->idle, j->limit_idle);
        }
    }
    if (j->cancel) /* it was asked for before */
        m_end(m, j, CANCELED);
    else if (fails)
        m_end(m, j, FAILED_JOB);
    m_settle(m, j);
    return 0;
}

/* A checkpoint: 1 when it was known, and *ret_id is its id; 0: a new one, which
 * gets its id from the server. */
static inline int m_save(struct model *m, int64_t id, int step,
                         const char *digest, const char *previous,
                         bool releases, int64_t *ret_id)
{
    struct m_lease *l = m_lease(m, id);
    if (!l)
        return ERR_NOT_FOUND;
    struct m_job *j = m_job(m, l->job);
    struct m_cycle *c = m_cycle(m, l);
    struct m_saved *known = NULL;
    for (int i = 0; i < c->n; i++)
        if (c->saved[i].lease == id && !strcmp(c->saved[i].digest, digest))
            known = &c->saved[i];
    if (known && (!releases || l->answered)) {
        *ret_id = known->id;
        return 1;
    }
    int r = m_live(m, l);
    if (r < 0)
        return r;
    m_heard(m, l);
    if (known) {
        *ret_id = known->id;
        return 0;
    }
    int64_t before = l->saved ? l->saved : l->from_id ? l->from_id : l->initial;
    struct m_saved *b = before ? m_saved(j, before) : NULL;
    bool first = !l->saved && !l->from_id && !*previous;
    /* one that a client removed meanwhile cannot be compared */
    bool gone = before && !b && step > c->saved_step;
    if (!first && !gone && (!b || strcmp(b->digest, previous)))
        return ERR_CONFLICT;
    if (c->n >= M_SAVED)
        abort();
    struct m_saved *s = &c->saved[c->n++];
    *s = (struct m_saved){.id = -1, .lease = id, .step = step, .good = true};
    strcpy(s->digest, digest);
    memcpy(s->by, l->by, sizeof(s->by));
    for (int i = l->from + 1; i <= step; i++)
        s->by[i] = id;
    if (step > c->saved_step) {
        c->saved_step = step;
        c->failures = c->lost = c->idle = 0;
    }
    if (step > c->best)
        c->best = step;
    *ret_id = 0;
    return 0;
}
