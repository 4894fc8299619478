#include "server/lease.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/wire.h"
#include "server/checkpoint.h"
#include "server/cycle.h"
#include "server/ending.h"
#include "server/event.h"
#include "server/evidence.h"
#include "server/job.h"
#include "server/lease_row.h"
#include "server/match.h"
#include "server/memory.h"
#include "server/metric.h"
#include "server/owner.h"
#include "server/page.h"
#include "server/unfit.h"
#include "server/when.h"

struct lease_timing lease_timing = {WIRE_HEARTBEAT_S * 1000,
                                    WIRE_EXPIRY_S * 1000};

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
                                     .worker = l->worker},
                     now_ms, err, "%s%s", what,
                     n > 1 ? ", and more values beside it" : "");
}

/* Steps, or none: an event when that changes. */
static int look_at_steps(struct store *st, struct lease *l,
                         const struct cycle *c, const char *stage,
                         int64_t before, int64_t now_ms, int64_t mono_ms,
                         char *ret, size_t cap, struct err *err)
{
    char last[128];
    stall_text(&l->stall, mono_ms, last, sizeof(last));
    enum stall_word word =
        stall_look(&l->stall, stage, l->step - before, mono_ms);
    struct event e = lease_event(l, c, "stalled");
    *ret = '\0';
    if (l->stall.stalled)
        snprintf(ret, cap, "stalled: %s", last);
    e.actor = word == STALL_BEGINS ? "server" : NULL; /* who sees it */
    if (word == STALL_BEGINS)
        return event_add(st, &e, now_ms, err,
                         "worker %s is at step %" PRId64 ": %s", l->worker,
                         l->step, last);
    if (word != STALL_ENDS)
        return 0;
    e.kind = "moving";
    return event_add(st, &e, now_ms, err, "worker %s goes on, after %s",
                     l->worker, last);
}

/* Write down what a worker reported; l and c follow the position. */
static int apply(struct store *st, struct lease *l, struct cycle *c,
                 const struct report *in, int64_t now_ms, int64_t mono_ms,
                 struct err *err)
{
    char what[300], stalled[160] = "";
    int64_t differ = 0, before = l->step, moved = l->stall.moved_mono_ms;
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
    if (in->stage) {
        snprintf(l->stage, sizeof(l->stage), "%s", in->stage);
        r = look_at_steps(st, l, c, in->stage, before, now_ms, mono_ms, stalled,
                          sizeof(stalled), err);
        if (r < 0)
            return r;
    }
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
        if (in->renormalised >= 0)
            stmt_int(&q, ":renormalised", in->renormalised);
        if (in->exceeded)
            stmt_json(&q, ":exceeded", in->exceeded);
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
    stmt_int(&q, ":moved_mono", l->stall.moved_mono_ms);
    if (l->stall.moved_mono_ms != moved)
        stmt_int(&q, ":moved", now_ms);
    stmt_real(&q, ":step_ms", l->stall.step_ms);
    stmt_text(&q, ":stalled", stalled[0] ? stalled : NULL);
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
        bool was = l.stall.stalled;
        r = apply(st, &l, &c, in, now_ms, mono_ms, err);
        if (r >= 0)
            r = job_touch(st, l.job, err);
        if (r >= 0 && (was || l.stall.stalled)) /* the job's reason */
            r = job_settle(st, l.job, false, now_ms, err);
    }
    if (r >= 0)
        r = job_load_part(st, l.job, JOB_RUNTIME, &j, err);
    if (r < 0)
        return r;

    const char *what = "continue", *reason = NULL, *why = NULL;
    bool newer = j.runtime_version > l.runtime_version;
    bool moves = newer && fingerprint_moves(l.fingerprint, j.runtime);
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

/* ---- lost ---- */

int lease_listening(struct store *st, int64_t mono_ms, struct err *err)
{
    int r = owner_recount(st, err);
    if (r >= 0)
        r = unfit_workers(st, NULL, err);
    if (r < 0)
        return r;
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
            r = ending_lost(st, &l, how, NULL, NULL, true, now_ms, err);
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
    struct death d = {.pid = pid,
                      .start_ticks = started,
                      .kind = DEATH_UNKNOWN,
                      .code = -1,
                      .signal = -1};
    snprintf(d.verdict, sizeof(d.verdict), "%s", how);
    snprintf(d.evidence, sizeof(d.evidence), "%s", evidence ? evidence : "");
    return lease_died(st, &d, boot, now_ms, err);
}

int lease_died(struct store *st, const struct death *d, const char *boot,
               int64_t now_ms, struct err *err)
{
    int64_t worker;
    struct err none;
    int r = worker_find(st, d->pid, d->start_ticks, boot, &worker, &none);
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
        char text[1200];
        AUTO_JSON json_t *death = evidence_death(d);
        snprintf(text, sizeof(text), "%s%s%s", d->evidence,
                 d->evidence[0] && d->last_lines[0] ? "\n" : "", d->last_lines);
        r = ending_lost(st, &l, d->verdict, text[0] ? text : NULL, death, false,
                        now_ms, err);
        if (r < 0)
            return r;
    }
    r = txn_commit(&txn, err);
    return r < 0 ? r : found;
}

/* ---- checkpoint ---- */

static int check_previous(struct store *st, const struct lease *l,
                          const struct cycle *at,
                          const struct checkpoint_in *in, struct err *err)
{
    int64_t before = l->saved ? l->saved : l->checkpoint;
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    if (!before && !in->previous[0])
        return 0;
    if (!before)
        before = l->initial;
    struct err cause = {0};
    int r = before ? checkpoint_load(st, before, &c, &cause) : 0;
    /* a client removed it while this lease trained: one that goes further
     * follows it, one that does not was sent before */
    if (r == ERR_NOT_FOUND && in->step > at->saved_step)
        return 0;
    if (r < 0 && r != ERR_NOT_FOUND) {
        *err = cause;
        return r;
    }
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

static int say_saved(struct store *st, const struct lease *l,
                     const struct cycle *c, int64_t id,
                     const struct checkpoint_in *in, int64_t now_ms,
                     struct err *err)
{
    struct event e = lease_event(l, c, "checkpoint");
    e.step = in->step;
    return event_add(st, &e, now_ms, err,
                     "step %" PRId64 " is saved as checkpoint %" PRId64
                     ": %" PRId64 " bytes",
                     in->step, id, in->bytes);
}

/* Its last report, then its end. */
static int do_release(struct store *st, struct lease *l, struct cycle *c,
                      const struct release *in, int64_t now_ms, int64_t mono_ms,
                      json_t **ret, struct err *err)
{
    int r = apply(st, l, c, &in->report, now_ms, mono_ms, err);
    return r < 0 ? r : ending_release(st, l, c, in, now_ms, ret, err);
}

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
        r = check_previous(st, &l, &c, in, err);
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
        if (r >= 0)
            r = say_saved(st, &l, &c, known, in, now_ms, err);
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

int lease_list(struct store *st, int64_t job, int64_t after, int64_t limit,
               json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_LIST);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", after);
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    int r;
    while ((r = page_row(&page, &q, 0, err)) > 0) {
        json_t *one = json_pack(
            "{sI sI ss so so so sI sI so so}", "id", page.last, "cycle",
            col_int(&q, 1), "worker", col_text(&q, 2), "outcome",
            col_text_or_null(&q, 3), "reason", col_text_or_null(&q, 4),
            "detail", col_text_or_null(&q, 5), "from_step", col_int(&q, 6),
            "to_step", col_int(&q, 7), "started_at", when_json(col_int(&q, 8)),
            "ended_at", when_json(col_int(&q, 9)));
        json_object_set_new(one, "peak",
                            json_pack("{so so so}", "allocated_bytes",
                                      col_int_or_null(&q, 10), "device_bytes",
                                      col_int_or_null(&q, 11), "rss_bytes",
                                      col_int_or_null(&q, 12)));
        json_object_set_new(one, "fingerprint", col_json_or_null(&q, 13));
        json_object_set_new(one, "device", json_string(col_text(&q, 14)));
        json_object_set_new(one, "threads", json_integer(col_int(&q, 15)));
        json_object_set_new(one, "stage", json_string(col_text(&q, 16)));
        json_object_set_new(one, "micro_batches",
                            json_integer(col_int(&q, 17)));
        json_object_set_new(one, "checkpoint", col_int_or_null(&q, 18));
        json_object_set_new(one, "error", col_json_or_null(&q, 19));
        json_object_set_new(one, "evidence", col_text_or_null(&q, 20));
        json_object_set_new(one, "heard_at", when_json(col_int(&q, 21)));
        page_add(&page, one);
    }
    return r < 0 ? r : page_end(&page, ret);
}
