#include "server/lease_row.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "server/checkpoint.h"
#include "server/cycle.h"
#include "server/job.h"
#include "server/lease.h"
#include "server/owner.h"

void lease_free(struct lease *l)
{
    json_decref(l->fingerprint);
    json_decref(l->answer);
    l->fingerprint = l->answer = NULL;
}

int lease_row(struct stmt *q, struct lease *l, struct err *err)
{
    int r = stmt_row(q, err);
    if (r <= 0)
        return r;
    *l = (struct lease){
        .id = col_int(q, 0),
        .job = col_int(q, 1),
        .cycle = col_int(q, 2),
        .token = col_int(q, 3),
        .worker_id = col_int(q, 4),
        .checkpoint = col_int(q, 5),
        .initial = col_int(q, 6),
        .from_step = col_int(q, 7),
        .best_before = col_int(q, 8),
        .step = col_int(q, 9),
        .epoch = col_int(q, 10),
        .records = col_int(q, 11),
        .micro_batches = col_int(q, 12),
        .seq = col_int(q, 13),
        .saved = col_int(q, 14),
        .runtime_version = col_int(q, 15),
        .threads = col_int(q, 16),
        .counted = col_int(q, 17),
        .exact_since = col_null(q, 18) ? -1 : col_int(q, 18),
        .exact_cycle = col_int(q, 19),
        .expired = col_int(q, 21) != 0,
        .fingerprint = col_json(q, 26),
        .answer = col_json(q, 27),
        .drain = col_int(q, 29) != 0,
        .local = col_int(q, 30) != 0,
        .stall = {col_int(q, 31), col_real(q, 32), !col_null(q, 33)},
    };
    snprintf(l->exact_why, sizeof(l->exact_why), "%s", col_text(q, 20));
    snprintf(l->outcome, sizeof(l->outcome), "%s", col_text(q, 22));
    snprintf(l->stage, sizeof(l->stage), "%s", col_text(q, 23));
    snprintf(l->worker, sizeof(l->worker), "%s", col_text(q, 24));
    snprintf(l->device, sizeof(l->device), "%s", col_text(q, 25));
    snprintf(l->reason, sizeof(l->reason), "%s", col_text(q, 28));
    return 1;
}

int lease_load(struct store *st, int64_t id, struct lease *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_LOAD);
    stmt_int(&q, ":id", id);
    int r = lease_row(&q, ret, err);
    return r ? r
             : err_set(err, ERR_NOT_FOUND, "there is no lease %" PRId64, id);
}

int lease_stale(const struct lease *l, struct err *err)
{
    return err_set(err, ERR_STALE,
                   "lease %" PRId64 " has ended (%s%s%.200s): its cycle is no "
                   "longer this worker's",
                   l->id, l->outcome, l->reason[0] ? ": " : "", l->reason);
}

struct event lease_event(const struct lease *l, const struct cycle *c,
                         const char *kind)
{
    return (struct event){.job = l->job,
                          .lease = l->id,
                          .cycle = c->number,
                          .step = l->step,
                          .kind = kind,
                          .worker = l->worker};
}

/* ---- is it live? ---- */

/* Silence ended it, but nobody claimed the cycle since: 1 when it may go on. */
static int may_come_back(struct store *st, const struct lease *l,
                         struct cycle *ret, struct err *err)
{
    if (!l->expired || strcmp(l->outcome, "lost"))
        return 0;
    int r = cycle_load(st, l->cycle, ret, err);
    if (r < 0)
        return r;
    if (ret->token != l->token ||
        (strcmp(ret->state, "ready") && strcmp(ret->state, "waiting")))
        return 0;
    CLEANUP(job_release) struct job j = {0};
    r = job_load_part(st, l->job, 0, &j, err);
    /* a paused job's may come back, too: it is told to save and go */
    return r < 0 ? r : !job_ended(&j);
}

int lease_check(struct store *st, int64_t id, int64_t token, struct err *err)
{
    CLEANUP(lease_free) struct lease l = {0};
    struct cycle c;
    int r = lease_load(st, id, &l, err);
    if (r < 0)
        return r;
    if (token != l.token)
        return err_set(err, ERR_STALE, "lease %" PRId64 " has another token",
                       id);
    if (!l.outcome[0])
        return 0;
    r = may_come_back(st, &l, &c, err);
    return r < 0 ? r : r ? 0 : lease_stale(&l, err);
}

static int set_leased(struct store *st, int64_t cycle, int64_t lost,
                      int64_t no_progress, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_COME_BACK);
    stmt_int(&q, ":id", cycle);
    stmt_int(&q, ":lost", lost);
    stmt_int(&q, ":no_progress", no_progress);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int come_back(struct store *st, struct lease *l, const struct cycle *c,
                     int64_t now_ms, struct err *err)
{
    int64_t lost = c->lost - ((l->counted & COUNTED_LOST) != 0);
    int64_t idle = c->no_progress - ((l->counted & COUNTED_NO_PROGRESS) != 0);
    int r =
        set_leased(st, c->id, lost < 0 ? 0 : lost, idle < 0 ? 0 : idle, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_COME_BACK);
        stmt_int(&q, ":id", l->id);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    if (l->counted & COUNTED_LOAD) {
        r = checkpoint_load_lives(st, l->checkpoint,
                                  (l->counted & COUNTED_SET_ASIDE) != 0, err);
        if (r < 0)
            return r;
    }
    l->outcome[0] = '\0';
    r = owner_started(st, c->id, now_ms, err);
    if (r < 0)
        return r;
    r = event_add(st,
                  &(struct event){.job = l->job,
                                  .lease = l->id,
                                  .cycle = c->number,
                                  .step = l->step,
                                  .kind = "resumed",
                                  .worker = l->worker},
                  now_ms, err,
                  "worker %s is back before anyone else took the cycle, and "
                  "keeps it",
                  l->worker);
    return r < 0 ? r : job_settle(st, l->job, false, now_ms, err);
}

/* The lease of a write, live; or ERR_STALE with nothing changed. */
int lease_live(struct store *st, int64_t id, int64_t token, int64_t now_ms,
               struct lease *l, struct err *err)
{
    struct cycle c;
    int r = lease_load(st, id, l, err);
    if (r < 0)
        return r;
    if (token != l->token)
        return err_set(err, ERR_STALE, "lease %" PRId64 " has another token",
                       id);
    if (!l->outcome[0])
        return 0;
    r = may_come_back(st, l, &c, err);
    if (r <= 0)
        return r < 0 ? r : lease_stale(l, err);
    return come_back(st, l, &c, now_ms, err);
}
