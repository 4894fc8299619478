#include "worker/prepare.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/json_read.h"
#include "worker/load.h"

static int64_t number(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static bool ends(void *arg)
{
    return run_told_to_end(arg);
}

int prepare_claim(struct run *r, struct err *err)
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
    /* it stands there from the first heartbeat on, not at 0 until it has loaded */
    const json_t *manifest =
        json_object_get(json_object_get(r->claim, "checkpoint"), "manifest");
    r->progress.step = number(manifest, "step");
    r->progress.epoch = number(manifest, "epoch");
    r->progress.records = number(manifest, "records");
    r->progress.micro_batches =
        number(json_object_get(manifest, "totals"), "micro_batches");
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
    struct loaded_feed feed = {0};
    double begin = run_seconds();
    int e = load_state(r->client, number(from, "id"), manifest, r->trainer,
                       &feed, run_give_up, r, err);
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
             number(from, "id"), run_seconds() - begin);
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
                              .give_up = run_give_up,
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
                               .give_up = run_data_give_up,
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

int prepare(struct run *r, int64_t *ret_bad, struct err *err)
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
    run_take_sample(r);
    run_keep_sample(r, true);
    run_use_policy(r);
    run_set_stage(r, "first_step");
    beat_now(r->beat); /* what was asked during the load counts at once */
    beat_say(r->beat, "info",
             "job %" PRId64 ", cycle %" PRId64 ": from step %" PRId64
             " of %" PRId64 " on %s, %d thread%s",
             number(json_object_get(r->claim, "lease"), "job"), r->cycle,
             r->progress.step, r->steps, r->device, threads,
             threads == 1 ? "" : "s");
    return thresholds_baseline(&r->thresholds, &r->sample, "after load", err);
}
