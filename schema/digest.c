#include "schema/digest.h"
#include <openssl/evp.h>
#include <stdlib.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"

struct digest {
    EVP_MD_CTX *evp;
};

/* A digest that could not be computed must not be mistaken for one. */
static void must(int ok)
{
    if (!ok)
        abort();
}

struct digest *digest_new(void)
{
    struct digest *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->evp = EVP_MD_CTX_new();
    if (!d->evp || !EVP_DigestInit_ex(d->evp, EVP_sha256(), NULL)) {
        digest_free(d);
        return NULL;
    }
    return d;
}

void digest_add(struct digest *d, const void *data, size_t len)
{
    must(EVP_DigestUpdate(d->evp, data, len));
}

void digest_end(struct digest *d, uint8_t out[DIGEST_BYTES])
{
    must(EVP_DigestFinal_ex(d->evp, out, NULL));
    must(EVP_DigestInit_ex(d->evp, EVP_sha256(), NULL));
}

void digest_free(struct digest *d)
{
    if (!d)
        return;
    EVP_MD_CTX_free(d->evp);
    free(d);
}

void digest_of(const void *data, size_t len, uint8_t out[DIGEST_BYTES])
{
    must(EVP_Digest(data, len, out, NULL, EVP_sha256(), NULL));
}

void digest_hex(const uint8_t in[DIGEST_BYTES], char out[DIGEST_HEX])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < DIGEST_BYTES; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[DIGEST_HEX - 1] = 0;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

int digest_parse(const char *hex, uint8_t out[DIGEST_BYTES])
{
    uint8_t bytes[DIGEST_BYTES];
    for (int i = 0; i < DIGEST_BYTES; i++) {
        int high = digit(hex[2 * i]);
        int low = high < 0 ? -1 : digit(hex[2 * i + 1]);
        if (low < 0)
            return -1;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    if (hex[2 * DIGEST_BYTES])
        return -1;
    for (int i = 0; i < DIGEST_BYTES; i++)
        out[i] = bytes[i];
    return 0;
}

void digest_of_json(const json_t *value, char out[DIGEST_HEX])
{
    CLEANUP(buf_release) struct buf text = {0};
    uint8_t bytes[DIGEST_BYTES];
    must(json_canonical(value, &text) == 0);
    digest_of(text.data, text.len, bytes);
    digest_hex(bytes, out);
}
