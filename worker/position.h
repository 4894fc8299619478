/* position.h - where in the order of records training stands: what a checkpoint
 * keeps of the feed besides the shuffle buffer (feed.h says what is in it). */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"

struct position {
    int64_t epoch, step;
    int64_t shard, offset; /* where the next line is read; not of a global
                            * shuffle, whose draws say all */
    int64_t draws;         /* in this epoch */
    int64_t records, skipped, renormalised;
};

/* ERR_CORRUPT names what is missing. What older checkpoints lack is 0. */
int position_parse(const json_t *in, bool global, struct position *ret,
                   struct err *err);
/* NULL: no memory. Caller owns. */
json_t *position_json(const struct position *p, bool global);
