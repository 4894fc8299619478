/* job_settle.c - what is next for a job, and why it waits (job.h).
 *
 * A job's state follows from its cycles and from what was asked of it; nothing
 * else sets it. Whoever changes one of the two calls job_settle, which looks
 * at the lowest open cycle: leased is running, waiting is asked what for, ready
 * waits for a worker, and with none open there is a next one or an end.
 *
 * An end moves the jobs that come after this one: they may begin, they wait
 * with another sentence, or they are canceled, where they wait for the
 * completion of one that was. They stand in a wave and are settled one behind
 * the other, not one within the other: a chain may be long. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/json_read.h"
#include "schema/rfc3339.h"
#include "server/cycle.h"
#include "server/event.h"
#include "server/job.h"
#include "server/owner.h"
#include "server/stall.h"
#include "server/room.h"

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

/* Jobs that an end has moved: [[id, canceled], …]. canceled: the job that was,
 * and whose completion this one waited for; or 0. */
struct wave {
    json_t *todo;
};

static void wave_release(struct wave *w)
{
    json_decref(w->todo);
}

static void wave_add(struct wave *w, int64_t id, int64_t canceled)
{
    json_array_append_new(w->todo, json_pack("[I, I]", id, canceled));
}

static int wave_dependents(struct store *st, struct wave *w, int64_t id,
                           bool canceled, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_DEPENDENTS);
    stmt_int(&q, ":id", id);
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        wave_add(w, col_int(&q, 0), canceled && !col_int(&q, 1) ? id : 0);
    return r;
}

static int end(struct store *st, struct wave *w, int64_t id, const char *state,
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
    return wave_dependents(st, w, id, !strcmp(state, "canceled"), err);
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

static int fail(struct store *st, struct wave *w, int64_t id,
                const char *reason, const json_t *error, int64_t now_ms,
                struct err *err)
{
    int r = end_open_cycles(st, id, "failed", reason, now_ms, err);
    return r < 0 ? r
                 : end(st, w, id, "failed", reason, NULL, error, now_ms, err);
}

static int cancel(struct store *st, struct wave *w, int64_t id,
                  const char *reason, int64_t now_ms, struct err *err)
{
    int r = end_open_cycles(st, id, "canceled", reason, now_ms, err);
    return r < 0 ? r
                 : end(st, w, id, "canceled", reason, NULL, NULL, now_ms, err);
}

#define BY_REQUEST "canceled by request"

/* ---- what is next ---- */

/* No cycle is open: add the next (1), or complete or wait (0). */
static int next_cycle(struct store *st, struct wave *w, const struct job *j,
                      int64_t now_ms, struct err *err)
{
    struct cycle last = {0};
    int r = cycle_last_done(st, j->id, &last, err);
    if (r < 0)
        return r;
    if (j->cancel) {
        r = cancel(st, w, j->id, BY_REQUEST, now_ms, err);
        return r < 0 ? r : 0;
    }
    if (last.number &&
        (j->complete || (j->cycles && last.number >= j->cycles))) {
        r = end(st, w, j->id, "completed", NULL, last.model_sha256, NULL,
                now_ms, err);
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

/* 1 and a sentence while a job that this one comes after is not there yet. What
 * that one is doing changes without this one hearing of it: not said here. */
static int dependency(struct store *st, int64_t id, char *ret, size_t cap,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_UNMET);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r <= 0)
        return r;
    int64_t after = col_int(&q, 0), others = col_int(&q, 3) - 1;
    const char *is = col_text(&q, 1);
    char more[64] = "";
    if (others)
        snprintf(more, sizeof(more), ", and for %" PRId64 " more", others);
    if (col_int(&q, 2))
        snprintf(ret, cap, "waits for the end of job %" PRId64 "%s", after,
                 more);
    else if (!strcmp(is, "failed") || !strcmp(is, "canceled"))
        snprintf(ret, cap,
                 "waits for job %" PRId64 ", which %s: retry it, or cancel "
                 "this one",
                 after, *is == 'f' ? "failed" : "was canceled");
    else if (!strcmp(is, "gone"))
        snprintf(ret, cap,
                 "waits for job %" PRId64 ", which was deleted: cancel this "
                 "one",
                 after);
    else
        snprintf(ret, cap, "waits for job %" PRId64 " to complete%s", after,
                 more);
    return 1;
}

/* The time of its job, while it waits for that; 0: no more. */
static int cycle_starts(struct store *st, int64_t id, int64_t ms,
                        struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_STARTS);
    stmt_int(&q, ":id", id);
    if (ms)
        stmt_int(&q, ":ms", ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* 1 and a sentence while it must not begin: others first, then its time. */
static int too_early(struct store *st, const struct job *j,
                     const struct cycle *c, int64_t now_ms, char *ret,
                     size_t cap, struct err *err)
{
    int r = dependency(st, j->id, ret, cap, err);
    if (r)
        return r;
    bool early = j->not_before_ms > now_ms;
    r = cycle_starts(st, c->id, early ? j->not_before_ms : 0, err);
    if (r < 0 || !early)
        return r;
    char at[RFC3339_MAX];
    rfc3339_text(j->not_before_ms, at);
    snprintf(ret, cap, "waits until %s (not_before)", at);
    return 1;
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

/* An event only where it waited for something. */
static int say_ready(struct store *st, const struct cycle *c,
                     const char *waited, int64_t now_ms, struct err *err)
{
    if (!waited[0] || strstr(waited, "waits for a worker"))
        return 0;
    struct event e = {.job = c->job,
                      .cycle = c->number,
                      .step = -1,
                      .kind = "ready",
                      .actor = "server"};
    int r = event_add(st, &e, now_ms, err,
                      "cycle %" PRId64 " waits no more: it was \"%.400s\"",
                      c->number, waited);
    return r < 0 ? r : 0;
}

/* A waiting cycle: what for? Makes it ready when nothing is left to wait for.
 * The job fails when its data cannot be frozen: 1. */
static int advance(struct store *st, struct wave *w, const struct job *j,
                   struct cycle *c, bool strict, int64_t now_ms,
                   struct err *err)
{
    char why[256];
    if (c->steps < 0 && c->number == 1) {
        int r = too_early(st, j, c, now_ms, why, sizeof(why), err);
        if (r < 0)
            return r;
        if (r > 0) {
            r = cycle_reason(st, c->id, why, err);
            return r < 0 ? r : 0;
        }
    }
    if (c->parked_ms) /* room.c ends that */
        return 0;
    /* a wall clock set back must not make it wait for longer than it would */
    if (c->not_before_ms > now_ms && c->not_before_ms - now_ms < 120000)
        return 0;
    struct err cause = {0};
    char waited[512] = "";
    int r = cycle_why(st, c->id, waited, sizeof(waited), err);
    if (r < 0)
        return r;
    r = cycle_ready(st, c, now_ms, &cause);
    if (r > 0) /* it waits still, and says for what */
        return 0;
    if (r == 0)
        return say_ready(st, c, waited, now_ms, err);
    if ((r != ERR_DATA && r != ERR_INVALID) || (strict && r == ERR_INVALID)) {
        *err = cause;
        return r;
    }
    AUTO_JSON json_t *error =
        json_pack("{ss ss ss* sb}", "code", err_word(r), "detail", cause.text,
                  "shard", cause.shard[0] ? cause.shard : NULL, "final", 1);
    r = fail(st, w, j->id, cause.text, error, now_ms, err);
    return r < 0 ? r : 1;
}

static int set_running(struct store *st, const struct job *j,
                       const struct cycle *c, int64_t now_ms, struct err *err)
{
    char why[512];
    int r = stall_why(st, c->id, why, sizeof(why), err);
    if (r == 0)
        r = room_why(st, c->id, why, sizeof(why), err);
    if (r < 0)
        return r;
    return set_state(st, j->id, "running",
                     j->cancel > 1 ? "stopping at once, as asked"
                     : j->cancel   ? "canceling: the worker saves first"
                     : j->pause    ? "pausing: the worker saves first"
                     : r           ? why
                                   : NULL,
                     now_ms, err);
}

static int settle(struct store *st, struct wave *w, int64_t id, bool strict,
                  int64_t now_ms, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load_part(st, id, 0, &j, err);
    if (r < 0 || job_ended(&j))
        return r;
    struct cycle c;
    while ((r = cycle_open(st, id, &c, err)) == 0) {
        r = next_cycle(st, w, &j, now_ms, err);
        if (r <= 0)
            return r;
    }
    if (r < 0)
        return r;
    if (!strcmp(c.state, "leased")) {
        r = owner_place(st, c.id, now_ms, err);
        return r < 0 ? r : set_running(st, &j, &c, now_ms, err);
    }
    if (j.cancel)
        return cancel(st, w, id, BY_REQUEST, now_ms, err);
    if (!strcmp(c.state, "waiting")) {
        r = advance(st, w, &j, &c, strict, now_ms, err);
        if (r)
            return r < 0 ? r : 0;
    }
    r = owner_place(st, c.id, now_ms, err);
    if (r < 0)
        return r;
    char why[2200] = "";
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

/* ---- one after the other ---- */

/* It waited for the completion of a job that was canceled. */
static int cancel_with(struct store *st, struct wave *w, int64_t id,
                       int64_t canceled, int64_t now_ms, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load_part(st, id, 0, &j, err);
    if (r < 0 || job_ended(&j))
        return r;
    char why[128];
    snprintf(why, sizeof(why),
             "canceled with job %" PRId64 ", for whose completion it waited",
             canceled);
    return cancel(st, w, id, why, now_ms, err);
}

static int wave_run(struct store *st, struct wave *w, int64_t now_ms,
                    struct err *err)
{
    int r = 0;
    for (size_t i = 0; i < json_array_size(w->todo) && r >= 0; i++) {
        const json_t *one = json_array_get(w->todo, i);
        int64_t id = json_integer_value(json_array_get(one, 0));
        int64_t canceled = json_integer_value(json_array_get(one, 1));
        r = canceled ? cancel_with(st, w, id, canceled, now_ms, err)
                     : settle(st, w, id, false, now_ms, err);
    }
    return r < 0 ? r : 0;
}

int job_settle(struct store *st, int64_t id, bool strict, int64_t now_ms,
               struct err *err)
{
    CLEANUP(wave_release) struct wave w = {json_array()};
    int r = settle(st, &w, id, strict, now_ms, err);
    return r < 0 ? r : wave_run(st, &w, now_ms, err);
}

int job_fail(struct store *st, int64_t id, const char *reason,
             const json_t *error, int64_t now_ms, struct err *err)
{
    CLEANUP(wave_release) struct wave w = {json_array()};
    int r = fail(st, &w, id, reason, error, now_ms, err);
    return r < 0 ? r : wave_run(st, &w, now_ms, err);
}

int job_canceled(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    CLEANUP(wave_release) struct wave w = {json_array()};
    int r = cancel(st, &w, id, BY_REQUEST, now_ms, err);
    return r < 0 ? r : wave_run(st, &w, now_ms, err);
}

int job_settle_dependents(struct store *st, int64_t id, int64_t now_ms,
                          struct err *err)
{
    CLEANUP(wave_release) struct wave w = {json_array()};
    int r = wave_dependents(st, &w, id, false, err);
    return r < 0 ? r : wave_run(st, &w, now_ms, err);
}

int job_settle_due(struct store *st, int64_t now_ms, struct err *err)
{
    CLEANUP(wave_release) struct wave w = {json_array()};
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_DUE);
        stmt_int(&q, ":now", now_ms);
        int r;
        while ((r = stmt_row(&q, err)) > 0)
            wave_add(&w, col_int(&q, 0), 0);
        if (r < 0)
            return r;
    }
    return wave_run(st, &w, now_ms, err);
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
