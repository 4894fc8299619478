/* census.h - what a dataset's records are like: counted line by line.
 *
 * Shards stream through it one after the other. With a record description each
 * line is decoded by it, as a worker would; what does not fit is bad, with the
 * reason. Without one the lengths of lists at a record's top level are counted,
 * each as a dimension of its own that bears the field's name, and bad is what
 * is no JSON object. A raw shape is the lengths of one record along all
 * dimensions, before any padding.
 *
 * Memory is bounded whatever the records are: lengths by ladder.h, shapes by
 * keyset.h, fields by CENSUS_FIELDS, lines by LINE_MAX_BYTES. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/record_desc.h"

#define CENSUS_SHOWN 20   /* bad lines, and duplicates */
#define CENSUS_FIELDS 64  /* without a description; those after are left out */
#define CENSUS_LONGEST 10 /* outliers kept per dimension */

/* A place that somebody wants the line number of. */
struct census_mark {
    int shard; /* the how manieth, from 0 */
    int64_t offset;
    int64_t line; /* set when it has gone by */
};

struct census;
/* The description (NULL: none) must outlive it. */
int census_new(const struct record_desc *desc, double policy_tolerance,
               struct census **ret, struct err *err);
/* Marks in the order of the text; they must outlive it. */
void census_mark(struct census *c, struct census_mark *v, int n);

/* A shard's text follows, in pieces of any size. */
int census_begin(struct census *c, const char *shard, struct err *err);
int census_add(struct census *c, const char *text, size_t len, struct err *err);
/* `cut`: the text goes on, so a last line without its end is left out. */
int census_end(struct census *c, bool cut, struct err *err);

/* {records, lines, blank, bad, shapes, fields, dims, outliers, value, policy,
 * advice}; see REFERENCE.md. */
int census_json(const struct census *c, int micro_batch, json_t **ret,
                struct err *err);
void census_free(struct census *c);
