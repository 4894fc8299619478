#include "worker/memory.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* MPS never gives memory back by itself; these keep a run alive. */
#define MPS_MICRO_BATCHES 3000
#define MPS_SHARE 0.85
#define MPS_EMPTY_CACHE 50

int memory_init(struct memory *m, const char *device, struct err *err)
{
    *m = (struct memory){0};
    int r = memory_fake_parse(getenv("PAWL_MEMORY_PROBE"), &m->fake, err);
    if (r < 0)
        return r;
    snprintf(m->device, sizeof m->device, "%s", m->fake.on ? "mps" : device);
    return 0;
}

void memory_sample(struct memory *m, struct trainer *t,
                   struct memory_sample *ret)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *ret = (struct memory_sample){
        .allocated = -1,
        .device = -1,
        .recommended = -1,
        .at_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000,
    };
    memory_host(ret);
    if (m->fake.on) {
        if (m->fake.available >= 0)
            ret->available = m->fake.available;
        ret->allocated = m->fake.start;
        ret->device = m->fake.level;
        ret->recommended = m->fake.recommended;
        return;
    }
    if (t)
        trainer_memory(t, &ret->allocated, &ret->device, &ret->recommended);
    if (ret->device < 0 && !strcmp(m->device, "cpu"))
        ret->device = ret->rss;
}

void memory_empty_cache(struct memory *m, struct trainer *t)
{
    if (m->fake.on)
        memory_fake_empty_cache(&m->fake);
    trainer_empty_cache(t);
}

static void put(json_t *o, const char *name, int64_t v)
{
    if (v >= 0)
        json_object_set_new(o, name, json_integer(v));
}

json_t *memory_sample_json(const struct memory_sample *s)
{
    json_t *o = json_object();
    if (!o)
        return NULL;
    put(o, "step", s->step);
    put(o, "at_ms", s->at_ms);
    put(o, "allocated_bytes", s->allocated);
    put(o, "device_bytes", s->device);
    put(o, "rss_bytes", s->rss);
    put(o, "available_bytes", s->available);
    put(o, "swap_bytes", s->swap);
    put(o, "shapes", s->shapes);
    return o;
}

static double or_default(double v, double fallback)
{
    return v < 0 ? fallback : v;
}

void thresholds_resolve(const struct runtime_policy *p, const char *device,
                        int64_t recommended, struct thresholds *ret)
{
    bool mps = !strcmp(device, "mps");
    double share =
        mps && recommended > 0 ? MPS_SHARE * (double)recommended / MB : 0;
    *ret = (struct thresholds){
        .device_memory_mb = or_default(p->restart.device_memory_mb, share),
        .rss_mb = or_default(p->restart.rss_mb, 0),
        .seconds = or_default(p->restart.seconds, 0),
        .every_micro_batches = p->restart.every_micro_batches >= 0
                                   ? p->restart.every_micro_batches
                               : mps ? MPS_MICRO_BATCHES
                                     : 0,
        .empty_cache_every = p->empty_cache_every >= 0 ? p->empty_cache_every
                             : mps                     ? MPS_EMPTY_CACHE
                                                       : 0,
    };
}

const char *yield_word(enum yield_reason r)
{
    switch (r) {
    case YIELD_MEMORY:
        return "memory";
    case YIELD_STEPS:
        return "steps";
    case YIELD_TIME:
        return "time";
    case YIELD_NONE:
        break;
    }
    return "none";
}

/* The level in MB when it is known and has reached the threshold. */
static bool reached(double threshold_mb, int64_t bytes, double *ret_mb)
{
    *ret_mb = (double)bytes / MB;
    return threshold_mb > 0 && bytes >= 0 && *ret_mb >= threshold_mb;
}

enum yield_reason thresholds_check(const struct thresholds *t,
                                   const struct memory_sample *s,
                                   const struct lease_use *use, char *detail,
                                   size_t cap)
{
    double mb;
    if (reached(t->device_memory_mb, s->device, &mb)) {
        snprintf(detail, cap,
                 "device_memory_mb is %g and the device holds %.0f MB",
                 t->device_memory_mb, mb);
        return YIELD_MEMORY;
    }
    if (reached(t->rss_mb, s->rss, &mb)) {
        snprintf(detail, cap, "rss_mb is %g and the process holds %.0f MB",
                 t->rss_mb, mb);
        return YIELD_MEMORY;
    }
    if (t->every_micro_batches > 0 &&
        use->micro_batches >= t->every_micro_batches) {
        snprintf(detail, cap,
                 "every_micro_batches is %" PRId64 " and the lease made "
                 "%" PRId64,
                 t->every_micro_batches, use->micro_batches);
        return YIELD_STEPS;
    }
    if (t->seconds > 0 && use->seconds >= t->seconds) {
        snprintf(detail, cap, "seconds is %g and the lease took %.1f",
                 t->seconds, use->seconds);
        return YIELD_TIME;
    }
    detail[0] = 0;
    return YIELD_NONE;
}

int thresholds_baseline(const struct thresholds *t,
                        const struct memory_sample *s, const char *when,
                        struct err *err)
{
    double mb;
    if (reached(t->device_memory_mb, s->device, &mb))
        return err_at(err, ERR_INVALID, "/runtime/restart/device_memory_mb",
                      "restart.device_memory_mb is %g MB, but a fresh "
                      "process holds %.0f MB on the device %s: every process "
                      "would stop at once",
                      t->device_memory_mb, mb, when);
    if (reached(t->rss_mb, s->rss, &mb))
        return err_at(err, ERR_INVALID, "/runtime/restart/rss_mb",
                      "restart.rss_mb is %g MB, but a fresh process takes "
                      "%.0f MB %s: every process would stop at once",
                      t->rss_mb, mb, when);
    return 0;
}

/* Left over for what the others on this host, and training itself, take next. */
#define RESERVE_MB 64

bool memory_allows(const struct memory *m, const struct thresholds *t,
                   int64_t bytes, char *why, size_t cap)
{
    struct memory_sample s;
    memory_host(&s);
    if (m->fake.on && m->fake.available >= 0)
        s.available = m->fake.available;
    int64_t need = bytes + bytes / 8 + (int64_t)(RESERVE_MB * MB);
    int64_t limits = memory_limits_left();
    const char *who = "the system has";
    int64_t left = s.available >= 0 ? s.available : INT64_MAX;
    if (limits < left) {
        left = limits;
        who = "this process's limits leave";
    }
    int64_t threshold = t->rss_mb > 0 && s.rss >= 0
                            ? (int64_t)(t->rss_mb * MB) - s.rss
                            : INT64_MAX;
    if (threshold < left) {
        left = threshold > 0 ? threshold : 0;
        who = "restart.rss_mb leaves";
    }
    if (left >= need) {
        why[0] = 0;
        return true;
    }
    snprintf(why, cap,
             "a copy of it wants %.0f MB, with what must stay free, and %s "
             "%.0f MB",
             (double)need / MB, who, (double)left / MB);
    return false;
}
