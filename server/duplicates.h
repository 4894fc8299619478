/* duplicates.h - records that stand more than once in a dataset.
 *
 * Two records are the same when their lines are, byte for byte, which is told by
 * their 64-bit hash (schema/line_hash.h) from the shards' indexes: of a hundred
 * million different records two share one with a chance of 1 in 3,700. Each pass
 * over the indexes looks at the hashes that fall into one part of their range,
 * as many as DUPLICATES_SLOTS hold, so memory does not grow with the records. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"

#define DUPLICATES_SLOTS ((size_t)1 << 22) /* 8 bytes each */
#define DUPLICATES_SHOWN 20

/* An index that is there: schema/line_index.h. */
struct duplicates_shard {
    const char *index; /* path */
    const char *sha256;
    int64_t records;
};

struct duplicate {
    struct duplicate_place {
        int shard;
        int64_t offset;
    } at, first; /* the record, and the first one that is the same */
};

struct duplicates {
    int64_t records;                      /* that repeat an earlier one */
    struct duplicate v[DUPLICATES_SHOWN]; /* the first ones */
    int n;
};

/* How far it is, in bytes of indexes; false: stop, with ERR_BUSY. */
typedef bool duplicates_step_fn(void *arg, int64_t bytes);
/* Bytes of indexes that it will read at least. */
int64_t duplicates_bytes(int64_t records);
int duplicates_find(const struct duplicates_shard *v, int n,
                    duplicates_step_fn *step, void *arg, struct duplicates *ret,
                    struct err *err);
extern size_t duplicates_slots; /* tests make it small */
