/* state.h - the checkpoint format: one complete train state at an
 * optimizer-step boundary.
 *
 * The state is a row of named tensors, laid end to end and cut into chunks of
 * STATE_CHUNK bytes that are stored under their SHA-256, and a manifest (JSON)
 * that names tensors, chunks and everything that is not a tensor. Tensor names
 * begin with "model." (first, sorted by name), then "optimizer.", then "rng.",
 * then "feed.". So the model file is a safetensors header and the first bytes
 * of the state, and costs nothing to make.
 *
 * manifest:
 *   format "pawl-state", version 1
 *   cycle, step, epoch, records      done so far in this cycle
 *   signature                        the cycle's
 *   fingerprint {…}                  of the lease that saved it
 *   feed {shard, offset, draws, …}   cursor and shuffle position
 *   totals {…}                       partial metrics
 *   tensors [{name, dtype, shape, begin, end}]   dtype as safetensors: F32 I64 …
 *   bytes, chunks [sha256, …]
 *   model_bytes, model_sha256        of the model file at this step (the digest
 *                                    of header and tensors), always present
 *   previous                         digest of the manifest before it, or null
 * Its digest is that of its canonical JSON (digest_of_json). */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/digest.h"
#include "schema/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STATE_CHUNK (1024 * 1024)
#define STATE_VERSION 1

/* Check a manifest's shape: types, contiguous tensors, chunk count for bytes.
 * 0, ERR_INVALID with a pointer, or ERR_CORRUPT for a newer version. */
int manifest_check(const json_t *manifest, struct err *err);

/* The safetensors header (8 length bytes, then JSON padded with spaces to a
 * multiple of 8) of the model file: the "model." tensors, that prefix cut off,
 * and {"format": "pawl", "architecture": canonical JSON of the spec's model
 * without dropout and of its record} as metadata. *ret_payload gets the bytes
 * of tensors that follow. Byte-stable: no ids, names, dates in it. */
int state_model_header(const json_t *manifest, const json_t *resolved_spec,
                       struct buf *ret, int64_t *ret_payload, struct err *err);
/* The same of the whole state, all tensors under their names, with the
 * manifest (less its tensors) and the resolved spec as metadata. */
int state_header(const json_t *manifest, const json_t *resolved_spec,
                 struct buf *ret, struct err *err);

#ifdef __cplusplus
}
#endif
