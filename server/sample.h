/* sample.h - a look at the data that a job would train on.
 *
 * The records at the beginnings of a few of its shards: how long they are, how
 * much of a model's work they make, whether they fit the spec at all. It reads
 * SAMPLE_SHARDS times SAMPLE_BYTES at most, a few milliseconds' work. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/ladder.h"
#include "schema/memory_need.h"
#include "schema/spec.h"

#define SAMPLE_SHARDS 8
#define SAMPLE_BYTES ((size_t)256 << 10) /* of the text of each */

struct sample {
    int64_t records, bad;
    int n_dims;
    struct lengths *lengths; /* per dimension of the record */
    struct batch_shape sum;  /* of the records, one by one */
    double rows_squared, pairs_squared;
    char first_bad[600]; /* where, and what is wrong with it */
};

/* `data` as a claim has it, its paths placed; shards whose "records" are null are
 * files as they lie there (snapshot_guess). One that cannot be read is left out:
 * the worker will say so, naming it. ERR_NOMEM. */
int sample_read(const struct spec *spec, const json_t *data, struct sample *ret,
                struct err *err);
void sample_release(struct sample *s);

/* The sizes that a padding has yet to get (its count of them): those that waste
 * least with such records. Its count is 0 then. Without records it is left as it
 * is. ERR_NOMEM. */
int sample_choose(const struct sample *s, int micro_batch, struct padding *p,
                  struct err *err);
