/* feed.h - records in training order, as padded micro-batches.
 *
 * The feed reads the frozen shards front to back, keeps a shuffle buffer of
 * references (shard, offset, length, hash), draws from it with a counter-based
 * generator, decodes, pads and hands out micro-batches that a thread prepares
 * ahead of the trainer. An effective batch ends with its epoch, so the last
 * one of an epoch may be partial.
 *
 * What is saved is the position after the last record *trained*, never that of
 * the last one prefetched: each batch carries the count of draws before and
 * after it, and draws that were made ahead are undone in the copy. Resuming
 * seeks; its cost does not depend on the position. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/torch_shim.h"

struct feed;

struct feed_batch {
    struct batch batch;
    int64_t step;        /* optimizer step of the cycle it belongs to, 0-based */
    int64_t epoch;       /* 0-based */
    int effective;       /* records of that step's whole batch */
    bool last;           /* the last micro-batch of its step */
    bool epoch_end;      /* and its step the last of the epoch */
    bool new_shape;      /* first time in this process */
};

/* Open the shards of a snapshot (the claim's `data`, see wire.h), for a cycle
 * whose signature seeds are (seed, cycle). Shards are checked for size, mtime
 * and inode; a difference has the blocks already passed verified on a thread,
 * whose finding any later call returns as ERR_DATA. */
int feed_open(const struct spec *spec, const struct runtime_policy *runtime,
              const json_t *data, int64_t cycle, struct feed **ret,
              struct err *err);
/* Go on at a saved position: the manifest's `feed` object and its buffer
 * tensor (n × 4 of int64: shard, offset, length, hash). */
int feed_resume(struct feed *f, const json_t *position, const int64_t *buffer,
                int64_t n, struct err *err);

/* The next micro-batch: 1, 0 at the end of the last epoch, or ERR_DATA with
 * shard, line, offset and field. Valid until the next call. */
int feed_next(struct feed *f, struct feed_batch **ret, struct err *err);
/* Padding or micro-batch changed: holds from the next effective batch on. */
int feed_set_runtime(struct feed *f, const struct runtime_policy *runtime,
                     struct err *err);

/* The position after the last batch that feed_next returned with `last` set.
 * *ret_position: caller owns; *ret_buffer: malloc'ed, n × 4. */
int feed_save(struct feed *f, json_t **ret_position, int64_t **ret_buffer,
              int64_t *ret_n, struct err *err);

struct feed_stats {
    int64_t records, skipped, shapes; /* trained; bad ones; distinct padded */
    int64_t bytes_read;
    double wait_s; /* the trainer waited for the feed */
    json_t *bad;   /* first bad records, [{shard, line, offset, field, detail}];
                    * borrowed */
};
void feed_stats(struct feed *f, struct feed_stats *ret);
void feed_close(struct feed *f);
