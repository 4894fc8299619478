/* lease_claim.c - a worker asks for work (lease.h).
 *
 * The first cycle by owner.h's order that match.h finds trainable becomes this
 * worker's:
 * the lease, the cycle's new token and the job's state change in one
 * transaction. The answer is composed of what is stored alone, so a claim that
 * is sent again, with the same `claim`, gets the same one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/json_read.h"
#include "schema/spec.h"
#include "server/checkpoint.h"
#include "server/cycle.h"
#include "server/event.h"
#include "server/job.h"
#include "server/lease.h"
#include "server/lease_row.h"
#include "server/match.h"
#include "server/metric.h"
#include "server/owner.h"
#include "server/unfit.h"

#define BEHIND_MAX 16

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
                      .worker = w->name};
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
        r = owner_served(st, f->c.id, now_ms, err);
    if (r >= 0) /* what start_find passed over */
        r = checkpoint_set_aside_newer(
            st, f->c.id, f->start.initial ? 0 : f->start.from.id, now_ms, err);
    if (r >= 0)
        r = mark_leased(st, f, now_ms, err);
    if (r >= 0)
        r = owner_started(st, f->c.id, now_ms, err);
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

/* ---- the answer ---- */

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
    struct cycle c;
    AUTO_JSON json_t *data = NULL, *spec = NULL;
    int r = job_load_part(st, l->job, JOB_RUNTIME, &j, err);
    if (r >= 0)
        r = cycle_load(st, l->cycle, &c, err);
    if (r >= 0)
        r = cycle_spec_json(st, &c, &spec, err);
    if (r >= 0)
        r = cycle_data(st, l->cycle, &data, err);
    if (r < 0)
        return r;
    json_object_set(spec, "runtime", j.runtime);
    AUTO_JSON json_t *a = json_pack(
        "{s{sIsIsIsIsI} so so sO sO sI ss sI ss sI sI sI sO sO}", "lease", "id",
        l->id, "token", l->token, "cycle_id", l->cycle, "job", l->job, "cycle",
        c.number, "heartbeat_s", seconds(lease_timing.heartbeat_ms), "expiry_s",
        seconds(lease_timing.expiry_ms), "spec", spec, "runtime", j.runtime,
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

/* ---- claim ---- */

static int by_claim(struct store *st, const char *claim, struct lease *ret,
                    struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_BY_CLAIM);
    stmt_text(&q, ":claim", claim);
    return lease_row(&q, ret, err);
}

/* One that the index says it can have is nearly always right; where it is not,
 * those behind it are tried. */
static int take_turn(struct store *st, struct turn *t,
                     const struct worker_claim *in, int64_t worker_id,
                     int64_t now_ms, int64_t mono_ms, int64_t *ret_id,
                     struct err *err)
{
    for (int i = 0; i < BEHIND_MAX; i++) {
        CLEANUP(fit_release) struct fit f = {0};
        int r = match_cycle(st, t->cycle, in, &f, err);
        if (r > 0) {
            r = cycle_back(st, &f.c, now_ms, err);
            if (r == 0)
                r = take_cycle(st, &f, in, worker_id, now_ms, mono_ms, ret_id,
                               err);
        }
        if (r < 0 || *ret_id)
            return r;
        r = owner_behind(st, t, err);
        if (r <= 0)
            return r;
    }
    return 0;
}

static int take_first(struct store *st, const struct worker_claim *in,
                      int64_t worker_id, int64_t now_ms, int64_t mono_ms,
                      int64_t *ret_id, struct err *err)
{
    CLEANUP(turns_release) struct turns turns = {0};
    int r = owner_turns(st, in, now_ms, &turns, err);
    for (size_t i = 0; i < turns.n && r >= 0 && !*ret_id; i++)
        r = take_turn(st, &turns.all[i], in, worker_id, now_ms, mono_ms, ret_id,
                      err);
    return r < 0 ? r : 0;
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
            return lease_stale(&old, err);
        if (r > 0) {
            r = claim_answer(st, &old, ret, err);
            return r < 0 ? r : 1;
        }
    }
    if (drained)
        return err_set(err, ERR_STALE,
                       "worker %s is drained: this process gets no more work",
                       in->name);
    r = lease_tick(st, now_ms, mono_ms, err);
    if (r < 0)
        return r;
    r = take_first(st, in, worker_id, now_ms, mono_ms, &id, err);
    if (r >= 0 && !id) /* what is there, it cannot have: can anyone? */
        r = unfit_tell(st, now_ms, err);
    if (r < 0 || !id)
        return r;
    CLEANUP(lease_free) struct lease l = {0};
    r = lease_load(st, id, &l, err);
    if (r >= 0)
        r = claim_answer(st, &l, ret, err);
    return r < 0 ? r : 1;
}
