/* digest.h - SHA-256, as bytes and as the 64 lower-case hex digits that paths,
 * manifests and signatures carry. */
#pragma once
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIGEST_BYTES 32
#define DIGEST_HEX 65 /* 64 digits and the NUL */

struct digest; /* a running SHA-256 */

struct digest *digest_new(void); /* NULL when memory is short */
void digest_add(struct digest *d, const void *data, size_t len);
void digest_end(struct digest *d, uint8_t out[DIGEST_BYTES]); /* and restart */
void digest_free(struct digest *d);

void digest_of(const void *data, size_t len, uint8_t out[DIGEST_BYTES]);
void digest_hex(const uint8_t in[DIGEST_BYTES], char out[DIGEST_HEX]);
int digest_parse(const char *hex, uint8_t out[DIGEST_BYTES]); /* 0, or -1 */
/* Digest of a value's canonical JSON: keys sorted, no spaces, reals with the
 * fewest digits that read back the same. */
void digest_of_json(const json_t *value, char out[DIGEST_HEX]);

#ifdef __cplusplus
}
#endif
