/* job_settle.c - what is next for a job, and why it waits (job.h).
 *
 * A job's state follows from its cycles and from what was asked of it; nothing
 * else sets it. Whoever changes one of the two calls job_settle, which looks
 * at the lowest open cycle: leased is running, waiting is asked what for, ready
 * waits for a worker, and with none open there is a next one or an end. An end
 * settles the jobs that come after this one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/cycle.h"
#include "server/event.h"
#include "server/job.h"

static int set_state(struct store *st, int64_t id, const char *state,
                     const char *reason, int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_STATE);
    stmt_int(&q, ":id", id);
    stmt_text(&q, ":state", state);
    stmt_text(&q, ":reason", reason);
    stmt_int(&q, ":now", now_ms);
    store_notify(st, NOTIFY_JOB);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* ---- the end ---- */

static int settle_dependents(struct store *st, int64_t id, int64_t now_ms,
                             struct err *err)
{
    AUTO_JSON json_t *ids = json_array();
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_DEPENDENTS);
        stmt_int(&q, ":id", id);
        int r;
        while ((r = stmt_row(&q, err)) > 0)
            json_array_append_new(ids, json_integer(col_int(&q, 0)));
        if (r < 0)
            return r;
    }
    size_t i;
    json_t *one;
    json_array_foreach(ids, i, one)
    {
        int r = job_settle(st, json_integer_value(one), false, now_ms, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int end(struct store *st, int64_t id, const char *state,
               const char *reason, const char *model, const json_t *error,
               int64_t now_ms, struct err *err)
{
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_END);
        stmt_int(&q, ":id", id);
        stmt_text(&q, ":state", state);
        stmt_text(&q, ":reason", reason);
        stmt_text(&q, ":model", model);
        stmt_json(&q, ":error", error);
        stmt_int(&q, ":now", now_ms);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    int r =
        event_add(st,
                  &(struct event){
                      .job = id, .step = -1, .kind = state, .actor = "server"},
                  now_ms, err, "%s", reason ? reason : "all cycles are done");
    if (r < 0)
        return r;
    store_notify(st, NOTIFY_JOB | NOTIFY_QUEUE);
    return settle_dependents(st, id, now_ms, err);
}

static int end_open_cycles(struct store *st, int64_t id, const char *state,
                           const char *reason, int64_t now_ms, struct err *err)
{
    struct cycle c;
    int r;
    /* the first one takes the blame, those behind it never ran */
    while ((r = cycle_open(st, id, &c, err)) > 0) {
        r = cycle_end(st, c.id, state, reason, now_ms, err);
        if (r < 0)
            return r;
        state = "canceled";
    }
    return r;
}

int job_fail(struct store *st, int64_t id, const char *reason,
             const json_t *error, int64_t now_ms, struct err *err)
{
    int r = end_open_cycles(st, id, "failed", reason, now_ms, err);
    return r < 0 ? r : end(st, id, "failed", reason, NULL, error, now_ms, err);
}

int job_canceled(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    int r = end_open_cycles(st, id, "canceled", "canceled", now_ms, err);
    return r < 0 ? r
                 : end(st, id, "canceled", "canceled by request", NULL, NULL,
                       now_ms, err);
}

/* ---- what is next ---- */

/* No cycle is open: add the next (1), or complete or wait (0). */
static int next_cycle(struct store *st, const struct job *j, int64_t now_ms,
                      struct err *err)
{
    struct cycle last = {0};
    int r = cycle_last_done(st, j->id, &last, err);
    if (r < 0)
        return r;
    if (j->cancel) {
        r = job_canceled(st, j->id, now_ms, err);
        return r < 0 ? r : 0;
    }
    if (last.number &&
        (j->complete || (j->cycles && last.number >= j->cycles))) {
        r = end(st, j->id, "completed", NULL, last.model_sha256, NULL, now_ms,
                err);
        return r < 0 ? r : 0;
    }
    if (j->cycles == 0) {
        char reason[160];
        snprintf(reason, sizeof(reason),
                 j->pause ? "paused; waits for POST /v1/jobs/%" PRId64
                            "/resume, then for POST …/cycles"
                          : "waits for POST /v1/jobs/%" PRId64 "/cycles",
                 j->id);
        r = set_state(st, j->id, j->pause ? "paused" : "queued", reason, now_ms,
                      err);
        return r < 0 ? r : 0;
    }
    r = cycle_add(st, j->id, last.number + 1, NULL, now_ms, err);
    return r < 0 ? r : 1;
}

/* 1 and a sentence while a job that this one comes after is not completed. */
static int dependency(struct store *st, int64_t id, char *ret, size_t cap,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_UNMET);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r > 0)
        snprintf(ret, cap, "waits for job %" PRId64 ", which is %s",
                 col_int(&q, 0), col_text(&q, 1));
    return r;
}

static int cycle_why(struct store *st, int64_t cycle, char *ret, size_t cap,
                     struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_WHY);
    stmt_int(&q, ":id", cycle);
    int r = stmt_row(&q, err);
    if (r > 0)
        snprintf(ret, cap, "%s", col_text(&q, 0));
    return r;
}

/* A waiting cycle: what for? Makes it ready when nothing is left to wait for.
 * The job fails when its data cannot be frozen: 1. */
static int advance(struct store *st, const struct job *j, struct cycle *c,
                   bool strict, int64_t now_ms, struct err *err)
{
    char why[256];
    if (c->steps < 0 && c->number == 1) {
        int r = dependency(st, j->id, why, sizeof(why), err);
        if (r < 0)
            return r;
        if (r > 0) {
            r = cycle_reason(st, c->id, why, err);
            return r < 0 ? r : 0;
        }
    }
    /* a wall clock set back must not make it wait for longer than it would */
    if (c->not_before_ms > now_ms && c->not_before_ms - now_ms < 120000)
        return 0;
    struct err cause = {0};
    int r = cycle_ready(st, c, now_ms, &cause);
    if (r >= 0)
        return 0;
    if ((r != ERR_DATA && r != ERR_INVALID) || (strict && r == ERR_INVALID)) {
        *err = cause;
        return r;
    }
    AUTO_JSON json_t *error =
        json_pack("{ss ss ss* sb}", "code", err_word(r), "detail", cause.text,
                  "shard", cause.shard[0] ? cause.shard : NULL, "final", 1);
    r = job_fail(st, j->id, cause.text, error, now_ms, err);
    return r < 0 ? r : 1;
}

int job_settle(struct store *st, int64_t id, bool strict, int64_t now_ms,
               struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load(st, id, &j, err);
    if (r < 0 || job_ended(&j))
        return r;
    struct cycle c;
    while ((r = cycle_open(st, id, &c, err)) == 0) {
        r = next_cycle(st, &j, now_ms, err);
        if (r <= 0)
            return r;
    }
    if (r < 0)
        return r;
    if (!strcmp(c.state, "leased"))
        return set_state(st, id, "running",
                         j.cancel > 1 ? "stopping at once, as asked"
                         : j.cancel   ? "canceling: the worker saves first"
                         : j.pause    ? "pausing: the worker saves first"
                                      : NULL,
                         now_ms, err);
    if (j.cancel)
        return job_canceled(st, id, now_ms, err);
    if (!strcmp(c.state, "waiting")) {
        r = advance(st, &j, &c, strict, now_ms, err);
        if (r)
            return r < 0 ? r : 0;
    }
    char why[768] = "";
    if (j.pause)
        snprintf(why, sizeof(why),
                 "paused by request at step %" PRId64 "; POST /v1/jobs/%" PRId64
                 "/resume goes on there",
                 c.step, id);
    else {
        r = cycle_why(st, c.id, why, sizeof(why), err);
        if (r < 0)
            return r;
    }
    return set_state(st, id, j.pause ? "paused" : "queued", why, now_ms, err);
}

int job_settle_due(struct store *st, int64_t now_ms, struct err *err)
{
    AUTO_JSON json_t *ids = json_array();
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_DUE);
        stmt_int(&q, ":now", now_ms);
        int r;
        while ((r = stmt_row(&q, err)) > 0)
            json_array_append_new(ids, json_integer(col_int(&q, 0)));
        if (r < 0)
            return r;
    }
    size_t i;
    json_t *one;
    json_array_foreach(ids, i, one)
    {
        int r = job_settle(st, json_integer_value(one), false, now_ms, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int job_say_why(struct store *st, int64_t id, const char *reason,
                struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_WHY);
    stmt_int(&q, ":id", id);
    stmt_text(&q, ":reason", reason);
    int64_t n = stmt_run(&q, err);
    if (n > 0)
        store_notify(st, NOTIFY_JOB);
    return n < 0 ? (int)n : 0;
}
