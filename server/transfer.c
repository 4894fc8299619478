#include "server/transfer.h"
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int transfer_packing(const char *encoding, const char *shard, enum packing *ret,
                     bool *ret_by_name, struct err *err)
{
    enum packing named = shard ? packing_of_name(shard) : PACKING_NONE;
    *ret_by_name = false;
    if (!encoding || !*encoding || !strcasecmp(encoding, "identity")) {
        *ret = named;
        *ret_by_name = named != PACKING_NONE;
        return 0;
    }
    if (!strcasecmp(encoding, "gzip") || !strcasecmp(encoding, "x-gzip"))
        *ret = PACKING_GZIP;
    else if (!strcasecmp(encoding, "zstd"))
        *ret = PACKING_ZSTD;
    else
        return err_set(err, ERR_MEDIA,
                       "Content-Encoding is gzip, zstd or identity, not "
                       "'%.40s'",
                       encoding);
    return 0;
}

static bool number(const char **s, int64_t *ret)
{
    size_t n = strspn(*s, "0123456789");
    if (!n || n > 18)
        return false;
    *ret = strtoll(*s, NULL, 10);
    *s += n;
    return true;
}

int transfer_range(const char *header, int64_t *ret_first, int64_t *ret_total,
                   struct err *err)
{
    int64_t first, last, total;
    if (!header)
        return 0;
    const char *s = header;
    bool good = !strncasecmp(s, "bytes ", 6);
    s += good ? 6 : 0;
    good = good && number(&s, &first) && *s++ == '-' && number(&s, &last) &&
           *s++ == '/' && number(&s, &total) && !*s && first <= last &&
           last < total;
    if (!good)
        return err_set(err, ERR_INVALID,
                       "Content-Range is 'bytes FIRST-LAST/TOTAL', not '%.80s'",
                       header);
    if (last != total - 1)
        return err_set(err, ERR_INVALID,
                       "Content-Range must go to the end of the body: a part "
                       "in the middle cannot be taken");
    *ret_first = first;
    *ret_total = total;
    return 1;
}

static bool decode(const char *s, size_t len, uint8_t ret[DIGEST_BYTES])
{
    unsigned char out[48];
    /* of 32 bytes: 43 digits and the filling */
    return len == 46 && s[0] == ':' && s[45] == ':' && s[44] == '=' &&
           s[43] != '=' &&
           EVP_DecodeBlock(out, (const unsigned char *)s + 1, 44) == 33 &&
           memcpy(ret, out, DIGEST_BYTES);
}

int transfer_digest(const char *header, uint8_t ret[DIGEST_BYTES],
                    struct err *err)
{
    static const char name[] = "sha-256=";
    bool found = false;
    for (const char *s = header; s && *s;) {
        s += strspn(s, " \t,");
        size_t n = strcspn(s, ",");
        size_t len = n;
        while (len && (s[len - 1] == ' ' || s[len - 1] == '\t'))
            len--;
        if (len >= strlen(name) && !strncasecmp(s, name, strlen(name))) {
            if (!decode(s + strlen(name), len - strlen(name), ret))
                return err_set(err, ERR_INVALID,
                               "Content-Digest is 'sha-256=:BASE64:' with the "
                               "SHA-256 of the bytes sent");
            found = true;
        }
        s += n;
    }
    return found;
}
