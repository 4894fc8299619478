/* transfer.h - what the headers of an upload say of its bytes.
 *
 * Content-Encoding (RFC 9110) or the shard's name: how they are compressed.
 * Content-Range on a PUT: which part of the body this is, as `curl -C N -T FILE`
 * says it. Content-Digest (RFC 9530): their SHA-256. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/unpack.h"

/* A header before the name; `shard` may be NULL. ERR_MEDIA: a coding that is
 * not known, or several. */
int transfer_packing(const char *encoding, const char *shard, enum packing *ret,
                     bool *ret_by_name, struct err *err);
/* "bytes A-B/T", where the part must go to the end. 1; 0: no header;
 * ERR_INVALID. */
int transfer_range(const char *header, int64_t *ret_first, int64_t *ret_total,
                   struct err *err);
/* The sha-256 of the list. 1; 0: no header, or other algorithms alone;
 * ERR_INVALID: it is not the base64 of a SHA-256 between colons. */
int transfer_digest(const char *header, uint8_t ret[DIGEST_BYTES],
                    struct err *err);
