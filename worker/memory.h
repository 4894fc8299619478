/* memory.h - how much memory training takes, and when that is too much.
 *
 * Three levels at every optimizer step: what the framework allocated, what the
 * device's driver holds (on the CPU: the RSS), and what the system has left.
 * Figures are bytes; -1 where one is not known.
 *
 * PAWL_MEMORY_PROBE=fake:start_mb=900,per_shape_mb=64,per_step_mb=0,\
 * recommended_mb=25559,cache_mb=0 replaces the device's figures by an MPS-like
 * device's: start_mb after load, growing per new padded shape and per step;
 * emptying the cache gives back up to cache_mb of what grew. MPS's defaults
 * apply, so the whole policy runs on any machine. available_mb stands for what
 * the host has left. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/torch_shim.h"

#define MB (1024.0 * 1024.0)

struct memory_sample {
    int64_t allocated, device, recommended; /* device */
    int64_t rss, available, swap;           /* host; swap: in use */
    int64_t shapes, step;
    int64_t at_ms; /* wall clock */
};
json_t *memory_sample_json(const struct memory_sample *s); /* caller owns */

/* The host's part; one of memory_linux.c, memory_darwin.c. */
void memory_host(struct memory_sample *ret);
/* What this process may count on at most: the host's memory, or its cgroup's
 * limit; 0 where that is not known. */
int64_t memory_total(void);
/* What limits set for this process (cgroup, ulimit) leave it; INT64_MAX where
 * there are none. */
int64_t memory_limits_left(void);

/* The fake device, or none. */
struct memory_fake {
    bool on;
    int64_t start, per_shape, per_step, recommended, cache;
    int64_t available; /* -1: the host's own */
    int64_t level;
};
/* Parse PAWL_MEMORY_PROBE; NULL or "": none. ERR_INVALID. */
int memory_fake_parse(const char *text, struct memory_fake *ret,
                      struct err *err);
void memory_fake_shape(struct memory_fake *f); /* a shape not seen before */
void memory_fake_step(struct memory_fake *f);
void memory_fake_empty_cache(struct memory_fake *f);

struct memory {
    char device[16]; /* whose defaults apply: "mps" for the fake one */
    struct memory_fake fake;
};
int memory_init(struct memory *m, const char *device, struct err *err);
void memory_sample(struct memory *m, struct trainer *t,
                   struct memory_sample *ret);
void memory_empty_cache(struct memory *m, struct trainer *t);

/* Thresholds with the device's defaults filled in; 0: off. */
struct thresholds {
    double device_memory_mb, rss_mb, seconds;
    int64_t every_micro_batches;
    int64_t empty_cache_every;
};
void thresholds_resolve(const struct runtime_policy *p, const char *device,
                        int64_t recommended, struct thresholds *ret);

/* What this lease has used so far. */
struct lease_use {
    int64_t micro_batches;
    double seconds;
};
enum yield_reason { YIELD_NONE, YIELD_MEMORY, YIELD_STEPS, YIELD_TIME };
const char *yield_word(enum yield_reason r);

/* Is a threshold reached? *detail gets the sentence that names it and the
 * level found. */
enum yield_reason thresholds_check(const struct thresholds *t,
                                   const struct memory_sample *s,
                                   const struct lease_use *use, char *detail,
                                   size_t cap);
/* What a fresh process needs must lie below the memory thresholds: ERR_INVALID
 * naming both numbers. `when`: "after load", "after the first step". */
int thresholds_baseline(const struct thresholds *t,
                        const struct memory_sample *s, const char *when,
                        struct err *err);

/* May the process take `bytes` more for a while? Not what the system has to
 * spare, less a reserve, nor what its limits and the threshold of its RSS
 * leave. *why gets the sentence when not. */
bool memory_allows(const struct memory *m, const struct thresholds *t,
                   int64_t bytes, char *why, size_t cap);
