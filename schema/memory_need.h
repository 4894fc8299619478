/* memory_need.h - how much memory a worker will take for a spec.
 *
 * Counted from the model as worker/model.h writes it out and from what its
 * backward pass keeps of the forward one: weights, gradients and the two
 * moments are what the parameters make of them; activations are a sum over the
 * rows of a micro-batch (the CPU's way has real rows only, elsewhere they are
 * padded) and the pairs that attention weighs. What the process takes before
 * it knows the job was measured. A worker's own figures are the truth; this is
 * what can be said before there is one. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A micro-batch, as large as they come. */
struct batch_shape {
    double rows;       /* that are encoded: class token and input fields */
    double pairs;      /* sum over records: rows × rows */
    double candidates; /* rows that the policy is over */
    double cross;      /* sum over records: candidates × rows */
};

struct memory_need { /* bytes */
    int64_t weights, gradients, optimizer, activations;
    int64_t snapshot; /* of the host: a save's copy, while training goes on */
    int64_t library;  /* of the process or, on a device, of its context */
    int64_t total;    /* of the host on cpu, else of the device */
    int64_t host;     /* of the host */
};

/* device: cpu, cuda or mps. */
void memory_need(const struct spec *s, const struct batch_shape *b,
                 const char *device, struct memory_need *ret);

/* Rows of one record, its lengths per dimension: added to a shape. */
void batch_shape_add(const struct spec *s, const int *lengths,
                     struct batch_shape *ret);

#ifdef __cplusplus
}
#endif
