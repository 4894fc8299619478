#include "worker/run.h"
#include <time.h>
#include <unistd.h>

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

double run_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool run_told_to_end(const struct run *r)
{
    return atomic_load(r->o->drain);
}

bool run_is_over(struct run *r)
{
    char reason[32];
    enum order o = beat_order(r->beat, reason, sizeof reason);
    return o == ORDER_STOP || o == ORDER_LOST;
}

static bool state_folder_is_gone(const struct run *r)
{
    return r->o->net.state && access(r->o->net.state, F_OK) < 0;
}

bool run_give_up(void *arg)
{
    struct run *r = arg;
    double away = beat_away_s(r->beat);
    if (run_is_over(r) || state_folder_is_gone(r))
        return true;
    if (away > (run_told_to_end(r) ? AWAY_DRAIN_S : AWAY_MAX_S))
        return true;
    if (away > 0)
        r->tries = 0;
    return ++r->tries > TRIES_MAX;
}

/* By one of the threads that read data at a time. */
bool run_data_give_up(void *arg)
{
    struct run *r = arg;
    char reason[32];
    double away = beat_away_s(r->beat);
    if (run_told_to_end(r) || away > AWAY_MAX_S ||
        beat_order(r->beat, reason, sizeof reason) != ORDER_CONTINUE)
        return true;
    double now = run_seconds();
    if (away > 0 || now - r->remote_asked > DATA_ROW_S)
        r->remote_tries = 0;
    r->remote_asked = now;
    return ++r->remote_tries > TRIES_MAX;
}

void run_set_stage(struct run *r, const char *stage)
{
    r->progress.stage = stage;
    beat_progress(r->beat, &r->progress);
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

int64_t run_tell_data(struct run *r, struct feed_stats *ret)
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

void run_use_policy(struct run *r)
{
    thresholds_resolve(&r->runtime, r->memory.device, r->sample.recommended,
                       &r->thresholds);
}

void run_take_sample(struct run *r)
{
    struct feed_stats stats = {0};
    memory_sample(&r->memory, r->trainer, &r->sample);
    run_tell_data(r, &stats);
    r->sample.shapes = stats.shapes;
    r->sample.step = r->progress.step;
}

void run_keep_sample(struct run *r, bool always)
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
