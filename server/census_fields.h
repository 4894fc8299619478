/* census_fields.h - census.c's own: what the fields of records hold, by a record
 * description (census_fields_add) or by what is found (census_fields_scan). */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/ladder.h"
#include "schema/record.h"
#include "server/census.h"

struct census_place {
    int shard; /* the how manieth */
    int64_t line, offset;
};

struct census_dim {
    const char *name;
    struct lengths lengths;
    int fields; /* that run along it */
    struct {
        int length;
        struct census_place at;
    } longest[CENSUS_LONGEST]; /* the longest first, of equal ones the first */
    int n_longest;
};

struct census_fields;
int census_fields_new(const struct record_desc *desc,
                      struct census_fields **ret, struct err *err);
/* A record that was decoded. *ret_shape: a hash of its lengths. -1: no memory. */
int census_fields_add(struct census_fields *f, const struct record *record,
                      const struct census_place *at, uint64_t *ret_shape);
/* The same for a line that is known to be a JSON object. */
int census_fields_scan(struct census_fields *f, const char *line, size_t len,
                       const struct census_place *at, uint64_t *ret_shape);

int census_fields_dims(const struct census_fields *f);
const struct census_dim *census_fields_dim(const struct census_fields *f,
                                           int i);
/* Were there more than CENSUS_FIELDS? */
bool census_fields_left_out(const struct census_fields *f);
json_t *census_fields_json(const struct census_fields *f);
json_t *census_fields_dims_json(const struct census_fields *f);
json_t *census_fields_value_json(const struct census_fields *f); /* or null */
void census_fields_free(struct census_fields *f);
