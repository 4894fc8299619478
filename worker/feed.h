/* feed.h - records in training order, as padded micro-batches.
 *
 * Lines are read ahead by one thread (reader.h), drawn, decoded and gathered into
 * effective batches by another (producer.h): through a shuffle buffer of
 * references (shuffle.h), or in the order of a permutation over the whole data
 * (plan.h). A micro-batch is padded when it is handed out (collate.h), so a new
 * padding holds at once. An effective batch ends with its epoch, so the last one
 * of an epoch may be partial, and so may be that of a cycle which takes no more
 * records.
 *
 * What is saved is the position after the last step *trained*, never that of
 * the last record prefetched: each batch carries the journal of its draws, and
 * draws that were made ahead are undone in the copy. Resuming seeks; its cost
 * does not depend on the position.
 *
 * A position (the manifest's `feed`):
 *   {"epoch", "step", "shard", "offset", "draws", "records", "skipped",
 *    "renormalised", "bad": [{shard, line, offset, field, detail}, …],
 *    "exceeded": {dimension: {"count", "longest"}}?}
 * shard and offset say where the next line is read; a global shuffle has none,
 * its draws say all. Draws count within the epoch; records, skipped, renormalised
 * and exceeded within the cycle. Beside it stands the buffer, n × 4 of int64:
 * shard, offset, length, hash. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/shapes.h"
#include "worker/torch_shim.h"

struct feed;
struct remote;

struct feed_batch {
    struct batch batch;
    int64_t step;   /* optimizer step of the cycle it belongs to, 0-based */
    int64_t epoch;  /* 0-based */
    int effective;  /* records of that step's whole batch */
    bool last;      /* the last micro-batch of its step */
    bool epoch_end; /* and its step the last of the epoch */
    bool cycle_end; /* and of the cycle, which may take less than an epoch */
    bool new_shape; /* first time in this process */
    const int64_t (*places)[2]; /* of its records: shard, offset */
};

/* Open the shards of a snapshot (the claim's `data`, see wire.h), for a cycle
 * whose shuffle depends on (seed, cycle). Shards are checked for size, mtime
 * and inode; a difference has all blocks verified on a thread, whose finding
 * feed_next returns as ERR_DATA, at the latest instead of the end. ERR_DATA too
 * when there is no record, or, unless bad records are skipped, a shard without
 * one. `remote` (may be NULL: the files are here) must outlive the feed. */
int feed_open(const struct spec *spec, const struct runtime_policy *runtime,
              const json_t *data, struct remote *remote, int64_t cycle,
              struct feed **ret, struct err *err);
/* Go on at a saved position. ERR_CORRUPT when it does not fit the shards. */
int feed_resume(struct feed *f, const json_t *position, const int64_t *buffer,
                int64_t n, struct err *err);

/* The next micro-batch: 1, 0 at the end of the last epoch, or ERR_DATA with
 * shard, line, offset and field. Valid until the next call. */
int feed_next(struct feed *f, struct feed_batch **ret, struct err *err);
/* The step whose last micro-batch was handed out is trained. Must come before
 * the feed_next that follows. */
void feed_trained(struct feed *f);
/* Padding or micro-batch changed: holds from the next effective batch on. */
int feed_set_runtime(struct feed *f, const struct runtime_policy *runtime,
                     struct err *err);

/* The position after the last trained step. *ret_position: caller owns;
 * *ret_buffer: malloc'ed, n × 4. */
int feed_save(struct feed *f, json_t **ret_position, int64_t **ret_buffer,
              int64_t *ret_n, struct err *err);

struct feed_stats {
    /* as of the last trained step */
    int64_t step, epoch, records, skipped, renormalised;
    const struct exceeded *exceeded; /* per dimension; valid until feed_close */
    int64_t shapes;                  /* distinct padded ones of this process */
    int64_t padded, held; /* entries of this process' batches, and those of them
                           * that are not padding, along each field's dimension */
    int64_t bytes_read;   /* from shards, by this process */
    double wait_s;        /* the trainer waited for the feed */
    json_t *bad; /* first bad records, as in the position; caller owns */
};
void feed_stats(struct feed *f, struct feed_stats *ret);
/* The name of a shard, for messages. */
const char *feed_shard(const struct feed *f, int64_t shard);
void feed_close(struct feed *f);
