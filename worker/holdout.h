/* holdout.h - records that are never trained on, to see how well the model does
 * on what it has not seen: as padded micro-batches, the same ones in the same
 * order each time.
 *
 * They are the first training.validation.records (in the order of the files) of
 * those that a fraction holds out by their hash, or of another dataset's shards.
 * One that does not decode is an error that names its place, or, where bad
 * records are skipped, is left out. Nothing here is part of a position: a hold-out
 * is read from its beginning, whenever it is. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/torch_shim.h"

struct holdout;
struct remote;

/* Those of a claim's `data`. 1: *ret is there; 0: nothing is held out (the data
 * has no `validation`). `remote` as for feed_open; the spec must outlive it. */
int holdout_open(const struct spec *spec, const struct runtime_policy *runtime,
                 const json_t *data, struct remote *remote,
                 struct holdout **ret, struct err *err);
/* The next micro-batch, valid until the next call: 1, 0 behind the last one, or
 * ERR_DATA with shard, line, offset and field. */
int holdout_next(struct holdout *h, const struct batch **ret, struct err *err);
/* The next one is the first again. */
void holdout_rewind(struct holdout *h);
/* Padding or micro-batch changed: holds from the next micro-batch on. */
int holdout_set_runtime(struct holdout *h, const struct runtime_policy *runtime,
                        struct err *err);
/* By any thread: a read that waits for a server ends with ERR_NET. */
void holdout_interrupt(struct holdout *h);
void holdout_close(struct holdout *h);
