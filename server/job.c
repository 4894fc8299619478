#include "server/job.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/json_read.h"
#include "server/cycle.h"
#include "server/dataset.h"
#include "server/event.h"
#include "server/when.h"

/* ---- rows ---- */

int job_load(struct store *st, int64_t id, struct job *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_LOAD);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no job %" PRId64, id);
    *ret = (struct job){
        .id = id,
        .version = col_int(&q, 1),
        .cycles = col_int(&q, 2),
        .runtime_version = col_int(&q, 3),
        .priority = col_int(&q, 4),
        .threads = col_int(&q, 5),
        .pause = col_int(&q, 6) != 0,
        .complete = col_int(&q, 7) != 0,
        .cancel = (int)col_int(&q, 8),
        .spec = col_json(&q, 11),
        .runtime = col_json(&q, 12),
        .labels = col_json(&q, 13),
    };
    snprintf(ret->state, sizeof(ret->state), "%s", col_text(&q, 9));
    snprintf(ret->dataset, sizeof(ret->dataset), "%s", col_text(&q, 10));
    if (!ret->spec || !ret->runtime || !ret->labels) {
        job_release(ret);
        return err_set(err, ERR_DB,
                       "the spec of job %" PRId64 " cannot be read", id);
    }
    return 0;
}

void job_release(struct job *j)
{
    json_decref(j->spec);
    json_decref(j->runtime);
    json_decref(j->labels);
    j->spec = j->runtime = j->labels = NULL;
}

static bool state_ended(const char *state)
{
    return !strcmp(state, "completed") || !strcmp(state, "failed") ||
           !strcmp(state, "canceled");
}

bool job_ended(const struct job *j)
{
    return state_ended(j->state);
}

int job_touch(struct store *st, int64_t id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_TOUCH);
    stmt_int(&q, ":id", id);
    store_notify(st, NOTIFY_JOB);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

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

static int set_asked(struct store *st, const struct job *j, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_ASKED);
    stmt_int(&q, ":id", j->id);
    stmt_int(&q, ":pause", j->pause);
    stmt_int(&q, ":cancel", j->cancel);
    stmt_int(&q, ":complete", j->complete);
    store_notify(st, NOTIFY_JOB);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* ---- what is next ---- */

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

/* ---- submit ---- */

static int add_after(struct store *st, int64_t id, const json_t *after,
                     struct err *err)
{
    size_t i;
    json_t *one;
    json_array_foreach(after, i, one)
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_AFTER_ADD);
        stmt_int(&q, ":job", id);
        stmt_int(&q, ":after", json_integer_value(one));
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return 0;
}

/* Ids exist before the job that names them, so no circle can close. */
static int check_after(struct store *st, const json_t *after, struct err *err)
{
    size_t i;
    json_t *one;
    json_array_foreach(after, i, one)
    {
        CLEANUP(job_release) struct job other = {0};
        int64_t id = json_integer_value(one);
        int r = job_load(st, id, &other, err);
        if (r == ERR_NOT_FOUND) {
            char at[32];
            snprintf(at, sizeof(at), "/after/%zu", i);
            return err_at(err, ERR_INVALID, at, "there is no job %" PRId64, id);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

static int insert(struct store *st, const struct spec *spec, int64_t now_ms,
                  int64_t *ret_id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_ADD);
    stmt_text(&q, ":name", spec->name);
    stmt_text(&q, ":kind", spec->kind);
    stmt_json(&q, ":spec", spec->resolved);
    stmt_text(&q, ":signature", spec->signature);
    stmt_text(&q, ":dataset", spec->data.dataset);
    stmt_int(&q, ":cycles", spec->cycles);
    stmt_int(&q, ":parameters", spec_parameters(spec));
    stmt_int(&q, ":priority", spec->priority);
    stmt_json(&q, ":labels", json_object_get(spec->resolved, "labels"));
    stmt_json(&q, ":runtime", json_object_get(spec->resolved, "runtime"));
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    *ret_id = store_last_id(st);
    return 0;
}

int job_submit(struct store *st, const struct spec *spec, int64_t now_ms,
               int64_t *ret_id, struct err *err)
{
    int r = check_after(st, spec->after, err);
    if (r >= 0)
        r = dataset_exists(st, spec->data.dataset, err);
    if (r < 0)
        return r;

    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    int64_t id = 0;
    r = insert(st, spec, now_ms, &id, err);
    if (r >= 0)
        r = add_after(st, id, spec->after, err);
    if (r >= 0)
        r = event_add(
            st,
            &(struct event){
                .job = id, .step = -1, .kind = "submitted", .actor = "client"},
            now_ms, err, "job '%s' was submitted", spec->name);
    if (r >= 0)
        r = job_settle(st, id, true, now_ms, err);
    if (r >= 0)
        r = txn_commit(&txn, err);
    if (r < 0)
        return r;
    *ret_id = id;
    return 0;
}

/* Names of workers seen within a minute that have a device for it. */
static int able_workers(struct store *st, const char *device, int64_t now_ms,
                        json_t **ret, struct err *err)
{
    AUTO_JSON json_t *names = json_array();
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_RECENT);
    stmt_int(&q, ":since", now_ms - 60000);
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        AUTO_JSON json_t *devices = col_json(&q, 1);
        bool able = !strcmp(device, "auto");
        size_t i;
        json_t *d;
        json_array_foreach(devices, i, d)
        {
            const char *kind = json_string_value(json_object_get(d, "kind"));
            able |= kind && !strcmp(kind, device);
        }
        if (able)
            json_array_append_new(names, json_string(col_text(&q, 0)));
    }
    if (r < 0)
        return r;
    *ret = json_incref(names);
    return 0;
}

int job_dry_run(struct store *st, const struct spec *spec, int64_t now_ms,
                json_t **ret, struct err *err)
{
    int r = check_after(st, spec->after, err);
    if (r >= 0)
        r = dataset_exists(st, spec->data.dataset, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *data = NULL, *workers = NULL;
    char digest[DIGEST_HEX];
    int64_t records = 0;
    r = dataset_snapshot(st, &spec->data, &data, digest, &records, err);
    if (r < 0)
        return r;
    r = able_workers(st, spec->runtime.device, now_ms, &workers, err);
    if (r < 0)
        return r;
    *ret =
        json_pack("{sO ss sI sI sI ss sO}", "spec", spec->resolved, "signature",
                  spec->signature, "parameters", spec_parameters(spec),
                  "records", records, "steps", spec_steps(spec, records),
                  "data_digest", digest, "workers", workers);
    return 0;
}

/* ---- JSON ---- */

static json_t *text_or_null(const struct stmt *q, int i)
{
    return col_null(q, i) ? json_null() : json_string(col_text(q, i));
}

static json_t *int_or_null(const struct stmt *q, int i)
{
    return col_null(q, i) ? json_null() : json_integer(col_int(q, i));
}

enum { /* of JOB_SHOWN */
       C_NUMBER = 24,
       C_STEP,
       C_STEPS,
       C_EPOCH,
       C_RECORDS_DONE,
       C_RECORDS,
       C_EPOCHS,
       C_SPEED,
       C_STATE,
       C_FAILURES,
       C_LOST,
       C_NO_PROGRESS,
       C_SKIPPED,
       C_BAD,
       L_ID,
       L_WORKER,
       L_STAGE,
       L_STARTED,
       C_DONE,
};

static json_t *progress(const struct stmt *q)
{
    json_t *p = json_object();
    int64_t cycles = col_int(q, 6), step = col_int(q, C_STEP);
    int64_t steps = col_int(q, C_STEPS), done = col_int(q, C_RECORDS_DONE);
    int64_t total = col_int(q, C_RECORDS) * col_int(q, C_EPOCHS);
    bool frozen = !col_null(q, C_STEPS) && steps > 0;
    double fraction = frozen ? (double)step / (double)steps : 0;
    double speed = col_null(q, C_SPEED) ? 0 : col_real(q, C_SPEED);
    double left = (double)(total - done); /* records to go */
    if (cycles > 1) {
        double n = (double)col_int(q, C_DONE);
        bool open = col_null(q, C_NUMBER) || n < (double)col_int(q, C_NUMBER);
        fraction = (n + (open ? fraction : 0)) / (double)cycles;
        left += (double)total * ((double)cycles - n - 1);
    }
    json_object_set_new(p, "cycle", int_or_null(q, C_NUMBER));
    json_object_set_new(p, "cycles", json_integer(cycles));
    json_object_set_new(p, "epoch", json_integer(col_int(q, C_EPOCH)));
    json_object_set_new(p, "step", json_integer(step));
    json_object_set_new(p, "steps", int_or_null(q, C_STEPS));
    json_object_set_new(p, "records", json_integer(done));
    json_object_set_new(p, "records_total",
                        frozen ? json_integer(total) : json_null());
    json_object_set_new(p, "fraction", json_real(fraction));
    json_object_set_new(p, "records_per_s",
                        speed > 0 ? json_real(speed) : json_null());
    json_object_set_new(p, "eta_s",
                        speed > 0 && left >= 0 ? json_real(left / speed)
                                               : json_null());
    return p;
}

static json_t *job_json(const struct stmt *q, bool whole)
{
    json_t *j = json_object();
    json_object_set_new(j, "id", json_integer(col_int(q, 0)));
    json_object_set_new(j, "name", json_string(col_text(q, 1)));
    json_object_set_new(j, "kind", json_string(col_text(q, 2)));
    json_object_set_new(j, "state", json_string(col_text(q, 3)));
    json_object_set_new(j, "reason", text_or_null(q, 4));
    json_object_set_new(j, "signature", json_string(col_text(q, 5)));
    json_object_set_new(j, "priority", json_integer(col_int(q, 7)));
    json_object_set_new(j, "labels", col_json(q, 8));
    json_object_set_new(j, "version", json_integer(col_int(q, 9)));
    json_object_set_new(j, "created_at", when_json(col_int(q, 10)));
    json_object_set_new(j, "started_at", when_json(col_int(q, 11)));
    json_object_set_new(j, "ended_at", when_json(col_int(q, 12)));
    json_object_set_new(j, "progress", progress(q));
    bool order = !col_null(q, 13);
    json_t *exact = json_pack("{ss so}", "tier", order ? "order" : "bit",
                              "since_step", int_or_null(q, 13));
    if (order) {
        json_object_set_new(exact, "cycle", int_or_null(q, 14));
        json_object_set_new(exact, "reason", text_or_null(q, 15));
    }
    json_object_set_new(exact, "inexact_steps", json_integer(col_int(q, 16)));
    json_object_set_new(j, "exact", exact);
    json_object_set_new(j, "runtime", col_json(q, 17));
    json_object_set_new(j, "runtime_version", json_integer(col_int(q, 18)));
    if (!col_null(q, 19))
        json_object_set_new(j, "model_sha256", json_string(col_text(q, 19)));
    json_object_set_new(j, "dataset", json_string(col_text(q, 20)));
    json_object_set_new(j, "parameters", json_integer(col_int(q, 21)));
    if (!col_null(q, 22))
        json_object_set_new(j, "error", col_json(q, 22));
    if (!col_null(q, C_NUMBER)) {
        json_object_set_new(j, "cycle_state", text_or_null(q, C_STATE));
        json_object_set_new(j, "budgets",
                            json_pack("{sI sI sI}", "failures",
                                      col_int(q, C_FAILURES), "lost",
                                      col_int(q, C_LOST), "no_progress",
                                      col_int(q, C_NO_PROGRESS)));
        json_object_set_new(
            j, "data",
            json_pack("{sI so}", "skipped", col_int(q, C_SKIPPED), "bad",
                      col_null(q, C_BAD) ? json_array() : col_json(q, C_BAD)));
    }
    json_object_set_new(
        j, "lease",
        col_null(q, L_ID)
            ? json_null()
            : json_pack("{sI ss ss so}", "id", col_int(q, L_ID), "worker",
                        col_text(q, L_WORKER), "stage", col_text(q, L_STAGE),
                        "started_at", when_json(col_int(q, L_STARTED))));
    if (whole) {
        /* as it is now: priority, labels and policy may have changed since */
        json_t *spec = col_json(q, 23);
        json_object_set_new(spec, "priority", json_integer(col_int(q, 7)));
        json_object_set(spec, "labels", json_object_get(j, "labels"));
        json_object_set(spec, "runtime", json_object_get(j, "runtime"));
        json_object_set(j, "after", json_object_get(spec, "after"));
        json_object_set(j, "limits", json_object_get(spec, "limits"));
        json_object_set_new(j, "spec", spec);
    }
    return j;
}

int job_get(struct store *st, int64_t id, bool whole, json_t **ret,
            struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_GET);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no job %" PRId64, id);
    *ret = job_json(&q, whole);
    return 0;
}

int job_list(struct store *st, const struct job_filter *f, json_t **ret,
             struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_LIST);
    stmt_text(&q, ":state", f->state);
    stmt_text(&q, ":kind", f->kind);
    stmt_text(&q, ":q", f->q);
    stmt_text(&q, ":label", f->label);
    stmt_text(&q, ":value", f->label_value);
    stmt_int(&q, ":before", f->before ? f->before : INT64_MAX);
    stmt_int(&q, ":limit", f->limit + 1);
    AUTO_JSON json_t *items = json_array();
    int64_t last = 0;
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        if ((int64_t)json_array_size(items) == f->limit)
            break;
        last = col_int(&q, 0);
        json_array_append_new(items, job_json(&q, false));
    }
    if (r < 0)
        return r;
    *ret = page_json(json_incref(items), r > 0, last);
    return 0;
}

/* ---- patch ---- */

/* RFC 7396. */
static void merge_patch(json_t *to, const json_t *patch)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)patch, key, v)
    {
        json_t *old = json_object_get(to, key);
        if (json_is_null(v)) {
            json_object_del(to, key);
        } else if (json_is_object(v)) {
            if (!json_is_object(old)) {
                json_object_set_new(to, key, json_object());
                old = json_object_get(to, key);
            }
            merge_patch(old, v);
        } else {
            json_object_set(to, key, v);
        }
    }
}

/* The spec as it is now, ready to be changed. Caller owns. */
static json_t *current_spec(const struct job *j)
{
    json_t *spec = json_deep_copy(j->spec);
    json_object_set_new(spec, "priority", json_integer(j->priority));
    json_object_set(spec, "labels", j->labels);
    json_object_set(spec, "runtime", j->runtime);
    json_t *own = json_deep_copy(spec); /* shares nothing with the job */
    json_decref(spec);
    return own;
}

static int patched_spec(const struct job *j, const json_t *patch,
                        struct spec *ret, struct err *err)
{
    AUTO_JSON json_t *spec = current_spec(j);
    if (!spec)
        return err_set(err, ERR_NOMEM, "no memory");
    merge_patch(spec, patch);
    return spec_parse(spec, ret, err);
}

static int refuse_fixed(const struct job *j, const struct spec *new,
                        struct err *err)
{
    static const char *const fixed[] = {"name",  "kind",   "cycles",
                                        "after", "limits", NULL};
    char at[192];
    if (spec_semantics_diff(j->spec, new->resolved, at, sizeof(at)))
        return err_at(err, ERR_CONFLICT, at,
                      "%s is part of what is trained and cannot change once "
                      "the job is submitted; submit a new job",
                      at);
    for (int i = 0; fixed[i]; i++) {
        if (json_equal(json_object_get(j->spec, fixed[i]),
                       json_object_get(new->resolved, fixed[i])))
            continue;
        snprintf(at, sizeof(at), "/%s", fixed[i]);
        return err_at(err, ERR_CONFLICT, at,
                      "only runtime, priority and labels of a job may change, "
                      "not %s",
                      fixed[i]);
    }
    return 0;
}

/* Keys of the policy that the fingerprint knows. */
static const char *const exact_keys[] = {"device", "threads", "micro_batch",
                                         "padding", NULL};

static int has_state(struct store *st, int64_t job, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_HAS_STATE);
    stmt_int(&q, ":job", job);
    return stmt_row(&q, err);
}

static int refuse_inexact(struct store *st, const struct job *j,
                          const json_t *runtime, struct err *err)
{
    const char *exact = json_string_value(json_object_get(runtime, "exact"));
    const char *before =
        json_string_value(json_object_get(j->runtime, "exact"));
    if ((!exact || strcmp(exact, "require")) &&
        (!before || strcmp(before, "require")))
        return 0;
    for (int i = 0; exact_keys[i]; i++) {
        if (json_equal(json_object_get(j->runtime, exact_keys[i]),
                       json_object_get(runtime, exact_keys[i])))
            continue;
        int r = has_state(st, j->id, err);
        if (r <= 0)
            return r;
        char at[64];
        snprintf(at, sizeof(at), "/runtime/%s", exact_keys[i]);
        return err_at(err, ERR_CONFLICT, at,
                      "%s would end the bit-exact tier, and this job's "
                      "\"exact\": \"require\" forbids that",
                      exact_keys[i]);
    }
    return 0;
}

int job_patch(struct store *st, int64_t id, const json_t *patch, int64_t now_ms,
              struct err *err)
{
    if (!json_is_object(patch))
        return err_at(err, ERR_INVALID, "", "the body must be an object");
    CLEANUP(job_release) struct job j = {0};
    int r = job_load(st, id, &j, err);
    if (r < 0)
        return r;
    CLEANUP(spec_release) struct spec new = {0};
    r = patched_spec(&j, patch, &new, err);
    if (r < 0)
        return r;
    r = refuse_fixed(&j, &new, err);
    if (r < 0)
        return r;
    const json_t *runtime = json_object_get(new.resolved, "runtime");
    bool new_runtime = !json_equal(runtime, j.runtime);
    if (new_runtime) {
        r = refuse_inexact(st, &j, runtime, err);
        if (r < 0)
            return r;
    }
    const json_t *labels = json_object_get(new.resolved, "labels");
    if (!new_runtime && new.priority == j.priority &&
        json_equal(labels, j.labels))
        return 0;

    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_PATCH);
        stmt_int(&q, ":id", id);
        stmt_json(&q, ":runtime", runtime);
        stmt_int(&q, ":newer", new_runtime);
        stmt_int(&q, ":priority", new.priority);
        stmt_json(&q, ":labels", labels);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    AUTO_FREE char *text = json_dumps(patch, JSON_COMPACT);
    r = event_add(
        st,
        &(struct event){
            .job = id, .step = -1, .kind = "patched", .actor = "client"},
        now_ms, err, "changed: %.900s", text ? text : "");
    if (r >= 0) /* what no worker could do before, one may do now */
        r = job_settle(st, id, false, now_ms, err);
    if (r < 0)
        return r;
    store_notify(st, NOTIFY_JOB | NOTIFY_QUEUE);
    return txn_commit(&txn, err);
}

/* ---- what people ask for ---- */

static int open_job(struct store *st, int64_t id, struct job *ret,
                    struct err *err)
{
    int r = job_load(st, id, ret, err);
    if (r < 0)
        return r;
    if (job_ended(ret))
        return err_set(err, ERR_CONFLICT, "job %" PRId64 " is %s", id,
                       ret->state);
    return 0;
}

static int asked(struct store *st, const struct job *j, const char *kind,
                 const char *cause, int64_t now_ms, struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = set_asked(st, j, err);
    if (r >= 0)
        r = event_add(
            st,
            &(struct event){
                .job = j->id, .step = -1, .kind = kind, .actor = "client"},
            now_ms, err, "%s", cause);
    if (r >= 0)
        r = job_settle(st, j->id, false, now_ms, err);
    return r < 0 ? r : txn_commit(&txn, err);
}

int job_pause(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = open_job(st, id, &j, err);
    if (r < 0 || j.pause)
        return r;
    j.pause = true;
    return asked(st, &j, "paused", "pause was asked for", now_ms, err);
}

int job_resume(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = open_job(st, id, &j, err);
    if (r < 0 || !j.pause)
        return r;
    j.pause = false;
    store_notify(st, NOTIFY_QUEUE);
    return asked(st, &j, "unpaused", "resume was asked for", now_ms, err);
}

int job_cancel(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load(st, id, &j, err);
    if (r < 0)
        return r;
    if (!strcmp(j.state, "canceled"))
        return 0;
    if (job_ended(&j))
        return err_set(err, ERR_CONFLICT, "job %" PRId64 " is %s", id, j.state);
    if (j.cancel == 2)
        return 0;
    j.cancel++;
    return asked(st, &j, "cancel",
                 j.cancel == 1 ? "cancel was asked for"
                               : "cancel was asked for again: stop at once",
                 now_ms, err);
}

int job_complete(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load(st, id, &j, err);
    if (r < 0)
        return r;
    if (!strcmp(j.state, "completed"))
        return 0;
    if (job_ended(&j))
        return err_set(err, ERR_CONFLICT, "job %" PRId64 " is %s", id, j.state);
    struct cycle c;
    r = cycle_open(st, id, &c, err);
    if (r == 0)
        r = cycle_last_done(st, id, &c, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_CONFLICT,
                       "job %" PRId64 " has trained no cycle: there is no "
                       "model to complete with; cancel it instead",
                       id);
    if (j.complete)
        return 0;
    j.complete = true;
    return asked(st, &j, "complete",
                 "complete was asked for: no more cycles are started", now_ms,
                 err);
}

int job_retry(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load(st, id, &j, err);
    if (r < 0)
        return r;
    if (strcmp(j.state, "failed") && strcmp(j.state, "canceled"))
        return err_set(err, ERR_CONFLICT,
                       "job %" PRId64 " is %s: only a failed or canceled job "
                       "can be tried again",
                       id, j.state);
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_RETRY);
        stmt_int(&q, ":id", id);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_RETRY);
        stmt_int(&q, ":job", id);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    r = event_add(
        st,
        &(struct event){
            .job = id, .step = -1, .kind = "retried", .actor = "client"},
        now_ms, err, "retry was asked for");
    if (r >= 0)
        r = job_settle(st, id, false, now_ms, err);
    if (r < 0)
        return r;
    store_notify(st, NOTIFY_JOB | NOTIFY_QUEUE);
    return txn_commit(&txn, err);
}

int job_delete(struct store *st, int64_t id, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load(st, id, &j, err);
    if (r < 0)
        return r;
    if (!job_ended(&j))
        return err_set(err, ERR_CONFLICT,
                       "job %" PRId64 " is %s; cancel it first", id, j.state);
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_DEPENDENTS);
        stmt_int(&q, ":id", id);
        r = stmt_row(&q, err);
        if (r < 0)
            return r;
        if (r > 0)
            return err_set(err, ERR_CONFLICT,
                           "job %" PRId64 " comes after job %" PRId64,
                           col_int(&q, 0), id);
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_DELETE);
    stmt_int(&q, ":id", id);
    store_notify(st, NOTIFY_JOB);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* The job's spec with a cycle's own data and training. *ret NULL: nothing is
 * its own. */
static int own_spec(const struct job *j, const json_t *data,
                    const json_t *training, json_t **ret, struct err *err)
{
    if (!data && !training)
        return 0;
    AUTO_JSON json_t *spec = current_spec(j);
    if (!spec)
        return err_set(err, ERR_NOMEM, "no memory");
    if (data)
        merge_patch(json_object_get(spec, "data"), data);
    if (training)
        merge_patch(json_object_get(spec, "training"), training);
    CLEANUP(spec_release) struct spec parsed = {0};
    int r = spec_parse(spec, &parsed, err);
    if (r < 0)
        return r;
    *ret = json_incref(parsed.resolved);
    return 0;
}

int job_add_cycle(struct store *st, int64_t id, const json_t *body,
                  int64_t now_ms, int64_t *ret_number, struct err *err)
{
    struct json_read in;
    json_read_open(&in, body, "", err, "data", "training", NULL);
    const json_t *data = json_read_object(&in, "data");
    const json_t *training = json_read_object(&in, "training");
    if (in.r < 0)
        return in.r;
    CLEANUP(job_release) struct job j = {0};
    int r = open_job(st, id, &j, err);
    if (r < 0)
        return r;
    if (j.cycles > 0)
        return err_set(err, ERR_CONFLICT,
                       "job %" PRId64 " starts its %" PRId64 " cycle%s by "
                       "itself; only jobs with \"cycles\": 0 take more",
                       id, j.cycles, j.cycles == 1 ? "" : "s");
    if (j.complete || j.cancel)
        return err_set(err, ERR_CONFLICT, "job %" PRId64 " is about to end",
                       id);
    AUTO_JSON json_t *own = NULL;
    r = own_spec(&j, data, training, &own, err);
    if (r < 0)
        return r;
    if (own) {
        const char *name = json_string_value(
            json_object_get(json_object_get(own, "data"), "dataset"));
        r = dataset_exists(st, name ? name : "", err);
        if (r < 0)
            return r;
    }
    int64_t number = 0;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_NEXT);
        stmt_int(&q, ":job", id);
        r = stmt_row(&q, err);
        if (r < 0)
            return r;
        number = col_int(&q, 0);
    }
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = cycle_add(st, id, number, own, now_ms, err);
    int64_t added = store_last_id(st);
    struct cycle first;
    if (r >= 0)
        r = cycle_open(st, id, &first, err);
    if (r >= 0 && first.number < number) {
        /* it is behind another: the job goes on with that one */
        char why[64];
        snprintf(why, sizeof(why), "waits for the end of cycle %" PRId64,
                 number - 1);
        r = cycle_reason(st, added, why, err);
    }
    if (r >= 0)
        r = event_add(st,
                      &(struct event){.job = id,
                                      .cycle = number,
                                      .step = -1,
                                      .kind = "cycle",
                                      .actor = "client"},
                      now_ms, err, "cycle %" PRId64 " was asked for", number);
    if (r >= 0)
        r = job_settle(st, id, true, now_ms, err);
    if (r >= 0)
        r = txn_commit(&txn, err);
    if (r < 0)
        return r;
    *ret_number = number;
    return 0;
}
