/* bad.h - records that do not decode: where they stand, and why. */
#pragma once
#include <jansson.h>
#include "schema/err.h"
#include "worker/shard.h"

#define BAD_KEPT 20 /* the first ones, with reason */

/* Say where a record stands, in the sentence of *err and beside it. `kind` is
 * put before "shard": "" or "validation ". */
void bad_place(struct shards *shards, const struct ref *ref, const char *kind,
               struct err *err);
/* {shard, line, offset, field, detail}; NULL: no memory. Caller owns. */
json_t *bad_json(struct shards *shards, const struct ref *ref,
                 const struct err *why);
/* ERR_DATA for a line that is longer than any record may be. */
int bad_too_long(const struct ref *ref, struct err *err);
