#include "worker/loop.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/spec.h"
#include "schema/wire.h"
#include "worker/beat.h"
#include "worker/claim.h"
#include "worker/evaluate.h"
#include "worker/feed.h"
#include "worker/load.h"
#include "worker/memory.h"
#include "worker/remote.h"
#include "worker/saver.h"
#include "worker/torch_shim.h"
#include "worker/trace.h"

/* A server that is away is waited for as long as there is something to tell
 * it: a while when the worker was told to end, else this long. */
#define AWAY_DRAIN_S 20.0
#define AWAY_MAX_S (6 * 3600.0)
/* A server that is there but keeps failing at one request. */
#define TRIES_MAX 40
/* Failures to get data that are further apart are not in a row. */
#define DATA_ROW_S 30.0
/* Memory samples that tell nothing new are kept this far apart. */
#define SAMPLE_S 1.0

struct run {
    const struct worker_options *o;
    struct client *client;
    json_t *claim; /* the server's answer */
    struct spec spec;
    struct runtime_policy runtime;
    int64_t lease, token, steps, step_base, cycle;
    json_t *fingerprint; /* goes into manifests */
    const char *signature, *device;
    double began; /* when the lease was granted */

    struct beat *beat;
    struct trainer *trainer;
    struct remote *remote; /* NULL: the shards are here */
    int remote_tries;      /* in a row */
    double remote_asked;
    struct feed *feed;
    struct evaluate *evaluate; /* NULL: nothing is held out */
    struct trace *trace;
    struct saver *saver;
    struct memory memory;
    struct thresholds thresholds;

    struct progress progress;
    const char *oom_stage; /* where memory would run out now */
    struct lease_use use;
    int64_t first_step; /* trained by this lease: steps before it */

    struct memory_sample sample, sample_sent;
    double padded, held; /* entries of batches, up to the last step */
    bool unsaved; /* a step that must not count: it could not be validated */
    double step_began, rate, rate_weight;

    int tries;           /* at what is under way for the lease's end */
    int64_t state_bytes; /* that there was no room for */
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t number(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static bool told_to_end(const struct run *r)
{
    return atomic_load(r->o->drain);
}

/* ---- what the server wants ---- */

/* Nothing that this lease writes will count any more. */
static bool is_over(struct run *r)
{
    char reason[32];
    enum order o = beat_order(r->beat, reason, sizeof reason);
    return o == ORDER_STOP || o == ORDER_LOST;
}

static bool state_folder_is_gone(const struct run *r)
{
    return r->o->net.state && access(r->o->net.state, F_OK) < 0;
}

/* Between attempts at what the lease cannot begin or end without. */
static bool give_up(void *arg)
{
    struct run *r = arg;
    double away = beat_away_s(r->beat);
    if (is_over(r) || state_folder_is_gone(r))
        return true;
    if (away > (told_to_end(r) ? AWAY_DRAIN_S : AWAY_MAX_S))
        return true;
    if (away > 0)
        r->tries = 0;
    return ++r->tries > TRIES_MAX;
}

static bool ends(void *arg)
{
    return told_to_end(arg);
}

/* Between attempts to get data, by one of the feed's threads at a time. Nothing
 * is lost with them: whoever is to end does not wait. */
static bool data_give_up(void *arg)
{
    struct run *r = arg;
    char reason[32];
    double away = beat_away_s(r->beat);
    if (told_to_end(r) || away > AWAY_MAX_S ||
        beat_order(r->beat, reason, sizeof reason) != ORDER_CONTINUE)
        return true;
    double now = seconds();
    if (away > 0 || now - r->remote_asked > DATA_ROW_S)
        r->remote_tries = 0;
    r->remote_asked = now;
    return ++r->remote_tries > TRIES_MAX;
}

/* ---- the end ---- */

static void set_stage(struct run *r, const char *stage)
{
    r->progress.stage = stage;
    beat_progress(r->beat, &r->progress);
}

/* The lease has another owner, or is gone. */
static bool is_refusal(int e)
{
    return e == ERR_STALE || e == ERR_NOT_FOUND;
}

static int release_alone(struct run *r, json_t *release, struct err *err)
{
    beat_flush(r->beat, give_up, r);
    int e = beat_report(r->beat, release, err);
    if (e < 0)
        return e;
    json_object_set_new(release, "token", json_integer(r->token));
    char path[96];
    snprintf(path, sizeof path, "/v1/leases/%" PRId64 "/release", r->lease);
    struct request rq = {
        .method = "POST", .path = path, .json = release, .timeout_s = 60};
    CLEANUP(answer_release) struct answer a = {0};
    e = client_insist(r->client, &rq, &a, give_up, r, err);
    beat_reported(r->beat, e == 0);
    return e;
}

/* {dimension: {"count", "longest"}} of the records beyond the padding's profile. */
static json_t *exceeded_json(const struct run *r, const struct feed_stats *s,
                             int64_t *ret_count)
{
    json_t *out = json_object();
    *ret_count = 0;
    for (int d = 0; d < r->spec.record.n_dims; d++) {
        if (!s->exceeded[d].count)
            continue;
        *ret_count += s->exceeded[d].count;
        json_object_set_new(
            out, r->spec.record.dims[d],
            json_pack("{s:I, s:I}", "count", (json_int_t)s->exceeded[d].count,
                      "longest", (json_int_t)s->exceeded[d].longest));
    }
    return out;
}

/* What was odd about the data so far, for the next report. *ret (may be NULL):
 * what the feed counted; its list is gone. Returns the records beyond the
 * padding's profile, one for each dimension. */
static int64_t tell_data(struct run *r, struct feed_stats *ret)
{
    struct feed_stats stats = {0};
    int64_t exceeded = 0;
    if (!r->feed)
        return 0;
    feed_stats(r->feed, &stats);
    struct data_report d = {.skipped = stats.skipped,
                            .renormalised = stats.renormalised,
                            .bad = stats.bad};
    d.exceeded = exceeded_json(r, &stats, &exceeded);
    beat_data(r->beat, &d);
    stats.bad = NULL;
    if (ret)
        *ret = stats;
    return exceeded;
}

/* End the lease: with a checkpoint when there are steps that none covers. */
static int leave(struct run *r, json_t *release, bool with_state,
                 struct err *err)
{
    r->tries = 0;
    tell_data(r, NULL);
    set_stage(r, "save");
    if (with_state && !r->unsaved && r->saver &&
        saver_wants(r->saver, r->progress.step))
        return saver_leave(r->saver, &r->progress, release, &r->state_bytes,
                           err);
    return release_alone(r, release, err);
}

static int leave_finished(struct run *r, struct err *err)
{
    AUTO_JSON json_t *release = json_pack("{s:s, s:s}", "outcome", "finished",
                                          "reason", "all epochs are trained");
    int e = leave(r, release, true, err);
    if (e == 0)
        beat_say(r->beat, "info", "finished at step %" PRId64,
                 r->progress.step);
    return e;
}

static int leave_yielded(struct run *r, const char *reason, const char *detail,
                         struct err *err)
{
    beat_say(r->beat, "info", "yields at step %" PRId64 ": %s%s%s",
             r->progress.step, reason, *detail ? ": " : "", detail);
    AUTO_JSON json_t *release =
        json_pack("{s:s, s:s, s:s}", "outcome", "yielded", "reason", reason,
                  "detail", detail);
    return leave(r, release, true, err);
}

/* Errors that come again however often they are tried. */
static bool is_final(int e)
{
    return e == ERR_DATA || e == ERR_INVALID || e == ERR_NOT_FINITE;
}

static int leave_failed(struct run *r, const struct err *why,
                        int64_t bad_checkpoint, struct err *err)
{
    beat_say(r->beat, "error", "%s", why->text);
    AUTO_JSON json_t *error =
        json_pack("{s:s, s:s, s:b}", "code", err_word(why->code), "detail",
                  why->text, "final", is_final(why->code));
    if (!error)
        error = json_pack("{s:s, s:s, s:b}", "code", err_word(why->code),
                          "detail", "an error that is not text", "final",
                          is_final(why->code));
    if (why->shard[0]) {
        json_object_set_new(error, "shard", json_string(why->shard));
        json_object_set_new(error, "offset", json_integer(why->offset));
        if (why->line > 0)
            json_object_set_new(error, "line", json_integer(why->line));
    }
    if (why->field[0])
        json_object_set_new(error, "field", json_string(why->field));
    json_object_set_new(
        error, "stage",
        json_string(why->code == ERR_OOM ? r->oom_stage : r->progress.stage));
    if (bad_checkpoint)
        json_object_set_new(error, "checkpoint", json_integer(bad_checkpoint));
    if (why->code == ERR_NOSPACE && r->state_bytes) {
        json_object_set_new(error, "bytes", json_integer(r->state_bytes));
        json_object_set_new(error, "missing_bytes",
                            json_integer(why->missing_bytes));
    }
    AUTO_JSON json_t *release =
        json_pack("{s:s, s:O, s:O}", "outcome", "failed", "reason",
                  json_object_get(error, "detail"), "error", error);
    if (!release)
        return err_set(err, ERR_NOMEM, "no memory to report a failure");
    /* the state before a step that failed for its data is a good one */
    bool with_state = why->code == ERR_DATA || why->code == ERR_NOT_FINITE;
    if (with_state && r->trainer)
        trainer_discard(r->trainer);
    int e = leave(r, release, with_state, err);
    if (with_state &&
        (e == ERR_NOSPACE || (e < 0 && !client_retriable(e) && !is_refusal(e))))
        e = leave(r, release, false, err); /* then without it */
    return e;
}

/* ---- the runtime policy ---- */

static void use_policy(struct run *r)
{
    thresholds_resolve(&r->runtime, r->memory.device, r->sample.recommended,
                       &r->thresholds);
}

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
    use_policy(r);
    beat_say(r->beat, "info",
             "a new runtime policy holds from step %" PRId64 " on",
             r->progress.step + 1);
    e = feed_set_runtime(r->feed, &r->runtime, err);
    return e < 0 || !r->evaluate
               ? e
               : evaluate_set_runtime(r->evaluate, &r->runtime, err);
}

/* ---- memory ---- */

static void take_sample(struct run *r)
{
    struct feed_stats stats = {0};
    memory_sample(&r->memory, r->trainer, &r->sample);
    tell_data(r, &stats);
    r->sample.shapes = stats.shapes;
    r->sample.step = r->progress.step;
}

/* Keep the sample for the server if it tells something: a new peak, a new
 * shape, or merely that time went by. */
static void keep_sample(struct run *r, bool always)
{
    const struct memory_sample *s = &r->sample, *old = &r->sample_sent;
    bool news = always || s->device > old->device + (int64_t)MB ||
                s->rss > old->rss + (int64_t)(8 * MB) ||
                s->at_ms - old->at_ms >= (int64_t)(SAMPLE_S * 1000);
    if (!news)
        return;
    beat_memory(r->beat, s);
    r->sample_sent = *s;
}

/* ---- one step ---- */

static double mean(double sum, int64_t n)
{
    return n ? sum / (double)n : NAN;
}

/* Records per second over about the last ten seconds. */
static double measure_rate(struct run *r, int64_t records)
{
    double now = seconds(), took = now - r->step_began;
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
    int64_t exceeded = tell_data(r, &stats);
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
    return is_over(arg);
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
    set_stage(r, "validate");
    int e = evaluate_run(r->evaluate, r->trainer, not_wanted, r, &sum, err);
    r->oom_stage = stage;
    r->step_began = seconds();
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
    if (told_to_end(r)) {
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
    take_sample(r);
    r->use.seconds = seconds() - r->began;
    bool first = r->progress.step == r->first_step + 1;
    int e = 0;
    if (first)
        e = thresholds_baseline(&r->thresholds, &r->sample,
                                "after the first step", err);
    enum yield_reason reached = thresholds_check(
        &r->thresholds, &r->sample, &r->use, why->detail, sizeof why->detail);
    keep_sample(r, first || last || reached != YIELD_NONE || e < 0);
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
        r->step_began = seconds();
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
    r->step_began = seconds();
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

/* ---- from the claim to the first step ---- */

static int read_claim(struct run *r, struct err *err)
{
    const json_t *lease = json_object_get(r->claim, "lease");
    r->lease = number(lease, "id");
    r->token = number(lease, "token");
    r->cycle = number(lease, "cycle");
    r->steps = number(r->claim, "steps");
    r->step_base = number(r->claim, "step_base");
    r->device = json_string_value(json_object_get(r->claim, "device"));
    r->signature = json_string_value(json_object_get(r->claim, "signature"));
    r->fingerprint = json_deep_copy(json_object_get(r->claim, "fingerprint"));
    r->oom_stage = "load";
    r->progress = (struct progress){.stage = "load", .records_per_s = -1};
    r->sample.recommended = r->sample.device = r->sample.rss = -1;
    if (!r->lease || !r->device || !r->signature || !r->fingerprint)
        return err_set(err, ERR_INVALID,
                       "the server's answer to the claim lacks lease, device, "
                       "signature or fingerprint");
    return 0;
}

static int read_specs(struct run *r, struct err *err)
{
    int e = spec_parse(json_object_get(r->claim, "spec"), &r->spec, err);
    if (e < 0)
        return e;
    return runtime_parse(json_object_get(r->claim, "runtime"), &r->spec.record,
                         r->spec.training.effective_batch, &r->runtime, err);
}

/* Put the state to go on from into trainer and feed. *ret_bad: the checkpoint
 * that did not verify. */
static int load(struct run *r, int64_t *ret_bad, struct err *err)
{
    const json_t *from = json_object_get(r->claim, "checkpoint");
    bool resume = json_is_object(from);
    if (!resume)
        from = json_object_get(r->claim, "initial");
    if (!json_is_object(from))
        return 0;
    const json_t *manifest = json_object_get(from, "manifest");
    if (resume) {
        r->progress.step = number(manifest, "step");
        r->progress.epoch = number(manifest, "epoch");
        r->progress.records = number(manifest, "records");
        r->progress.micro_batches =
            number(json_object_get(manifest, "totals"), "micro_batches");
        beat_progress(r->beat, &r->progress);
    }
    struct loaded_feed feed = {0};
    double begin = seconds();
    int e = load_state(r->client, number(from, "id"), manifest, r->trainer,
                       &feed, give_up, r, err);
    if (e == 0 && !resume && r->spec.training.optimizer.restart)
        e = trainer_restart_optimizer(r->trainer, err);
    if (e == 0 && resume)
        e = feed_resume(r->feed, json_object_get(manifest, "feed"), feed.buffer,
                        feed.n, err);
    free(feed.buffer);
    if (e == ERR_CORRUPT)
        *ret_bad = number(from, "id");
    if (e < 0)
        return e;
    beat_say(r->beat, "info", "loaded checkpoint %" PRId64 " in %.2f s",
             number(from, "id"), seconds() - begin);
    return 0;
}

/* Both ratios, before the allocator first reads them: one alone may clash with
 * the default of the other. */
static int set_watermarks(const struct runtime_policy *p, struct err *err)
{
#ifdef __aarch64__
    bool unified = true;
#else
    bool unified = false;
#endif
    char text[JSON_REAL_MAX];
    double high, low;
    int e = mps_ratios(p->mps.high_watermark_ratio, p->mps.low_watermark_ratio,
                       unified, "/runtime/mps", &high, &low, err);
    if (e < 0)
        return e;
    json_real_text(high, text);
    setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", text, 1);
    json_real_text(low, text);
    setenv("PYTORCH_MPS_LOW_WATERMARK_RATIO", text, 1);
    return 0;
}

static int start_saver(struct run *r, struct err *err)
{
    const json_t *from = json_object_get(r->claim, "checkpoint");
    bool resumed = json_is_object(from);
    if (!resumed)
        from = json_object_get(r->claim, "initial");
    struct saver_options o = {.net = &r->o->net,
                              .lease = r->lease,
                              .token = r->token,
                              .cycle = r->cycle,
                              .signature = r->signature,
                              .fingerprint = r->fingerprint,
                              .resolved_spec = r->spec.resolved,
                              .trainer = r->trainer,
                              .feed = r->feed,
                              .beat = r->beat,
                              .give_up = give_up,
                              .ends = ends,
                              .arg = r};
    return saver_new(&o, json_is_object(from) ? from : NULL, resumed,
                     &r->progress, &r->saver, err);
}

static int reach_data(struct run *r, struct err *err)
{
    if (!r->o->remote)
        return 0;
    struct remote_options o = {.net = &r->o->net,
                               .lease = r->lease,
                               .token = r->token,
                               .cache = r->o->cache,
                               .give_up = data_give_up,
                               .arg = r};
    return remote_new(&o, &r->remote, err);
}

static int open_validation(struct run *r, struct err *err)
{
    int e =
        evaluate_open(&r->spec, &r->runtime, json_object_get(r->claim, "data"),
                      r->remote, &r->evaluate, err);
    return e < 0 ? e : 0;
}

static int prepare(struct run *r, int64_t *ret_bad, struct err *err)
{
    int threads = (int)number(r->claim, "threads");
    int e = read_specs(r, err);
    if (e == 0 && !strcmp(r->device, "mps"))
        e = set_watermarks(&r->runtime, err);
    if (e == 0)
        e = memory_init(&r->memory, r->device, err);
    if (e == 0)
        e = trace_open(&r->trace, err);
    if (e == 0)
        e = reach_data(r, err);
    if (e == 0)
        e = feed_open(&r->spec, &r->runtime, json_object_get(r->claim, "data"),
                      r->remote, r->cycle, &r->feed, err);
    if (e == 0)
        e = open_validation(r, err);
    if (e == 0)
        e = trainer_new(&r->spec, r->device, threads, &r->trainer, err);
    if (e == 0)
        e = load(r, ret_bad, err);
    if (e < 0)
        return e;
    e = start_saver(r, err);
    if (e < 0)
        return e;
    r->first_step = r->progress.step;
    r->oom_stage = "first forward";
    take_sample(r);
    keep_sample(r, true);
    use_policy(r);
    set_stage(r, "first_step");
    beat_now(r->beat); /* what was asked during the load counts at once */
    beat_say(r->beat, "info",
             "job %" PRId64 ", cycle %" PRId64 ": from step %" PRId64
             " of %" PRId64 " on %s, %d thread%s",
             number(json_object_get(r->claim, "lease"), "job"), r->cycle,
             r->progress.step, r->steps, r->device, threads,
             threads == 1 ? "" : "s");
    return thresholds_baseline(&r->thresholds, &r->sample, "after load", err);
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
    if (e == GO_QUIETLY || (e < 0 && (is_over(r) || is_refusal(e)))) {
        beat_say(r->beat, "info", "the server wants no more of this lease");
        return 0;
    }
    if (e == GO_YIELD || e == GO_ON) {
        e = e == GO_YIELD ? leave_yielded(r, why.reason, why.detail, &failure)
                          : leave_finished(r, &failure);
        *err = failure;
        if (e < 0 && (!client_retriable(e) || e == ERR_NOSPACE) &&
            !is_refusal(e) && !is_over(r)) {
            failure.code = e == ERR_INVALID ? ERR_CONFLICT : e;
            e = leave_failed(r, &failure, 0, err);
        }
    } else {
        e = leave_failed(r, &failure, bad_checkpoint, err);
    }
    if (e < 0 && (is_refusal(e) || is_over(r))) {
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
    r.began = seconds();
    e = client_new(&o->net, &r.client, err);
    if (e == 0)
        e = read_claim(&r, err);
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
                   has_value, &r.beat, err);
    return e < 0 ? e : work(&r, err);
}
