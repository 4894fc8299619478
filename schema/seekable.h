/* seekable.h - text in independent zstd frames with a table of where they are
 * (the "seekable format" of zstd's contrib/seekable_format, version 0.1.0, so
 * that `zstd -d` reads it too). Offsets are those of the text.
 *
 * A shard that was uploaded compressed is kept like this; one that already is
 * (frames of at most SEEKABLE_FRAME_MAX) is kept as it came. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SEEKABLE_FRAME (64 * 1024)           /* as we write them */
#define SEEKABLE_FRAME_MAX (8 * 1024 * 1024) /* as we read them in place */

/* Write to fd, from where it stands; the caller owns fd and syncs it. */
struct seekable_writer;
int seekable_writer_new(int fd, struct seekable_writer **ret, struct err *err);
int seekable_write(struct seekable_writer *w, const void *text, size_t len,
                   struct err *err);
/* Last frame and table. *ret_stored: bytes of the file. */
int seekable_writer_end(struct seekable_writer *w, int64_t *ret_stored,
                        struct err *err);
size_t seekable_writer_memory(const struct seekable_writer *w); /* it holds */
void seekable_writer_free(struct seekable_writer *w);

/* Read. One thread at a time; it keeps the frames read last. Uses pread. */
struct seekable;
/* The caller owns fd, which stays open. ERR_CORRUPT: no table, or one that does
 * not fit the file; ERR_TOO_LARGE: a frame above SEEKABLE_FRAME_MAX. */
int seekable_open(int fd, struct seekable **ret, struct err *err);
int64_t seekable_bytes(const struct seekable *s); /* of the text */
/* Up to len bytes at offset, all of them unless the text ends: how many.
 * ERR_CORRUPT names the frame. */
int64_t seekable_read(struct seekable *s, int64_t offset, void *out, size_t len,
                      struct err *err);
/* Compressed bytes that were read so far. */
int64_t seekable_bytes_read(const struct seekable *s);
void seekable_close(struct seekable *s);

#ifdef __cplusplus
}
#endif
