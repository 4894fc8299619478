/* collate.h - decoded records side by side in padded arrays.
 *
 * A sample is a record that outlives the decoder: one block of an arena's
 * memory. A collator owns the arrays of one batch and reuses them. */
#pragma once
#include "schema/record.h"
#include "schema/record_desc.h"
#include "schema/spec.h"
#include "worker/arena.h"
#include "worker/shard.h"
#include "worker/torch_shim.h"

struct sample {
    struct ref ref;
    size_t bytes; /* of this block of memory */
    int *lengths; /* per dimension */
    struct field_values *fields;
};

/* It lives as long as the arena is not reset. */
int sample_new(const struct record_desc *desc, const struct record *record,
               const struct ref *ref, struct arena *arena, struct sample **ret,
               struct err *err);

struct collator {
    struct batch batch;
    size_t *ints_cap, *nums_cap; /* elements, per field */
    int records_cap;
};

int collator_init(struct collator *c, const struct record_desc *desc,
                  struct err *err);
/* Pad n samples to the longest per dimension, and to what the policy (NULL:
 * none) makes of that. A dimension is never padded to less than one entry. */
int collator_fill(struct collator *c, struct sample *const *v, int n, int first,
                  const struct padding *padding, struct err *err);
void collator_release(struct collator *c);
