#include "schema/unpack.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#define PIECE (256 * 1024) /* of text, at a time */
/* What `zstd -d` takes without being asked to: 128 MiB to look back. */
#define WINDOW_LOG_MAX 27

struct unpack {
    enum packing packing;
    int64_t offset;  /* compressed bytes taken so far */
    int64_t members; /* that have ended */
    bool any;        /* there were some */
    bool within;     /* a member or frame has begun and not ended */
    z_stream z;
    ZSTD_DStream *zstd;
    char text[PIECE];
};

enum packing packing_of(const void *head, size_t len)
{
    const unsigned char *s = head;
    if (len >= 2 && s[0] == 0x1f && s[1] == 0x8b)
        return PACKING_GZIP;
    if (len >= 4 && s[0] == 0x28 && s[1] == 0xb5 && s[2] == 0x2f &&
        s[3] == 0xfd)
        return PACKING_ZSTD;
    /* a skippable frame may come first */
    if (len >= 4 && (s[0] & 0xf0) == 0x50 && s[1] == 0x2a && s[2] == 0x4d &&
        s[3] == 0x18)
        return PACKING_ZSTD;
    return PACKING_NONE;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && !strcmp(s + n - m, end);
}

enum packing packing_of_name(const char *name)
{
    if (ends_with(name, ".gz"))
        return PACKING_GZIP;
    if (ends_with(name, ".zst"))
        return PACKING_ZSTD;
    return PACKING_NONE;
}

int unpack_new(enum packing packing, struct unpack **ret, struct err *err)
{
    struct unpack *u = calloc(1, sizeof(*u));
    if (!u)
        return err_set(err, ERR_NOMEM, "no memory to decompress");
    u->packing = packing;
    bool ok = true;
    if (packing == PACKING_GZIP) {
        ok = inflateInit2(&u->z, 15 + 16) == Z_OK; /* gzip alone */
    } else if (packing == PACKING_ZSTD) {
        u->zstd = ZSTD_createDStream();
        ok = u->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(
                            u->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MAX));
    }
    if (!ok) {
        unpack_free(u);
        return err_set(err, ERR_NOMEM, "no memory to decompress");
    }
    *ret = u;
    return 0;
}

static int damaged(struct unpack *u, int64_t at, const char *why,
                   struct err *err)
{
    int r =
        err_set(err, ERR_DATA,
                "the %s stream is damaged at compressed byte %" PRId64 ": %s",
                u->packing == PACKING_GZIP ? "gzip" : "zstd", at, why);
    if (err)
        err->offset = at;
    return r;
}

static int gzip_add(struct unpack *u, const void *data, size_t len,
                    unpack_text_fn *fn, void *arg, struct err *err)
{
    const unsigned char *s = data;
    for (size_t done = 0; done < len;) {
        uInt part = len - done < (1u << 30) ? (uInt)(len - done) : 1u << 30;
        if (!u->within && inflateReset(&u->z) != Z_OK)
            return err_set(err, ERR_NOMEM, "no memory to decompress");
        /* zlib would take the first byte alone for granted */
        if (!u->within && s[done] != 0x1f)
            return damaged(u, u->offset + (int64_t)done,
                           u->any ? "what follows the last member is none"
                                  : "it does not begin like one",
                           err);
        u->within = u->any = true;
        u->z.next_in = (z_const Bytef *)(s + done);
        u->z.avail_in = part;
        int r;
        do {
            u->z.next_out = (Bytef *)u->text;
            u->z.avail_out = PIECE;
            r = inflate(&u->z, Z_NO_FLUSH);
            size_t n = PIECE - u->z.avail_out;
            if (r == Z_MEM_ERROR)
                return err_set(err, ERR_NOMEM, "no memory to decompress");
            if (r != Z_OK && r != Z_STREAM_END &&
                (r != Z_BUF_ERROR || u->z.avail_in))
                return damaged(
                    u, u->offset + (int64_t)(done + part - u->z.avail_in),
                    u->z.msg ? u->z.msg : "it is no gzip data", err);
            int t = n ? fn(arg, u->text, n, err) : 0;
            if (t < 0)
                return t;
        } while (r == Z_OK && (u->z.avail_in || !u->z.avail_out));
        if (r == Z_STREAM_END) {
            u->within = false;
            u->members++;
        }
        done += part - u->z.avail_in;
    }
    return 0;
}

static int zstd_add(struct unpack *u, const void *data, size_t len,
                    unpack_text_fn *fn, void *arg, struct err *err)
{
    ZSTD_inBuffer in = {.src = data, .size = len};
    bool full = false; /* there may be more text without more input */
    while (in.pos < in.size || full) {
        ZSTD_outBuffer out = {.dst = u->text, .size = PIECE};
        size_t before = in.pos;
        size_t r = ZSTD_decompressStream(u->zstd, &out, &in);
        if (ZSTD_getErrorCode(r) == ZSTD_error_frameParameter_windowTooLarge)
            return err_set(err, ERR_DATA,
                           "the zstd stream looks back farther than %d MiB: "
                           "compress it without --ultra or --long above %d",
                           1 << (WINDOW_LOG_MAX - 20), WINDOW_LOG_MAX);
        if (ZSTD_isError(r))
            return damaged(u, u->offset + (int64_t)before, ZSTD_getErrorName(r),
                           err);
        u->any = true;
        u->within = r != 0;
        u->members += r == 0;
        int t = out.pos ? fn(arg, u->text, out.pos, err) : 0;
        if (t < 0)
            return t;
        full = r != 0 && out.pos == PIECE;
    }
    return 0;
}

int unpack_add(struct unpack *u, const void *data, size_t len,
               unpack_text_fn *fn, void *arg, struct err *err)
{
    int r = 0;
    const char *s = data;
    if (!len)
        return 0;
    if (u->packing == PACKING_GZIP)
        r = gzip_add(u, data, len, fn, arg, err);
    else if (u->packing == PACKING_ZSTD)
        r = zstd_add(u, data, len, fn, arg, err);
    for (size_t done = 0; u->packing == PACKING_NONE && done < len;) {
        size_t n = len - done < PIECE ? len - done : PIECE;
        r = fn(arg, s + done, n, err);
        if (r < 0)
            break;
        done += n;
    }
    if (r < 0)
        return r;
    u->offset += (int64_t)len;
    return 0;
}

int unpack_end(struct unpack *u, struct err *err)
{
    if (u->packing == PACKING_NONE)
        return 0;
    if (!u->any)
        return damaged(u, u->offset, "it is empty", err);
    if (u->within)
        return damaged(u, u->offset, "it is cut short", err);
    return 0;
}

size_t unpack_memory(const struct unpack *u)
{
    return sizeof(*u) + (u->zstd ? ZSTD_sizeof_DStream(u->zstd) : 0);
}

int64_t unpack_members(const struct unpack *u)
{
    return u->members;
}

void unpack_free(struct unpack *u)
{
    if (!u)
        return;
    if (u->packing == PACKING_GZIP)
        inflateEnd(&u->z);
    ZSTD_freeDStream(u->zstd);
    free(u);
}
