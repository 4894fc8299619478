#include "server/job.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/cycle.h"
#include "server/event.h"
#include "server/snapshot.h"

/* ---- rows ---- */

int job_load(struct store *st, int64_t id, struct job *ret, struct err *err)
{
    return job_load_part(st, id, JOB_SPEC | JOB_RUNTIME | JOB_LABELS, ret, err);
}

int job_load_part(struct store *st, int64_t id, unsigned parts, struct job *ret,
                  struct err *err)
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
        .not_before_ms = col_int(&q, 14),
        .edit = col_int(&q, 15),
        .spec = parts & JOB_SPEC ? col_json(&q, 11) : NULL,
        .runtime = parts & JOB_RUNTIME ? col_json(&q, 12) : NULL,
        .labels = parts & JOB_LABELS ? col_json(&q, 13) : NULL,
    };
    snprintf(ret->state, sizeof(ret->state), "%s", col_text(&q, 9));
    snprintf(ret->dataset, sizeof(ret->dataset), "%s", col_text(&q, 10));
    if ((parts & JOB_SPEC && !ret->spec) ||
        (parts & JOB_RUNTIME && !ret->runtime) ||
        (parts & JOB_LABELS && !ret->labels)) {
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

bool job_ended(const struct job *j)
{
    return !strcmp(j->state, "completed") || !strcmp(j->state, "failed") ||
           !strcmp(j->state, "canceled");
}

int job_touch(struct store *st, int64_t id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_TOUCH);
    stmt_int(&q, ":id", id);
    store_notify(st, NOTIFY_JOB);
    int64_t n = stmt_run(&q, err);
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
        bool ended;
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_AFTER_ADD);
        stmt_int(&q, ":job", id);
        stmt_int(&q, ":after", spec_after(one, &ended));
        stmt_int(&q, ":ended", ended);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return 0;
}

int job_check(struct store *st, const struct spec *spec, struct err *err)
{
    size_t i;
    json_t *one;
    json_array_foreach(spec->after, i, one)
    {
        CLEANUP(job_release) struct job other = {0};
        int64_t id = spec_after(one, NULL);
        int r = job_load_part(st, id, 0, &other, err);
        if (r == ERR_NOT_FOUND) {
            char at[32];
            snprintf(at, sizeof(at), "/after/%zu", i);
            return err_at(err, ERR_INVALID, at,
                          "there is no job %" PRId64 "; a job comes after jobs "
                          "that are there before it, so that none can come to "
                          "wait for itself",
                          id);
        }
        if (r < 0)
            return r;
    }
    return snapshot_check(st, spec, err);
}

static int insert(struct store *st, const struct spec *spec, int64_t sweep,
                  const json_t *values, int64_t now_ms, int64_t *ret_id,
                  struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_ADD);
    stmt_text(&q, ":name", spec->name);
    stmt_text(&q, ":kind", spec->kind);
    stmt_json(&q, ":spec", spec->resolved);
    stmt_text(&q, ":signature", spec->signature);
    stmt_text(&q, ":dataset", spec->data.dataset ? spec->data.dataset : "");
    stmt_int(&q, ":cycles", spec->cycles);
    stmt_int(&q, ":parameters", spec_parameters(spec));
    stmt_int(&q, ":priority", spec->priority);
    stmt_json(&q, ":labels", json_object_get(spec->resolved, "labels"));
    stmt_json(&q, ":runtime", json_object_get(spec->resolved, "runtime"));
    if (spec->not_before_ms)
        stmt_int(&q, ":not_before", spec->not_before_ms);
    if (sweep) {
        stmt_int(&q, ":sweep", sweep);
        stmt_json(&q, ":values", values);
    }
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    *ret_id = store_last_id(st);
    return 0;
}

int job_add(struct store *st, const struct spec *spec, int64_t sweep,
            const json_t *values, int64_t now_ms, int64_t *ret_id,
            struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    int64_t id = 0;
    r = insert(st, spec, sweep, values, now_ms, &id, err);
    if (r >= 0)
        r = add_after(st, id, spec->after, err);
    struct event e = {
        .job = id, .step = -1, .kind = "submitted", .actor = "client"};
    if (r >= 0 && sweep)
        r = event_add(st, &e, now_ms, err,
                      "job '%s' was submitted, of sweep %" PRId64, spec->name,
                      sweep);
    else if (r >= 0)
        r = event_add(st, &e, now_ms, err, "job '%s' was submitted",
                      spec->name);
    if (r >= 0)
        r = job_settle(st, id, true, now_ms, err);
    if (r >= 0)
        r = txn_commit(&txn, err);
    if (r < 0)
        return r;
    *ret_id = id;
    return 0;
}

int job_submit(struct store *st, const struct spec *spec, int64_t now_ms,
               int64_t *ret_id, struct err *err)
{
    int r = job_check(st, spec, err);
    return r < 0 ? r : job_add(st, spec, 0, NULL, now_ms, ret_id, err);
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
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_AFTER_GONE);
        stmt_int(&q, ":id", id);
        r = stmt_row(&q, err);
        if (r < 0)
            return r;
        if (r > 0)
            return err_set(err, ERR_CONFLICT,
                           "job %" PRId64 " comes after job %" PRId64
                           ", which did not complete and was deleted: submit "
                           "it anew",
                           id, col_int(&q, 0));
    }
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_DOUBT);
        stmt_int(&q, ":job", id);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
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
    if (r >= 0)
        r = job_settle_dependents(st, id, now_ms, err);
    if (r < 0)
        return r;
    store_notify(st, NOTIFY_JOB | NOTIFY_QUEUE);
    return txn_commit(&txn, err);
}

/* A job that waits for the completion of one that did not complete: 1. */
static int waited_for(struct store *st, int64_t id, int64_t *ret,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_DEPENDENTS);
    stmt_int(&q, ":id", id);
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        if (!col_int(&q, 1)) {
            *ret = col_int(&q, 0);
            return 1;
        }
    return r;
}

int job_delete(struct store *st, int64_t id, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load_part(st, id, 0, &j, err);
    if (r < 0)
        return r;
    if (!job_ended(&j))
        return err_set(err, ERR_CONFLICT,
                       "job %" PRId64 " is %s; cancel it first", id, j.state);
    bool completed = !strcmp(j.state, "completed");
    int64_t waits = 0;
    r = completed ? 0 : waited_for(st, id, &waits, err);
    if (r < 0)
        return r;
    if (r > 0)
        return err_set(err, ERR_CONFLICT,
                       "job %" PRId64 " comes after job %" PRId64
                       ", which can be tried again: cancel that one first",
                       waits, id);
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_AFTER_MET);
        stmt_int(&q, ":id", id);
        stmt_int(&q, ":completed", completed);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SWEEP_EMPTY);
        stmt_int(&q, ":job", id);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_DELETE);
        stmt_int(&q, ":id", id);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    store_notify(st, NOTIFY_JOB);
    return txn_commit(&txn, err);
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
    r = job_own_spec(&j, data, training, &own, err);
    if (r < 0)
        return r;
    if (own) {
        CLEANUP(spec_release) struct spec spec = {0};
        r = spec_parse(own, &spec, err);
        if (r >= 0)
            r = snapshot_check(st, &spec, err);
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
        if (r >= 0)
            r = cycle_check_data(st, added, err);
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
