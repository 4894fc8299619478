#include "worker/loop.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/wire.h"
#include "worker/claim.h"
#include "worker/leave.h"
#include "worker/prepare.h"
#include "worker/run.h"

static int64_t number(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

/* ---- the runtime policy ---- */

/* A newer policy holds from the next step on. One that would change the lease's
 * fingerprint does not come here: the server asks for a yield instead. */
static int adopt_policy(struct run *r, struct err *err)
{
    AUTO_JSON json_t *in = beat_runtime(r->beat);
    if (!in)
        return 0;
    struct runtime_policy next;
    int e = runtime_parse(in, &r->spec.record, r->spec.training.effective_batch,
                          &next, err);
    if (e < 0)
        return e;
    runtime_release(&r->runtime);
    r->runtime = next;
    run_use_policy(r);
    beat_say(r->beat, "info",
             "a new runtime policy holds from step %" PRId64 " on",
             r->progress.step + 1);
    e = feed_set_runtime(r->feed, &r->runtime, err);
    return e < 0 || !r->evaluate
               ? e
               : evaluate_set_runtime(r->evaluate, &r->runtime, err);
}

/* ---- one step ---- */

static double mean(double sum, int64_t n)
{
    return n ? sum / (double)n : NAN;
}

/* Records per second over about the last ten seconds. */
static double measure_rate(struct run *r, int64_t records)
{
    double now = run_seconds(), took = now - r->step_began;
    r->step_began = now;
    if (took <= 0)
        return -1;
    double keep = exp(-took / 10.0);
    r->rate = r->rate * keep + (double)records * (1 - keep) / took;
    r->rate_weight = r->rate_weight * keep + (1 - keep);
    r->progress.records_per_s = r->rate / r->rate_weight;
    return (double)records / took;
}

static struct loss_means means(const struct losses *sum)
{
    return (struct loss_means){
        .total = (float)mean(sum->total, sum->records),
        .policy = (float)mean(sum->policy, sum->records),
        .value = (float)mean(sum->value, sum->records),
    };
}

static bool has_profile(const struct run *r)
{
    const struct padding *p = &r->runtime.padding;
    for (int d = 0; d < p->n_dims; d++)
        if (padding_top(p, d))
            return true;
    return false;
}

static void report_shapes(struct run *r, struct metric *m)
{
    struct feed_stats stats = {0};
    int64_t exceeded = run_tell_data(r, &stats);
    double padded = stats.padded - r->padded, held = stats.held - r->held;
    m->shapes = stats.shapes;
    m->exceeded = has_profile(r) ? exceeded : -1;
    m->waste = padded > 0 ? (float)(1 - held / padded) : 0;
    r->padded = stats.padded;
    r->held = stats.held;
    r->progress.step = stats.step;
    r->progress.epoch = stats.epoch;
    r->progress.records = stats.records;
    r->progress.stage = "train";
}

static int report_step(struct run *r, struct metric *m, struct err *err)
{
    report_shapes(r, m);
    m->step = r->progress.step;
    int e = beat_metric(r->beat, m, err);
    beat_progress(r->beat, &r->progress);
    return e;
}

static int not_finite(struct run *r, const struct feed_batch *b,
                      const char *what, struct err *err)
{
    return err_set(err, ERR_NOT_FINITE,
                   "%s is not finite at step %" PRId64 " of %" PRId64
                   " (epoch %" PRId64 ")",
                   what, b->step + 1, r->steps, b->epoch + 1);
}

/* Forward and backward of one micro-batch. */
static int train_micro(struct run *r, const struct feed_batch *b,
                       struct losses *sum, struct err *err)
{
    int e = trainer_micro(r->trainer, &b->batch, r->step_base + b->step,
                          b->effective, sum, err);
    if (e < 0)
        return e;
    trace_micro(r->trace, r->feed, b);
    r->progress.micro_batches++;
    r->use.micro_batches++;
    if (b->new_shape && r->memory.fake.on)
        memory_fake_shape(&r->memory.fake);
    int64_t every = r->thresholds.empty_cache_every;
    if (every > 0 && r->use.micro_batches % every == 0)
        memory_empty_cache(&r->memory, r->trainer);
    r->oom_stage = "later";
    return 0;
}

static bool not_wanted(void *arg)
{
    return run_is_over(arg);
}

/* Where it is due, after a step and before that is reported. */
static int validate(struct run *r, const struct feed_batch *b, struct metric *m,
                    struct err *err)
{
    if (!r->evaluate ||
        !evaluate_is_due(&r->spec, b->step + 1, b->epoch_end, b->cycle_end))
        return 0;
    struct losses sum = {0};
    const char *stage = r->oom_stage;
    r->oom_stage = "validation";
    run_set_stage(r, "validate");
    int e = evaluate_run(r->evaluate, r->trainer, not_wanted, r, &sum, err);
    r->oom_stage = stage;
    r->step_began = run_seconds();
    if (e < 0)
        return e;
    m->validated = true;
    m->validation = means(&sum);
    return 0;
}

/* The optimizer's step that ends an effective batch. */
static int train_step(struct run *r, const struct feed_batch *b,
                      const struct losses *sum, struct err *err)
{
    if (!isfinite(sum->total))
        return not_finite(r, b, "the loss", err);
    double norm = 0, lr = spec_cycle_rate(&r->spec.training, r->step_base,
                                          b->step, r->steps);
    const char *stage = r->oom_stage;
    r->oom_stage = "optimizer";
    int e = trainer_step(r->trainer, lr, &norm, err);
    if (e == ERR_NOT_FINITE)
        return not_finite(r, b, "the gradient's norm", err);
    if (e < 0)
        return e;
    r->oom_stage = stage;
    if (r->memory.fake.on)
        memory_fake_step(&r->memory.fake);
    struct metric m = {.loss = means(sum),
                       .lr = (float)lr,
                       .grad_norm = (float)norm,
                       .records_per_s = (float)measure_rate(r, sum->records)};
    struct err why = {0};
    int v = validate(r, b, &m, &why);
    int64_t step = b->step, epoch = b->epoch;
    feed_trained(r->feed);
    trace_step(r->trace, step + 1, epoch);
    if (v < 0 && v != ERR_DATA) { /* as if this step had not been */
        r->unsaved = true;
        *err = why;
        return v;
    }
    e = report_step(r, &m, err);
    if (e == 0 && v < 0) { /* the step is good, the record is not */
        run_set_stage(r, "validate");
        *err = why;
        return v;
    }
    return e;
}

/* ---- between steps ---- */

enum go { GO_ON = 1, GO_YIELD = 2, GO_QUIETLY = 3 }; /* < 0: an error */

struct parting {
    const char *reason;
    char detail[256];
};

static enum go obey(struct run *r, struct parting *why)
{
    char reason[32];
    switch (beat_order(r->beat, reason, sizeof reason)) {
    case ORDER_STOP:
    case ORDER_LOST:
        return GO_QUIETLY;
    case ORDER_YIELD:
        why->reason = strcmp(reason, "pause") ? "drain" : "pause";
        snprintf(why->detail, sizeof why->detail, "%s",
                 !strcmp(reason, "pause")    ? "the job was paused"
                 : !strcmp(reason, "cancel") ? "the job was canceled"
                                             : "the server asked for it");
        return GO_YIELD;
    case ORDER_CONTINUE:
        break;
    }
    if (run_told_to_end(r)) {
        why->reason = "drain";
        snprintf(why->detail, sizeof why->detail, "the worker was told to end");
        return GO_YIELD;
    }
    return GO_ON;
}

/* All decisions at an optimizer-step boundary. */
static int boundary(struct run *r, bool last, struct parting *why,
                    struct err *err)
{
    run_take_sample(r);
    r->use.seconds = run_seconds() - r->began;
    bool first = r->progress.step == r->first_step + 1;
    int e = 0;
    if (first)
        e = thresholds_baseline(&r->thresholds, &r->sample,
                                "after the first step", err);
    enum yield_reason reached = thresholds_check(
        &r->thresholds, &r->sample, &r->use, why->detail, sizeof why->detail);
    run_keep_sample(r, first || last || reached != YIELD_NONE || e < 0);
    if (first)
        beat_now(r->beat);
    if (e < 0)
        return e;
    struct parting asked = {0};
    enum go go = obey(r, &asked);
    if (go == GO_QUIETLY || last)
        return go == GO_QUIETLY ? GO_QUIETLY : GO_ON;
    if (go == GO_YIELD) {
        *why = asked;
        return GO_YIELD;
    }
    if (reached != YIELD_NONE) {
        why->reason = yield_word(reached);
        return GO_YIELD;
    }
    e = saver_boundary(r->saver, &r->progress, r->runtime.checkpoint_every,
                       &r->memory, &r->thresholds, err);
    if (e < 0)
        return e;
    if (e > 0)
        r->step_began = run_seconds();
    e = adopt_policy(r, err);
    return e < 0 ? e : GO_ON;
}

/* There is no more data for want of a server. Who is to end anyhow does so at
 * the last step, as at any boundary: what was trained of this one is dropped. */
static int no_data(struct run *r, int e, struct parting *why)
{
    if (!r->remote || !client_retriable(e))
        return e;
    enum go go = obey(r, why);
    if (go == GO_ON)
        return e;
    trainer_discard(r->trainer);
    return go;
}

/* Train until the data's end (GO_ON), a yield, or an error. */
static int train(struct run *r, struct parting *why, struct err *err)
{
    struct losses sum = {0};
    struct feed_batch *b;
    int e;
    r->step_began = run_seconds();
    while ((e = feed_next(r->feed, &b, err)) > 0) {
        if (b->step >= r->steps)
            return err_set(err, ERR_DATA,
                           "the data holds more records than the %" PRId64
                           " steps of this cycle were planned for",
                           r->steps);
        e = train_micro(r, b, &sum, err);
        if (e < 0)
            return e;
        if (!b->last)
            continue;
        bool last = b->cycle_end;
        e = train_step(r, b, &sum, err);
        if (e < 0)
            break;
        e = boundary(r, last, why, err);
        if (e != GO_ON)
            return e;
        sum = (struct losses){0};
    }
    return e < 0 ? no_data(r, e, why) : GO_ON;
}

/* ---- the lease as a whole ---- */

static int work(struct run *r, struct err *err)
{
    struct parting why = {0};
    struct err failure = {0};
    int64_t bad_checkpoint = 0;
    int e = prepare(r, &bad_checkpoint, &failure);
    if (e == 0)
        e = obey(r, &why);
    if (e == GO_ON)
        e = train(r, &why, &failure);
    if (e == GO_QUIETLY || (e < 0 && (run_is_over(r) || leave_is_refusal(e)))) {
        beat_say(r->beat, "info", "the server wants no more of this lease");
        return 0;
    }
    if (e == GO_YIELD || e == GO_ON) {
        e = e == GO_YIELD ? leave_yielded(r, why.reason, why.detail, &failure)
                          : leave_finished(r, &failure);
        *err = failure;
        if (e < 0 && (!client_retriable(e) || e == ERR_NOSPACE) &&
            !leave_is_refusal(e) && !run_is_over(r)) {
            failure.code = e == ERR_INVALID ? ERR_CONFLICT : e;
            e = leave_failed(r, &failure, 0, err);
        }
    } else {
        e = leave_failed(r, &failure, bad_checkpoint, err);
    }
    if (e < 0 && (leave_is_refusal(e) || run_is_over(r))) {
        beat_say(r->beat, "info", "the server refused the release: %s",
                 err->text);
        return 0;
    }
    return e;
}

static void run_release(struct run *r)
{
    saver_free(r->saver);
    feed_close(r->feed);
    evaluate_close(r->evaluate);
    remote_free(r->remote);
    trainer_free(r->trainer);
    trace_close(r->trace);
    beat_stop(r->beat);
    runtime_release(&r->runtime);
    spec_release(&r->spec);
    json_decref(r->fingerprint);
    json_decref(r->claim);
    client_free(r->client);
}

int worker_run(const struct worker_options *o, struct err *err)
{
    CLEANUP(run_release) struct run r = {.o = o};
    struct client_options waiting = o->net;
    waiting.interrupt = o->drain; /* a long poll must not hold up SIGTERM */
    struct client *claimer = NULL;
    int e = client_new(&waiting, &claimer, err);
    if (e == 0)
        e = claim_wait(claimer, o, &r.claim, err);
    client_free(claimer);
    if (e <= 0)
        return e;
    r.began = run_seconds();
    e = client_new(&o->net, &r.client, err);
    if (e == 0)
        e = prepare_claim(&r, err);
    if (e < 0)
        return e;
    double interval =
        json_number_value(json_object_get(r.claim, "heartbeat_s"));
    const json_t *record =
        json_object_get(json_object_get(r.claim, "spec"), "record");
    bool has_policy = false, has_value = false;
    const char *name;
    json_t *field;
    json_object_foreach((json_t *)record, name, field)
    {
        const char *kind = json_string_value(json_object_get(field, "kind"));
        if (kind && !strcmp(kind, "target"))
            *(json_object_get(field, "over") ? &has_policy : &has_value) = true;
    }
    e = beat_start(&o->net, r.lease, r.token,
                   number(r.claim, "runtime_version"),
                   interval > 0 ? interval : WIRE_HEARTBEAT_S, has_policy,
                   has_value, &r.progress, &r.beat, err);
    return e < 0 ? e : work(&r, err);
}
