/* line_hash.h - the hash that a record is known by: XXH64 (Yann Collet), seed
 * 0, of its line without the newline. Shuffle buffers, line indexes, the split
 * for validation and the search for duplicates all mean this one. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static inline uint64_t line_hash(const void *line, size_t len)
{
    return XXH64(line, len, 0);
}
