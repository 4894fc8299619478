/* producer.h - effective batches ahead of the trainer: a thread draws records in
 * their order, decodes them and keeps what the trainer has not asked for yet.
 *
 * Lines come from a reader (reader.h), through the shuffle buffer (shuffle.h) or
 * in the order of a plan (plan.h). One record is drawn beyond each batch, to
 * know whether the epoch, and with it the cycle, ends with the batch. Nothing
 * that was made ahead is lost or used twice: each batch carries the position
 * after it and the journal of its draws. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/arena.h"
#include "worker/collate.h"
#include "worker/position.h"
#include "worker/shuffle.h"

/* An effective batch on its way to the trainer. */
struct ready {
    struct sample **v;  /* effective_batch of them; n are there */
    int n;              /* 0: the end, or an error */
    struct arena arena; /* of the samples */
    size_t bytes;
    int renormalised;   /* of its records */
    struct journal ops; /* draws that made it */
    struct position after;
    bool epoch_end, cycle_end;
    int result; /* 1; 0 behind the last batch; or an error */
    struct err err;
    struct ready *next;
};

struct producer;

/* `data` is the claim's that `shards` was opened from. Both, and the spec, must
 * outlive it. */
int producer_new(const struct spec *spec, struct shards *shards,
                 const json_t *data, int64_t cycle, struct producer **ret,
                 struct err *err);
bool producer_is_global(const struct producer *p);
/* Go on at a position, before the first producer_take. `bad` (may be NULL): the
 * first bad records met so far. ERR_CORRUPT when it does not fit. */
int producer_resume(struct producer *p, const struct position *at,
                    const struct ref *buffer, int64_t n, const json_t *bad,
                    struct err *err);
/* The next batch, waiting for it; to be given back. The first call starts the
 * thread. */
int producer_take(struct producer *p, struct ready **ret, struct err *err);
void producer_give(struct producer *p, struct ready *r);

/* The shuffle buffer as it was before `cur` (taken last, not given back; may be
 * NULL) and all that was made after it. *ret: malloc'ed. */
int producer_buffer(struct producer *p, const struct ready *cur,
                    struct ref **ret, int64_t *ret_n, struct err *err);
/* The first bad records, when so many were met. NULL: no memory. */
json_t *producer_bad(struct producer *p, int64_t skipped);
/* Interrupt the shards first, if a read may wait. */
void producer_free(struct producer *p);
