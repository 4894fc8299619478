/* record.h - one JSON line decoded against a record description.
 *
 * The decoder is the only reader of records: the worker trains on what it
 * returns, the server counts with it. It wraps simdjson; nothing of that shows
 * here. Values land in flat arrays that the decoder owns and reuses: a record
 * is valid until the next call. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/record_desc.h"

#ifdef __cplusplus
extern "C" {
#endif

struct field_values {
    int rows;       /* entries along the field's dimension (or 1, or size) */
    int32_t *ints;  /* tokens: rows; rows: rows × n_ints, row-major */
    float *nums;    /* numbers, targets: rows; rows: rows × n_nums, scaled */
};

struct record {
    struct field_values *fields; /* n_fields of the description */
    int n_fields;
    int *lengths; /* per dimension: entries of this record */
    double policy_sum; /* of desc->policy as written, before it was made 1; 0:
                        * there is none */
};

struct record_decoder;

/* The description must outlive the decoder. policy_tolerance as in the spec. */
int record_decoder_new(const struct record_desc *desc, double policy_tolerance,
                       struct record_decoder **ret, struct err *err);
void record_decoder_free(struct record_decoder *d);
/* From now on a record may lack its targets, which then are zeros: for who asks
 * what a model answers. A target that is there is checked as ever. */
void record_decoder_inputs_only(struct record_decoder *d);

/* Decode one line (without its newline; a trailing CR is allowed). Bytes after
 * the line need not be readable: the decoder pads. 0, or ERR_DATA with
 * err->field ("" where the whole line is to blame) and a sentence; the caller
 * adds shard, line and offset. Fields longer than desc->max_length are refused.
 * A policy is renormalised to sum 1. */
int record_decode(struct record_decoder *d, const char *line, size_t len,
                  const struct record **ret, struct err *err);

#ifdef __cplusplus
}
#endif
