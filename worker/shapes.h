/* shapes.h - what padding does to batches: how many distinct shapes there are,
 * how much of them is nothing, and what was longer than the policy foresees. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/torch_shim.h"

struct exceeded {
    int64_t count; /* records above the policy's top, in the cycle */
    int longest;   /* their longest; 0: none */
};

struct shapes {
    const struct record_desc *desc;
    uint64_t *v; /* set of hashes; 0 is an empty place */
    size_t n, cap;
    int64_t padded, held; /* entries along dimensions, and those not padding */
    struct exceeded *exceeded, *step; /* per dimension: trained, and under way */
};

int shapes_init(struct shapes *s, const struct record_desc *desc,
                struct err *err);
void shapes_release(struct shapes *s);
/* A micro-batch is handed out. 1: its shape is a new one; 0: it is not. */
int shapes_note(struct shapes *s, const struct batch *b,
                const struct padding *padding, struct err *err);
/* The step that the last ones belong to is trained. */
void shapes_trained(struct shapes *s);
/* {"S": {"count", "longest"}} of dimensions exceeded, NULL when there are none;
 * and back, from a saved position (what does not fit is ignored). */
json_t *shapes_exceeded_json(const struct shapes *s);
void shapes_exceeded_restore(struct shapes *s, const json_t *in);
