#include "server/lease.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/json_read.h"
#include "schema/spec.h"
#include "schema/wire.h"
#include "server/checkpoint.h"
#include "server/cycle.h"
#include "server/dataset.h"
#include "server/event.h"
#include "server/job.h"
#include "server/metric.h"
#include "server/when.h"

struct lease_timing lease_timing = {WIRE_HEARTBEAT_S * 1000,
                                    WIRE_EXPIRY_S * 1000};

#define BACKOFF_FIRST_MS 1000
#define BACKOFF_MAX_MS 60000
#define LOAD_DEATHS_MAX 2
#define CANDIDATES_MAX 256

enum { COUNTED_LOST = 1, COUNTED_NO_PROGRESS = 2 };

struct lease {
    int64_t id, job, cycle, token, worker_id;
    int64_t checkpoint, initial; /* where it went on; 0: none */
    int64_t from_step, best_before, step, epoch, records, micro_batches, seq;
    int64_t saved, runtime_version, threads, counted;
    int64_t exact_since, exact_cycle; /* since -1: bit-exact */
    bool expired, drain, local;
    char outcome[12]; /* "": live */
    char stage[12], worker[129], device[16], reason[256];
    char exact_why[512];
    json_t *fingerprint, *answer;
};

static void lease_free(struct lease *l)
{
    json_decref(l->fingerprint);
    json_decref(l->answer);
    l->fingerprint = l->answer = NULL;
}

static int lease_row(struct stmt *q, struct lease *l, struct err *err)
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
    };
    snprintf(l->exact_why, sizeof(l->exact_why), "%s", col_text(q, 20));
    snprintf(l->outcome, sizeof(l->outcome), "%s", col_text(q, 22));
    snprintf(l->stage, sizeof(l->stage), "%s", col_text(q, 23));
    snprintf(l->worker, sizeof(l->worker), "%s", col_text(q, 24));
    snprintf(l->device, sizeof(l->device), "%s", col_text(q, 25));
    snprintf(l->reason, sizeof(l->reason), "%s", col_text(q, 28));
    return 1;
}

static int lease_load(struct store *st, int64_t id, struct lease *ret,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_LOAD);
    stmt_int(&q, ":id", id);
    int r = lease_row(&q, ret, err);
    return r ? r
             : err_set(err, ERR_NOT_FOUND, "there is no lease %" PRId64, id);
}

/* ---- is it live? ---- */

static int stale(const struct lease *l, struct err *err)
{
    return err_set(err, ERR_STALE,
                   "lease %" PRId64 " has ended (%s%s%.200s): its cycle is no "
                   "longer this worker's",
                   l->id, l->outcome, l->reason[0] ? ": " : "", l->reason);
}

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
    r = job_load(st, l->job, &j, err);
    return r < 0 ? r : !strcmp(j.state, "queued");
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
    return r < 0 ? r : r ? 0 : stale(&l, err);
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
    l->outcome[0] = '\0';
    r = event_add(st,
                  &(struct event){.job = l->job,
                                  .lease = l->id,
                                  .cycle = c->number,
                                  .step = l->step,
                                  .kind = "resumed",
                                  .actor = l->worker},
                  now_ms, err,
                  "worker %s is back before anyone else took the cycle, and "
                  "keeps it",
                  l->worker);
    return r < 0 ? r : job_settle(st, l->job, false, now_ms, err);
}

/* The lease of a write, live; or ERR_STALE with nothing changed. */
static int lease_live(struct store *st, int64_t id, int64_t token,
                      int64_t now_ms, struct lease *l, struct err *err)
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
        return r < 0 ? r : stale(l, err);
    return come_back(st, l, &c, now_ms, err);
}

/* ---- where a cycle goes on ---- */

struct start {
    struct checkpoint from; /* id 0: from the start */
    bool initial;           /* it is the end of the cycle before */
    int64_t step, epoch, records;
};

static void start_release(struct start *s)
{
    checkpoint_release(&s->from);
}

static int find_start(struct store *st, const struct cycle *c,
                      struct start *ret, struct err *err)
{
    *ret = (struct start){0};
    int r = checkpoint_newest(st, c->id, &ret->from, err);
    if (r < 0)
        return r;
    if (r > 0) {
        ret->step = ret->from.step;
        ret->epoch = ret->from.epoch;
        ret->records = ret->from.records;
        return 0;
    }
    if (!c->initial)
        return 0;
    ret->initial = true;
    return checkpoint_load(st, c->initial, &ret->from, err);
}

/* ---- claim ---- */

struct fit { /* a cycle that this worker can train, and how */
    struct cycle c;
    struct start start;
    const char *device;
    int64_t threads;
    bool threads_auto, changed;
    int64_t exact_since, exact_cycle;
    char exact_why[512], diff[1024];
    json_t *fingerprint;
    int64_t runtime_version;
};

static void fit_release(struct fit *f)
{
    start_release(&f->start);
    json_decref(f->fingerprint);
    f->fingerprint = NULL;
}

static const char *text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

/* Can the worker train it? 1, or 0 with the job's reason set. */
static int fits(struct store *st, int64_t cycle, const struct worker_claim *w,
                struct fit *f, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = cycle_load(st, cycle, &f->c, err);
    if (r >= 0)
        r = job_load(st, f->c.job, &j, err);
    if (r < 0)
        return r;
    const char *wanted = text_of(j.runtime, "device");
    char why[1200];
    f->device = worker_device(w, wanted);
    if (!f->device) {
        snprintf(why, sizeof(why), "waits for a worker with a %s device",
                 wanted);
        r = job_say_why(st, j.id, why, err);
        return r < 0 ? r : 0;
    }
    r = find_start(st, &f->c, &f->start, err);
    if (r < 0)
        return r;
    int64_t threads = json_integer_value(json_object_get(j.runtime, "threads"));
    f->threads_auto = threads == 0;
    f->threads = threads > 0 ? threads : j.threads > 0 ? j.threads : w->cpus;
    f->runtime_version = j.runtime_version;
    f->fingerprint =
        fingerprint_compose(w->library, f->device, f->threads, j.runtime);
    f->exact_since = -1;
    if (!f->start.from.id)
        return 1;

    /* exactness follows the state: what saved it, and how exact it was */
    const struct checkpoint *from = &f->start.from;
    f->exact_since = from->exact_since;
    f->exact_cycle = from->exact_cycle;
    snprintf(f->exact_why, sizeof(f->exact_why), "%s", from->exact_why);
    f->changed = fingerprint_diff(from->fingerprint, f->fingerprint, f->diff,
                                  sizeof(f->diff)) > 0;
    if (f->changed && !strcmp(text_of(j.runtime, "exact"), "require")) {
        snprintf(why, sizeof(why),
                 "waits for a worker with the fingerprint of its state "
                 "(\"exact\": \"require\"); worker %s differs: %.900s",
                 w->name, f->diff);
        r = job_say_why(st, j.id, why, err);
        return r < 0 ? r : 0;
    }
    if (f->changed && f->exact_since < 0) {
        f->exact_since = f->start.step;
        f->exact_cycle = f->c.number;
        snprintf(f->exact_why, sizeof(f->exact_why), "%.500s", f->diff);
    }
    return 1;
}

static int add_lease(struct store *st, const struct fit *f,
                     const struct worker_claim *w, int64_t worker_id,
                     int64_t now_ms, int64_t mono_ms, int64_t *ret_id,
                     struct err *err)
{
    CLEANUP(buf_release) struct buf fingerprint = {0};
    if (json_canonical(f->fingerprint, &fingerprint) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a fingerprint");
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_ADD);
    stmt_int(&q, ":job", f->c.job);
    stmt_int(&q, ":cycle", f->c.id);
    stmt_int(&q, ":token", f->c.token + 1);
    stmt_int(&q, ":worker_id", worker_id);
    stmt_text(&q, ":worker", w->name);
    stmt_text(&q, ":claim", w->claim);
    stmt_text(&q, ":device", f->device);
    stmt_int(&q, ":threads", f->threads);
    stmt_text(&q, ":fingerprint", fingerprint.data);
    stmt_int(&q, ":runtime_version", f->runtime_version);
    if (f->start.from.id)
        stmt_int(&q, f->start.initial ? ":initial" : ":checkpoint",
                 f->start.from.id);
    stmt_int(&q, ":from", f->start.step);
    stmt_int(&q, ":epoch", f->start.epoch);
    stmt_int(&q, ":records", f->start.records);
    stmt_int(&q, ":best", f->c.best_step);
    if (f->exact_since >= 0) {
        stmt_int(&q, ":since", f->exact_since);
        stmt_int(&q, ":since_cycle", f->exact_cycle);
        stmt_text(&q, ":why", f->exact_why);
    }
    stmt_int(&q, ":now", now_ms);
    stmt_int(&q, ":mono", mono_ms);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    *ret_id = store_last_id(st);
    return 0;
}

static int mark_leased(struct store *st, const struct fit *f, int64_t now_ms,
                       struct err *err)
{
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_LEASE);
        stmt_int(&q, ":id", f->c.id);
        stmt_int(&q, ":step", f->start.step);
        stmt_int(&q, ":epoch", f->start.epoch);
        stmt_int(&q, ":records", f->start.records);
        stmt_int(&q, ":now", now_ms);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_LEASED);
    stmt_int(&q, ":id", f->c.job);
    if (f->threads_auto)
        stmt_int(&q, ":threads", f->threads);
    if (f->exact_since >= 0) {
        stmt_int(&q, ":since", f->exact_since);
        stmt_int(&q, ":since_cycle", f->exact_cycle);
        stmt_text(&q, ":why", f->exact_why);
    }
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int say_claimed(struct store *st, const struct fit *f,
                       const struct worker_claim *w, int64_t lease,
                       int64_t now_ms, struct err *err)
{
    struct event e = {.job = f->c.job,
                      .lease = lease,
                      .cycle = f->c.number,
                      .step = f->start.step,
                      .kind = f->c.token ? "resumed" : "started",
                      .actor = w->name};
    int r;
    if (f->c.token)
        r = event_add(st, &e, now_ms, err,
                      "worker %s goes on at step %" PRId64 "%s", w->name,
                      f->start.step, f->start.from.id ? "" : ", the start");
    else
        r = event_add(st, &e, now_ms, err,
                      "worker %s starts cycle %" PRId64 " of %" PRId64
                      " steps on %s",
                      w->name, f->c.number, f->c.steps, f->device);
    if (r < 0 || !f->changed)
        return r;
    e.kind = "order";
    return event_add(st, &e, now_ms, err,
                     "order-exact from step %" PRId64
                     " on: the fingerprint changed (%.900s)",
                     f->start.step, f->diff);
}

static int take_cycle(struct store *st, const struct fit *f,
                      const struct worker_claim *w, int64_t worker_id,
                      int64_t now_ms, int64_t mono_ms, int64_t *ret_id,
                      struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = add_lease(st, f, w, worker_id, now_ms, mono_ms, ret_id, err);
    if (r >= 0)
        r = mark_leased(st, f, now_ms, err);
    if (r >= 0)
        r = metric_archive(st, f->c.id, f->start.step, err);
    if (r >= 0)
        r = say_claimed(st, f, w, *ret_id, now_ms, err);
    if (r >= 0)
        r = job_settle(st, f->c.job, false, now_ms, err);
    if (r < 0)
        return r;
    store_notify(st, NOTIFY_JOB | NOTIFY_WORKER);
    return txn_commit(&txn, err);
}

static int snapshot(struct store *st, int64_t cycle, json_t **ret,
                    struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SNAPSHOT_GET);
    stmt_int(&q, ":cycle", cycle);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = col_json(&q, 0);
    if (r < 0 || *ret)
        return r < 0 ? r : 0;
    return err_set(err, ERR_DB, "the data snapshot of a cycle is gone");
}

static json_t *seconds(int64_t ms)
{
    return ms % 1000 ? json_real((double)ms / 1000) : json_integer(ms / 1000);
}

static int point_json(struct store *st, int64_t id, json_t **ret,
                      struct err *err)
{
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    int r = checkpoint_load(st, id, &c, err);
    if (r < 0)
        return r;
    *ret = json_pack("{sI ss sO}", "id", c.id, "digest", c.digest, "manifest",
                     c.manifest);
    return 0;
}

/* The claim's answer: all from what is stored, so a repeat gets the same. */
static int claim_answer(struct store *st, const struct lease *l, json_t **ret,
                        struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    CLEANUP(spec_release) struct spec spec = {0};
    struct cycle c;
    AUTO_JSON json_t *data = NULL;
    int r = job_load(st, l->job, &j, err);
    if (r >= 0)
        r = cycle_load(st, l->cycle, &c, err);
    if (r >= 0)
        r = cycle_spec(st, &c, &spec, err);
    if (r >= 0)
        r = snapshot(st, l->cycle, &data, err);
    if (r < 0)
        return r;
    dataset_snapshot_place(st, data);
    AUTO_JSON json_t *resolved = json_copy(spec.resolved);
    json_object_set(resolved, "runtime", j.runtime);
    AUTO_JSON json_t *a = json_pack(
        "{s{sIsIsIsIsI} so so sO sO sI ss sI ss sI sI sI sO sO}", "lease", "id",
        l->id, "token", l->token, "cycle_id", l->cycle, "job", l->job, "cycle",
        c.number, "heartbeat_s", seconds(lease_timing.heartbeat_ms), "expiry_s",
        seconds(lease_timing.expiry_ms), "spec", resolved, "runtime", j.runtime,
        "runtime_version", j.runtime_version, "device", l->device, "threads",
        l->threads, "signature", c.signature, "steps", c.steps, "records",
        c.records, "step_base", c.step_base, "fingerprint", l->fingerprint,
        "data", data);
    if (!a)
        return err_set(err, ERR_NOMEM, "no memory for a claim");
    if (l->checkpoint || l->initial) {
        json_t *point = NULL;
        r = point_json(st, l->checkpoint ? l->checkpoint : l->initial, &point,
                       err);
        if (r < 0)
            return r;
        json_object_set_new(a, l->checkpoint ? "checkpoint" : "initial", point);
    }
    *ret = json_incref(a);
    return 0;
}

static int by_claim(struct store *st, const char *claim, struct lease *ret,
                    struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_BY_CLAIM);
    stmt_text(&q, ":claim", claim);
    return lease_row(&q, ret, err);
}

static int candidates(struct store *st, int64_t *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_CANDIDATES);
    stmt_int(&q, ":limit", CANDIDATES_MAX);
    int n = 0, r;
    while ((r = stmt_row(&q, err)) > 0)
        ret[n++] = col_int(&q, 0);
    return r < 0 ? r : n;
}

int lease_claim(struct store *st, const struct worker_claim *in, int64_t now_ms,
                int64_t mono_ms, json_t **ret, struct err *err)
{
    int64_t worker_id, id = 0;
    bool drained;
    int r = worker_seen(st, in, now_ms, &worker_id, &drained, err);
    if (r < 0)
        return r;
    {
        CLEANUP(lease_free) struct lease old = {0};
        r = by_claim(st, in->claim, &old, err);
        if (r < 0)
            return r;
        if (r > 0 && old.outcome[0])
            return stale(&old, err);
        if (r > 0) {
            r = claim_answer(st, &old, ret, err);
            return r < 0 ? r : 1;
        }
    }
    if (drained)
        return 0;
    r = lease_tick(st, now_ms, mono_ms, err);
    if (r < 0)
        return r;
    int64_t cycles[CANDIDATES_MAX];
    int n = candidates(st, cycles, err);
    if (n < 0)
        return n;
    for (int i = 0; i < n && !id; i++) {
        CLEANUP(fit_release) struct fit f = {0};
        r = fits(st, cycles[i], in, &f, err);
        if (r > 0)
            r = take_cycle(st, &f, in, worker_id, now_ms, mono_ms, &id, err);
        if (r < 0)
            return r;
    }
    if (!id)
        return 0;
    CLEANUP(lease_free) struct lease l = {0};
    r = lease_load(st, id, &l, err);
    if (r >= 0)
        r = claim_answer(st, &l, ret, err);
    return r < 0 ? r : 1;
}

/* ---- reports ---- */

static int64_t peak(const json_t *rows, const char *name)
{
    int64_t most = -1;
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        const json_t *v = json_object_get(row, name);
        if (json_is_integer(v) && json_integer_value(v) > most)
            most = json_integer_value(v);
    }
    return most;
}

static void peak_bind(struct stmt *q, const char *bind, const json_t *rows,
                      const char *name)
{
    int64_t most = peak(rows, name);
    if (most >= 0)
        stmt_int(q, bind, most);
}

static int note_inexact(struct store *st, const struct lease *l,
                        const struct cycle *c, int64_t n, const char *what,
                        int64_t now_ms, struct err *err)
{
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_INEXACT);
        stmt_int(&q, ":id", l->job);
        stmt_int(&q, ":n", n);
        int64_t changed = stmt_run(&q, err);
        if (changed < 0)
            return (int)changed;
    }
    return event_add(st,
                     &(struct event){.job = l->job,
                                     .lease = l->id,
                                     .cycle = c->number,
                                     .step = l->step,
                                     .kind = "inexact",
                                     .actor = l->worker},
                     now_ms, err, "%s%s", what,
                     n > 1 ? ", and more values beside it" : "");
}

/* Write down what a worker reported; l and c follow the position. */
static int apply(struct store *st, struct lease *l, struct cycle *c,
                 const struct report *in, int64_t now_ms, int64_t mono_ms,
                 struct err *err)
{
    char what[300];
    int64_t differ = 0;
    int r = metric_add(st, c->id, l->id, in->metrics, &differ, what,
                       sizeof(what), err);
    if (r >= 0 && differ)
        r = note_inexact(st, l, c, differ, what, now_ms, err);
    if (r >= 0)
        r = memory_add(st, l->job, l->id, in->memory, err);
    if (r >= 0)
        r = log_add(st, l->job, l->id, in->logs, err);
    if (r < 0)
        return r;
    if (in->position.given) {
        l->step = in->position.step;
        l->epoch = in->position.epoch;
        l->records = in->position.records;
        l->micro_batches = in->position.micro_batches;
    }
    if (l->step > c->best_step)
        c->best_step = l->step;
    if (in->stage && strcmp(in->stage, "load") && !strcmp(l->stage, "load") &&
        l->checkpoint) {
        r = checkpoint_loaded(st, l->checkpoint, err);
        if (r < 0)
            return r;
    }
    if (in->stage)
        snprintf(l->stage, sizeof(l->stage), "%s", in->stage);
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_REPORT);
        stmt_int(&q, ":id", c->id);
        stmt_int(&q, ":step", l->step);
        stmt_int(&q, ":epoch", l->epoch);
        stmt_int(&q, ":records", l->records);
        stmt_int(&q, ":best", c->best_step);
        if (in->records_per_s >= 0)
            stmt_real(&q, ":speed", in->records_per_s);
        if (in->skipped >= 0)
            stmt_int(&q, ":skipped", in->skipped);
        if (in->bad)
            stmt_json(&q, ":bad", in->bad);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_REPORT);
    stmt_int(&q, ":id", l->id);
    stmt_int(&q, ":step", l->step);
    stmt_int(&q, ":epoch", l->epoch);
    stmt_int(&q, ":records", l->records);
    stmt_int(&q, ":micro_batches", l->micro_batches);
    stmt_text(&q, ":stage", l->stage);
    stmt_int(&q, ":seq", in->seq > l->seq ? in->seq : l->seq);
    peak_bind(&q, ":allocated", in->memory, "allocated_bytes");
    peak_bind(&q, ":device", in->memory, "device_bytes");
    peak_bind(&q, ":rss", in->memory, "rss_bytes");
    stmt_int(&q, ":now", now_ms);
    stmt_int(&q, ":mono", mono_ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int heard(struct store *st, int64_t id, int64_t now_ms, int64_t mono_ms,
                 struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_HEARD);
    stmt_int(&q, ":id", id);
    stmt_int(&q, ":now", now_ms);
    stmt_int(&q, ":mono", mono_ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* Would the newest policy give this worker another fingerprint? Then it must
 * not change under way: a lease has one fingerprint. */
static bool policy_moves(const struct lease *l, const json_t *runtime)
{
    const char *device = text_of(runtime, "device");
    int64_t threads = json_integer_value(json_object_get(runtime, "threads"));
    return (strcmp(device, "auto") && strcmp(device, l->device)) ||
           (threads > 0 && threads != l->threads) ||
           !json_equal(json_object_get(runtime, "micro_batch"),
                       json_object_get(l->fingerprint, "micro_batch")) ||
           !json_equal(json_object_get(runtime, "padding"),
                       json_object_get(l->fingerprint, "padding"));
}

static int told(struct store *st, int64_t id, const char *why, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_TOLD);
    stmt_int(&q, ":id", id);
    stmt_text(&q, ":why", why);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int lease_heartbeat(struct store *st, int64_t id, int64_t token,
                    const struct report *in, bool shutting_down, int64_t now_ms,
                    int64_t mono_ms, json_t **ret, struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    CLEANUP(lease_free) struct lease l = {0};
    CLEANUP(job_release) struct job j = {0};
    struct cycle c;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = lease_live(st, id, token, now_ms, &l, err);
    if (r >= 0)
        r = cycle_load(st, l.cycle, &c, err);
    if (r < 0)
        return r;
    if (in->position.given && c.steps >= 0 && in->position.step > c.steps)
        return err_at(err, ERR_INVALID, "/position/step",
                      "the cycle has only %" PRId64 " steps", c.steps);
    if (in->seq > 0 && in->seq <= l.seq) {
        r = heard(st, id, now_ms, mono_ms, err);
    } else {
        r = apply(st, &l, &c, in, now_ms, mono_ms, err);
        if (r >= 0)
            r = job_touch(st, l.job, err);
    }
    if (r >= 0)
        r = job_load(st, l.job, &j, err);
    if (r < 0)
        return r;

    const char *what = "continue", *reason = NULL, *why = NULL;
    bool newer = j.runtime_version > l.runtime_version;
    bool moves = newer && policy_moves(&l, j.runtime);
    if (j.cancel > 1) {
        what = "stop";
        reason = why = "cancel";
    } else if (j.cancel) {
        what = "yield";
        reason = why = "cancel";
    } else if (j.pause) {
        what = "yield";
        reason = why = "pause";
    } else if (l.drain || (shutting_down && l.local)) {
        what = "yield";
        reason = "drain";
        why = l.drain ? "the worker is drained" : "the server is stopping";
    } else if (moves) {
        what = "yield";
        reason = "drain";
        why = "the runtime policy changed";
    }
    if (why) {
        r = told(st, id, why, err);
        if (r < 0)
            return r;
    }
    AUTO_JSON json_t *a =
        json_pack("{ss sI}", "do", what, "runtime_version", j.runtime_version);
    if (reason)
        json_object_set_new(a, "reason", json_string(reason));
    if (newer && !moves) /* each time: an answer may have been lost */
        json_object_set(a, "runtime", j.runtime);
    r = txn_commit(&txn, err);
    if (r < 0)
        return r;
    *ret = json_incref(a);
    return 0;
}

/* ---- how a lease ends ---- */

struct ending {
    const char *outcome, *reason, *detail, *evidence;
    const json_t *error, *answer;
    bool expired;
    int64_t counted;
};

static int end_lease(struct store *st, struct lease *l, const struct ending *e,
                     int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_END);
    stmt_int(&q, ":id", l->id);
    stmt_text(&q, ":outcome", e->outcome);
    stmt_text(&q, ":reason", e->reason);
    stmt_text(&q, ":detail", e->detail);
    stmt_text(&q, ":evidence", e->evidence);
    stmt_json(&q, ":error", e->error);
    stmt_json(&q, ":answer", e->answer);
    stmt_int(&q, ":expired", e->expired);
    stmt_int(&q, ":counted", e->counted);
    stmt_int(&q, ":now", now_ms);
    store_notify(st, NOTIFY_JOB | NOTIFY_WORKER);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* The first retry is immediate, then 1 s doubling to 60 s, and up to a quarter
 * more so that jobs that fell together do not rise together. */
static int64_t backoff_ms(int64_t n, int64_t seed)
{
    if (n <= 1)
        return 0;
    int64_t ms = BACKOFF_MAX_MS;
    if (n - 2 < 6)
        ms = (int64_t)BACKOFF_FIRST_MS << (n - 2);
    if (ms > BACKOFF_MAX_MS)
        ms = BACKOFF_MAX_MS;
    uint64_t h = (uint64_t)seed * 0x9e3779b97f4a7c15u;
    return ms + (int64_t)((h >> 33) % (uint64_t)(ms / 4 + 1));
}

static int64_t limit_of(const struct job *j, const char *name)
{
    return json_integer_value(
        json_object_get(json_object_get(j->spec, "limits"), name));
}

static json_t *error_json(const char *code, const char *detail,
                          const char *evidence)
{
    return json_pack("{ss ss ss*}", "code", code, "detail", detail, "evidence",
                     evidence);
}

/* Has the lease come further than any before it? Counts it when not. */
static int64_t count_progress(const struct lease *l, struct cycle *c)
{
    if (c->best_step > l->best_before) {
        c->no_progress = 0;
        return 0;
    }
    c->no_progress++;
    return COUNTED_NO_PROGRESS;
}

/* Too many leases in a row without progress: the job fails. 1 when so. */
static int check_no_progress(struct store *st, const struct job *j,
                             const struct lease *l, const struct cycle *c,
                             const char *last, const char *evidence,
                             int64_t now_ms, struct err *err)
{
    int64_t limit = limit_of(j, "no_progress");
    if (limit <= 0 || c->no_progress < limit)
        return 0;
    char why[1024];
    snprintf(why, sizeof(why),
             "%" PRId64 " leases in a row got no further than step %" PRId64
             "; the last one: %.700s",
             c->no_progress, c->best_step, last);
    AUTO_JSON json_t *error = error_json("no_progress", why, evidence);
    int r = job_fail(st, l->job, why, error, now_ms, err);
    return r < 0 ? r : 1;
}

/* After a death while loading: a state that kills whoever loads it twice in a
 * row is set aside. */
static int blame_loading(struct store *st, const struct lease *l,
                         const struct cycle *c, int64_t now_ms, struct err *err)
{
    if (!l->checkpoint || strcmp(l->stage, "load"))
        return 0;
    int64_t deaths = 0;
    int r = checkpoint_load_died(st, l->checkpoint, &deaths, err);
    if (r < 0 || deaths < LOAD_DEATHS_MAX)
        return r;
    char why[200];
    snprintf(why, sizeof(why), "%" PRId64 " workers in a row died loading it",
             deaths);
    r = checkpoint_quarantine(st, l->checkpoint, why, err);
    if (r < 0)
        return r;
    return event_add(st,
                     &(struct event){.job = l->job,
                                     .lease = l->id,
                                     .cycle = c->number,
                                     .step = l->from_step,
                                     .kind = "quarantined",
                                     .actor = "server"},
                     now_ms, err,
                     "checkpoint %" PRId64 " (step %" PRId64
                     ") is set aside: %s",
                     l->checkpoint, l->from_step, why);
}

/* how: "was killed by signal 9, cause unknown" */
static int lose(struct store *st, struct lease *l, const char *how,
                const char *evidence, bool expired, int64_t now_ms,
                struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    CLEANUP(job_release) struct job j = {0};
    CLEANUP(start_release) struct start start = {0};
    struct cycle c;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = job_load(st, l->job, &j, err);
    if (r >= 0)
        r = cycle_load(st, l->cycle, &c, err);
    if (r >= 0)
        r = blame_loading(st, l, &c, now_ms, err);
    if (r >= 0)
        r = find_start(st, &c, &start, err);
    if (r < 0)
        return r;

    int64_t counted = COUNTED_LOST | count_progress(l, &c);
    c.lost++;
    if (c.saved_step > start.step)
        c.saved_step = start.step; /* a newer one was set aside */
    char what[512], why[768];
    snprintf(what, sizeof(what), "worker %s %s at step %" PRId64 "%s",
             l->worker, how, l->step,
             strcmp(l->stage, "load") ? "" : " while loading");
    int64_t wait = backoff_ms(c.lost, c.id ^ now_ms);
    snprintf(why, sizeof(why),
             "worker lost: %s; waits for a worker to go on at step %" PRId64
             "%s",
             what, start.step, wait ? " after a pause" : "");

    struct ending e = {.outcome = "lost",
                       .reason = what,
                       .evidence = evidence,
                       .expired = expired,
                       .counted = counted};
    r = end_lease(st, l, &e, now_ms, err);
    if (r >= 0)
        r = event_add(st,
                      &(struct event){.job = l->job,
                                      .lease = l->id,
                                      .cycle = c.number,
                                      .step = l->step,
                                      .kind = "lost",
                                      .actor = "server"},
                      now_ms, err, "%s%s%s%s", why, evidence ? " [" : "",
                      evidence ? evidence : "", evidence ? "]" : "");
    if (r >= 0)
        r = cycle_again(st, &c, why, false, wait ? now_ms + wait : 0,
                        start.step, start.epoch, start.records, err);
    if (r < 0)
        return r;
    int64_t limit = limit_of(&j, "lost");
    if (j.cancel) {
        r = 0;
    } else if (limit > 0 && c.lost >= limit) {
        char last[1024];
        snprintf(last, sizeof(last),
                 "%" PRId64 " workers were lost without a new checkpoint: it "
                 "kills its workers; the last one: %s",
                 c.lost, what);
        AUTO_JSON json_t *error = error_json("lost", last, evidence);
        r = job_fail(st, l->job, last, error, now_ms, err);
    } else {
        r = check_no_progress(st, &j, l, &c, what, evidence, now_ms, err);
    }
    if (r >= 0)
        r = job_settle(st, l->job, false, now_ms, err);
    return r < 0 ? r : txn_commit(&txn, err);
}

int lease_listening(struct store *st, int64_t mono_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_LISTENING);
    stmt_int(&q, ":mono", mono_ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int lease_tick(struct store *st, int64_t now_ms, int64_t mono_ms,
               struct err *err)
{
    AUTO_JSON json_t *ids = json_array();
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_SILENT);
        stmt_int(&q, ":before", mono_ms - lease_timing.expiry_ms);
        int r;
        while ((r = stmt_row(&q, err)) > 0)
            json_array_append_new(ids, json_integer(col_int(&q, 0)));
        if (r < 0)
            return r;
    }
    size_t i;
    json_t *id;
    json_array_foreach(ids, i, id)
    {
        CLEANUP(lease_free) struct lease l = {0};
        char how[96];
        int r = lease_load(st, json_integer_value(id), &l, err);
        snprintf(how, sizeof(how), "was not heard of for %" PRId64 " s",
                 lease_timing.expiry_ms / 1000);
        if (r >= 0)
            r = lose(st, &l, how, NULL, true, now_ms, err);
        if (r < 0)
            return r;
    }
    int r = job_settle_due(st, now_ms, err);
    return r < 0 ? r : (int)json_array_size(ids);
}

int lease_worker_died(struct store *st, int64_t pid, int64_t started,
                      const char *boot, const char *how, const char *evidence,
                      int64_t now_ms, struct err *err)
{
    int64_t worker;
    struct err none;
    int r = worker_find(st, pid, started, boot, &worker, &none);
    if (r == ERR_NOT_FOUND)
        return 0; /* it died before it asked for work */
    if (r < 0) {
        *err = none;
        return r;
    }
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    CLEANUP(lease_free) struct lease l = {0};
    r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = worker_gone(st, worker, now_ms, err);
    if (r < 0)
        return r;
    {
        /* the dead do not come back */
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_DEAD);
        stmt_int(&q, ":worker", worker);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    int found;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_OF_WORKER);
        stmt_int(&q, ":worker", worker);
        found = lease_row(&q, &l, err);
    }
    if (found < 0)
        return found;
    if (found > 0) {
        r = lose(st, &l, how, evidence, false, now_ms, err);
        if (r < 0)
            return r;
    }
    r = txn_commit(&txn, err);
    return r < 0 ? r : found;
}

/* ---- checkpoint ---- */

static int check_previous(struct store *st, const struct lease *l,
                          const struct checkpoint_in *in, struct err *err)
{
    int64_t before = l->saved ? l->saved : l->checkpoint;
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    if (!before && !in->previous[0])
        return 0;
    if (!before)
        before = l->initial;
    int r = before ? checkpoint_load(st, before, &c, err) : 0;
    if (r < 0 && r != ERR_NOT_FOUND)
        return r;
    if (r > 0 && !strcmp(c.digest, in->previous))
        return 0;
    return err_at(err, ERR_CONFLICT, "/manifest/previous",
                  "the state before this one is %s",
                  r > 0 ? c.digest : "none: previous must be null");
}

static int keep_saved(struct store *st, struct lease *l, struct cycle *c,
                      int64_t id, const struct checkpoint_in *in,
                      struct err *err)
{
    bool further = in->step > c->saved_step;
    if (further) {
        c->saved_step = in->step;
        c->failures = c->lost = c->no_progress = 0;
    }
    if (in->step > c->best_step)
        c->best_step = in->step;
    l->saved = id;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_SAVED);
        stmt_int(&q, ":id", l->id);
        stmt_int(&q, ":saved", id);
        stmt_int(&q, ":seq", in->holds_seq);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_SAVED);
    stmt_int(&q, ":id", c->id);
    stmt_int(&q, ":saved", c->saved_step);
    stmt_int(&q, ":best", c->best_step);
    stmt_int(&q, ":further", further);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int do_release(struct store *st, struct lease *l, struct cycle *c,
                      const struct release *in, int64_t now_ms, int64_t mono_ms,
                      json_t **ret, struct err *err);

int lease_checkpoint(struct store *st, int64_t id, int64_t token,
                     const struct checkpoint_in *in,
                     const struct release *release, int64_t now_ms,
                     int64_t mono_ms, json_t **ret, struct err *err)
{
    int64_t known = 0;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    CLEANUP(lease_free) struct lease l = {0};
    struct cycle c;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = lease_load(st, id, &l, err);
    if (r < 0)
        return r;
    if (token != l.token)
        return err_set(err, ERR_STALE, "lease %" PRId64 " has another token",
                       id);
    r = checkpoint_find(st, id, in->digest, &known, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *a = NULL;
    if (known && (!release || l.answer)) {
        /* sent again, and the first answer was given: whatever came after */
        *ret = json_pack("{sI ss}", "id", known, "digest", in->digest);
        if (release)
            json_object_update(*ret, l.answer);
        return 0;
    }
    lease_free(&l);
    r = lease_live(st, id, token, now_ms, &l, err);
    if (r >= 0)
        r = cycle_load(st, l.cycle, &c, err);
    if (r < 0)
        return r;
    if (!known) {
        r = check_previous(st, &l, in, err);
        if (r < 0)
            return r;
        struct checkpoint_of of = {.job = l.job,
                                   .cycle = l.cycle,
                                   .lease = id,
                                   .fingerprint = l.fingerprint,
                                   .exact_since = l.exact_since,
                                   .exact_cycle = l.exact_cycle,
                                   .exact_why = l.exact_why};
        r = checkpoint_add(st, &of, in, now_ms, &known, err);
        if (r >= 0)
            r = keep_saved(st, &l, &c, known, in, err);
        if (r < 0)
            return r;
    }
    a = json_pack("{sI ss}", "id", known, "digest", in->digest);
    if (release) {
        AUTO_JSON json_t *outcome = NULL;
        r = do_release(st, &l, &c, release, now_ms, mono_ms, &outcome, err);
        if (r < 0)
            return r;
        json_object_update(a, outcome);
    } else {
        r = heard(st, id, now_ms, mono_ms, err);
        if (r >= 0)
            r = job_touch(st, l.job, err);
        if (r < 0)
            return r;
    }
    r = txn_commit(&txn, err);
    if (r < 0)
        return r;
    *ret = json_incref(a);
    return 0;
}

/* ---- release ---- */

static struct event lease_event(const struct lease *l, const struct cycle *c,
                                const char *kind)
{
    return (struct event){.job = l->job,
                          .lease = l->id,
                          .cycle = c->number,
                          .step = l->step,
                          .kind = kind,
                          .actor = l->worker};
}

static int finish(struct store *st, struct lease *l, struct cycle *c,
                  const struct release *in, int64_t now_ms, struct err *err)
{
    CLEANUP(checkpoint_release) struct checkpoint last = {0};
    CLEANUP(spec_release) struct spec spec = {0};
    int64_t id = l->saved ? l->saved : l->checkpoint;
    int r = id ? checkpoint_load(st, id, &last, err) : 0;
    if (r >= 0)
        r = cycle_spec(st, c, &spec, err);
    if (r < 0)
        return r;
    /* records that were skipped leave fewer steps than were counted */
    bool fewer = spec.data.bad_records == BAD_SKIP && in->report.skipped > 0 &&
                 last.step <= c->steps;
    if (!id || !last.good || (last.step != c->steps && !fewer))
        return err_set(err, ERR_CONFLICT,
                       "a cycle is finished with a checkpoint at its last "
                       "step, %" PRId64,
                       c->steps);
    r = cycle_done(st, c, id, last.model_sha256, last.step, now_ms, err);
    if (r < 0)
        return r;
    struct event e = lease_event(l, c, "finished");
    e.step = last.step;
    return event_add(st, &e, now_ms, err,
                     "cycle %" PRId64 " is done after %" PRId64
                     " steps: model %.12s…",
                     c->number, last.step, last.model_sha256);
}

static int yield_lease(struct store *st, struct lease *l, struct cycle *c,
                       const struct job *j, const struct release *in,
                       int64_t now_ms, struct err *err)
{
    CLEANUP(start_release) struct start start = {0};
    int r = find_start(st, c, &start, err);
    if (r < 0)
        return r;
    char why[768];
    count_progress(l, c);
    snprintf(why, sizeof(why),
             "yielded at step %" PRId64 " (%s%s%.400s); waits for a worker",
             start.step, in->reason, in->detail ? ": " : "",
             in->detail ? in->detail : "");
    struct event e = lease_event(l, c, "yielded");
    r = event_add(st, &e, now_ms, err,
                  "worker %s saved step %" PRId64 " and yielded: %s%s%.700s",
                  l->worker, start.step, in->reason, in->detail ? ": " : "",
                  in->detail ? in->detail : "");
    if (r >= 0)
        r = cycle_again(st, c, why, true, 0, start.step, start.epoch,
                        start.records, err);
    if (r < 0 || j->cancel || j->pause)
        return r;
    return check_no_progress(st, j, l, c, why, NULL, now_ms, err);
}

/* One sentence with the place, for people. */
static void failure_text(const struct release *in, const struct lease *l,
                         char *ret, size_t cap)
{
    const char *detail = in->error.given && in->error.detail[0]
                             ? in->error.detail
                         : in->reason ? in->reason
                                      : "the worker gave no reason";
    char place[512] = "";
    if (in->error.shard && !strstr(detail, in->error.shard)) {
        int n = snprintf(place, sizeof(place), "shard %s", in->error.shard);
        if (in->error.line >= 1)
            n += snprintf(place + n, sizeof(place) - (size_t)n,
                          ", line %" PRId64, in->error.line);
        if (in->error.offset >= 0)
            n += snprintf(place + n, sizeof(place) - (size_t)n,
                          ", offset %" PRId64, in->error.offset);
        if (in->error.field)
            n += snprintf(place + n, sizeof(place) - (size_t)n,
                          ", field %.100s", in->error.field);
        snprintf(place + n, sizeof(place) - (size_t)n, ": ");
    }
    snprintf(ret, cap, "%s%.1500s", place, detail);
}

static int quarantine(struct store *st, struct lease *l, struct cycle *c,
                      const struct release *in, const char *text,
                      int64_t now_ms, struct err *err)
{
    int64_t id = in->error.checkpoint;
    if (id != l->checkpoint && id != l->initial)
        return err_at(err, ERR_INVALID, "/error/checkpoint",
                      "this lease did not start from checkpoint %" PRId64, id);
    CLEANUP(start_release) struct start start = {0};
    int r = checkpoint_quarantine(st, id, text, err);
    if (r >= 0)
        r = find_start(st, c, &start, err);
    if (r < 0)
        return r;
    if (id == l->initial) {
        char why[1024];
        snprintf(why, sizeof(why),
                 "the end of the cycle before (checkpoint %" PRId64
                 ") does not verify: %.800s",
                 id, text);
        return job_fail(st, l->job, why, in->error_json, now_ms, err);
    }
    char why[768];
    int64_t again = l->from_step - start.step;
    snprintf(why, sizeof(why),
             "checkpoint %" PRId64 " (step %" PRId64
             ") is set aside: %.400s; goes on from step %" PRId64 ", %" PRId64
             " steps are repeated",
             id, l->from_step, text, start.step, again);
    if (c->saved_step > start.step)
        c->saved_step = start.step;
    struct event e = lease_event(l, c, "quarantined");
    r = event_add(st, &e, now_ms, err, "%s", why);
    return r < 0 ? r
                 : cycle_again(st, c, why, true, 0, start.step, start.epoch,
                               start.records, err);
}

/* "on_oom": "split" halves the micro-batch. 1: done so. */
static int split(struct store *st, struct lease *l, struct cycle *c,
                 const struct job *j, const char *text, int64_t now_ms,
                 struct err *err)
{
    int64_t micro =
        json_integer_value(json_object_get(j->runtime, "micro_batch"));
    if (strcmp(text_of(j->runtime, "on_oom"), "split") || micro < 2)
        return 0;
    CLEANUP(start_release) struct start start = {0};
    int r = find_start(st, c, &start, err);
    if (r < 0)
        return r;
    if (!strcmp(text_of(j->runtime, "exact"), "require") && start.from.id)
        return 0;
    AUTO_JSON json_t *runtime = json_copy(j->runtime);
    json_object_set_new(runtime, "micro_batch", json_integer(micro / 2));
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_PATCH);
        stmt_int(&q, ":id", j->id);
        stmt_json(&q, ":runtime", runtime);
        stmt_int(&q, ":newer", 1);
        stmt_int(&q, ":priority", j->priority);
        stmt_json(&q, ":labels", j->labels);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    char why[768];
    snprintf(why, sizeof(why),
             "out of memory (%.400s); the micro-batch is halved to %" PRId64
             "; waits for a worker to go on at step %" PRId64,
             text, micro / 2, start.step);
    struct event e = lease_event(l, c, "failed");
    r = event_add(st, &e, now_ms, err, "%s", why);
    if (r >= 0)
        r = cycle_again(st, c, why, true, 0, start.step, start.epoch,
                        start.records, err);
    return r < 0 ? r : 1;
}

static bool is_final(const struct release *in)
{
    return in->error.given &&
           (in->error.final || !strcmp(in->error.code, "data") ||
            !strcmp(in->error.code, "invalid") ||
            !strcmp(in->error.code, "not_finite"));
}

static int retry_later(struct store *st, struct lease *l, struct cycle *c,
                       const struct job *j, const struct release *in,
                       const char *text, int64_t now_ms, struct err *err)
{
    CLEANUP(start_release) struct start start = {0};
    int r = find_start(st, c, &start, err);
    if (r < 0)
        return r;
    char why[768];
    count_progress(l, c);
    c->failures++;
    int64_t limit = limit_of(j, "failures");
    bool spent = limit > 0 && c->failures >= limit && !j->cancel;
    int64_t wait = spent ? 0 : backoff_ms(c->failures, c->id ^ now_ms);
    struct event e = lease_event(l, c, "failed");
    r = event_add(st, &e, now_ms, err,
                  "worker %s failed at step %" PRId64 " (%" PRId64
                  " of %" PRId64 "): %.800s",
                  l->worker, l->step, c->failures, limit, text);
    if (r < 0)
        return r;
    if (spent) {
        char last[1024];
        snprintf(last, sizeof(last),
                 "failed %" PRId64 " times without progress; the last time at "
                 "step %" PRId64 ": %.800s",
                 c->failures, l->step, text);
        return job_fail(st, l->job, last, in->error_json, now_ms, err);
    }
    snprintf(why, sizeof(why),
             "failed at step %" PRId64 ": %.400s; tries again at step %" PRId64
             "%s",
             l->step, text, start.step, wait ? " after a pause" : "");
    r = cycle_again(st, c, why, false, wait ? now_ms + wait : 0, start.step,
                    start.epoch, start.records, err);
    if (r < 0 || j->cancel)
        return r;
    return check_no_progress(st, j, l, c, text, NULL, now_ms, err);
}

static int fail(struct store *st, struct lease *l, struct cycle *c,
                const struct job *j, const struct release *in, int64_t now_ms,
                struct err *err)
{
    char text[2100];
    failure_text(in, l, text, sizeof(text));
    if (in->error.checkpoint)
        return quarantine(st, l, c, in, text, now_ms, err);
    if (is_final(in)) {
        struct event e = lease_event(l, c, "failed");
        int r = event_add(st, &e, now_ms, err, "worker %s: %.900s", l->worker,
                          text);
        return r < 0 || j->cancel
                   ? r
                   : job_fail(st, l->job, text, in->error_json, now_ms, err);
    }
    if (in->error.given && !strcmp(in->error.code, "oom") && !j->cancel) {
        int r = split(st, l, c, j, text, now_ms, err);
        if (r)
            return r < 0 ? r : 0;
    }
    return retry_later(st, l, c, j, in, text, now_ms, err);
}

static int do_release(struct store *st, struct lease *l, struct cycle *c,
                      const struct release *in, int64_t now_ms, int64_t mono_ms,
                      json_t **ret, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    const char *word = outcome_word(in->outcome);
    char text[2100] = "";
    int r = apply(st, l, c, &in->report, now_ms, mono_ms, err);
    if (r >= 0)
        r = job_load(st, l->job, &j, err);
    if (r < 0)
        return r;
    if (in->outcome == OUTCOME_FAILED)
        failure_text(in, l, text, sizeof(text));
    AUTO_JSON json_t *answer = json_pack("{ss}", "outcome", word);
    struct ending e = {.outcome = word,
                       .reason =
                           in->outcome == OUTCOME_FAILED ? text : in->reason,
                       .detail = in->detail,
                       .error = in->error_json,
                       .answer = answer};
    r = end_lease(st, l, &e, now_ms, err);
    if (r < 0)
        return r;
    switch (in->outcome) {
    case OUTCOME_FINISHED:
        r = finish(st, l, c, in, now_ms, err);
        break;
    case OUTCOME_YIELDED:
        r = yield_lease(st, l, c, &j, in, now_ms, err);
        break;
    case OUTCOME_FAILED:
        r = fail(st, l, c, &j, in, now_ms, err);
        break;
    }
    if (r >= 0 && j.cancel) /* whatever came of it: it was asked for before */
        r = job_canceled(st, l->job, now_ms, err);
    if (r >= 0)
        r = job_settle(st, l->job, false, now_ms, err);
    if (r >= 0)
        r = job_touch(st, l->job, err);
    if (r < 0)
        return r;
    *ret = json_incref(answer);
    return 0;
}

int lease_release(struct store *st, int64_t id, int64_t token,
                  const struct release *in, int64_t now_ms, int64_t mono_ms,
                  json_t **ret, struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    CLEANUP(lease_free) struct lease l = {0};
    struct cycle c;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = lease_load(st, id, &l, err);
    if (r < 0)
        return r;
    if (token == l.token && l.answer &&
        !strcmp(l.outcome, outcome_word(in->outcome))) {
        *ret = json_incref(l.answer);
        return 0;
    }
    lease_free(&l);
    r = lease_live(st, id, token, now_ms, &l, err);
    if (r >= 0)
        r = cycle_load(st, l.cycle, &c, err);
    if (r >= 0)
        r = do_release(st, &l, &c, in, now_ms, mono_ms, ret, err);
    if (r < 0)
        return r;
    r = txn_commit(&txn, err);
    if (r < 0) {
        json_decref(*ret);
        *ret = NULL;
    }
    return r;
}

/* ---- list ---- */

static json_t *text_or_null(const struct stmt *q, int i)
{
    return col_null(q, i) ? json_null() : json_string(col_text(q, i));
}

static json_t *int_or_null(const struct stmt *q, int i)
{
    return col_null(q, i) ? json_null() : json_integer(col_int(q, i));
}

static json_t *json_or_null(const struct stmt *q, int i)
{
    return col_null(q, i) ? json_null() : col_json(q, i);
}

int lease_list(struct store *st, int64_t job, int64_t after, int64_t limit,
               json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_LIST);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", after);
    stmt_int(&q, ":limit", limit + 1);
    AUTO_JSON json_t *items = json_array();
    int64_t last = 0;
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        if ((int64_t)json_array_size(items) == limit)
            break;
        last = col_int(&q, 0);
        json_t *one = json_pack(
            "{sI sI ss so so so sI sI so so}", "id", last, "cycle",
            col_int(&q, 1), "worker", col_text(&q, 2), "outcome",
            text_or_null(&q, 3), "reason", text_or_null(&q, 4), "detail",
            text_or_null(&q, 5), "from_step", col_int(&q, 6), "to_step",
            col_int(&q, 7), "started_at", when_json(col_int(&q, 8)), "ended_at",
            when_json(col_int(&q, 9)));
        json_object_set_new(one, "peak",
                            json_pack("{so so so}", "allocated_bytes",
                                      int_or_null(&q, 10), "device_bytes",
                                      int_or_null(&q, 11), "rss_bytes",
                                      int_or_null(&q, 12)));
        json_object_set_new(one, "fingerprint", json_or_null(&q, 13));
        json_object_set_new(one, "device", json_string(col_text(&q, 14)));
        json_object_set_new(one, "threads", json_integer(col_int(&q, 15)));
        json_object_set_new(one, "stage", json_string(col_text(&q, 16)));
        json_object_set_new(one, "micro_batches",
                            json_integer(col_int(&q, 17)));
        json_object_set_new(one, "checkpoint", int_or_null(&q, 18));
        json_object_set_new(one, "error", json_or_null(&q, 19));
        json_object_set_new(one, "evidence", text_or_null(&q, 20));
        json_object_set_new(one, "heard_at", when_json(col_int(&q, 21)));
        json_array_append_new(items, one);
    }
    if (r < 0)
        return r;
    *ret = page_json(json_incref(items), r > 0, last);
    return 0;
}
