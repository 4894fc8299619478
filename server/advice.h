/* advice.h - what to pad to, from how long records are.
 *
 * Each piece of advice is a `runtime.padding` that can be pasted as it stands,
 * and what it wastes: the share of padded entries that hold nothing, of all
 * fields along all dimensions, over micro-batches drawn at random. `shapes` is
 * how many distinct padded shapes can come of it. */
#pragma once
#include <jansson.h>
#include "schema/err.h"
#include "schema/ladder.h"

struct advice_dim {
    const char *name;
    const struct lengths *lengths;
    int fields; /* that run along it: each pads an entry of its own */
};

/* {"micro_batch", "dynamic": {waste, shapes}, "stable": {"p99": {padding, waste,
 * shapes}, "p100"}, "ladder": {"4", "8", "16"}}, or null where no record has a
 * length. 0, or ERR_NOMEM. */
int advice_json(const struct advice_dim *dims, int n, int micro_batch,
                json_t **ret, struct err *err);
