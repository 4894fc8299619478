/* record_desc.h - what one record looks like: the `record` object of a spec.
 *
 * Fields stand sorted by name, dimensions too, so nothing depends on the order
 * of keys in the JSON. A dimension is a length that may differ from record to
 * record and that batches are padded along; fields may share one. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum field_kind {
    FIELD_TOKENS,  /* list of indices below vocab */
    FIELD_ROWS,    /* list of rows, each with a value per column */
    FIELD_NUMBERS, /* list of numbers, of a dimension or a fixed size */
    FIELD_TARGET,  /* what is learned: a distribution or a scalar */
};

enum field_loss { LOSS_CROSS_ENTROPY, LOSS_MSE };

struct column {
    int vocab;    /* > 0: an index below vocab */
    double scale; /* vocab 0: a number, divided by scale */
};

struct field {
    char *name;
    enum field_kind kind;
    int dim;   /* index into dims; -1: none (scalar target, fixed size) */
    int size;  /* numbers without a dimension: how many */
    int vocab; /* tokens */
    struct column *columns; /* rows */
    int n_columns, n_ints, n_nums; /* columns with a vocab, and without */
    int over;  /* target: the rows field it is a distribution over, or -1.
                * Its dim is that field's dim. */
    enum field_loss loss; /* target */
};

struct record_desc {
    struct field *fields;
    int n_fields;
    char **dims;
    int n_dims;
    int max_length; /* entries of tokens and of numbers along a dimension that
                     * the model has positions for, set by spec_parse; 0: any */
    int policy, value; /* index of the target over rows, of the scalar; or -1 */
};

/* Parse the `record` object found at JSON pointer `at` of the document.
 * 0, or ERR_INVALID with the pointer of the field at fault. */
int record_desc_parse(const json_t *in, const char *at,
                      struct record_desc *ret, struct err *err);
json_t *record_desc_json(const struct record_desc *d); /* canonical; caller owns */
int record_desc_field(const struct record_desc *d, const char *name); /* or -1 */
int record_desc_dim(const struct record_desc *d, const char *name);   /* or -1 */
void record_desc_release(struct record_desc *d);

#ifdef __cplusplus
}
#endif
