/* unpack.h - the text of a compressed stream, as it comes.
 *
 * gzip with all its members, zstd with all its frames, skippable ones left out.
 * Bytes behind the last member that begin no further one are an error, and so
 * is a stream that ends within one: nothing is left out in silence. Memory does
 * not depend on what a stream claims to hold. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum packing { PACKING_NONE, PACKING_GZIP, PACKING_ZSTD };

/* By the first bytes (4 are enough), whatever the name says. */
enum packing packing_of(const void *head, size_t len);
/* By the name: .gz, .zst, else none. */
enum packing packing_of_name(const char *name);

typedef int unpack_text_fn(void *arg, const char *text, size_t len,
                           struct err *err);
struct unpack;
int unpack_new(enum packing packing, struct unpack **ret, struct err *err);
/* Text goes to `fn` in pieces of at most 256 KiB. ERR_DATA with the offset
 * (err->offset, of the compressed stream) where it is damaged; what `fn` returns
 * when that is < 0. */
int unpack_add(struct unpack *u, const void *data, size_t len,
               unpack_text_fn *fn, void *arg, struct err *err);
int unpack_end(struct unpack *u, struct err *err); /* ERR_DATA: it is cut */
int64_t unpack_members(const struct unpack *u); /* members or frames that ended */
/* Bytes it holds now; a zstd stream that looks far back, up to 128 MiB. */
size_t unpack_memory(const struct unpack *u);
void unpack_free(struct unpack *u);

#ifdef __cplusplus
}
#endif
