/* Compressed streams. Whatever the bytes are: the pieces that they come in do
 * not matter, a text that the receiver refuses ends it, and memory stays small
 * (libFuzzer's -rss_limit_mb). What was compressed comes back as it was; of a
 * stream with a byte changed or cut off nothing is left out in silence.
 *
 * Input: what to do, size of the pieces, then bytes. */
#include <zlib.h>
#include <zstd.h>
#include "fuzz.h"
#include "schema/unpack.h"

#define TEXT_MAX (4 << 20)

static int receive(void *arg, const char *text, size_t len, struct err *err)
{
    struct buf *b = arg;
    MUST(len > 0 && len <= 256 * 1024, "a piece of %zu bytes", len);
    if (b->len + len > TEXT_MAX)
        return err_set(err, ERR_BUSY, "that will do");
    must_add(b, text, len);
    return 0;
}

/* 0, or how it was refused. */
static int unpacked(const void *data, size_t len, size_t piece, struct buf *ret)
{
    struct unpack *u;
    struct err err;
    int r = unpack_new(packing_of(data, len), &u, &err);
    MUST(r == 0, "%s", err.text);
    const char *s = data;
    for (size_t done = 0; done < len && r == 0;) {
        size_t n = len - done < piece ? len - done : piece;
        AUTO_FREE char *part = alone(s + done, n);
        r = unpack_add(u, part, n, receive, ret, &err);
        done += n;
    }
    if (r == 0)
        r = unpack_end(u, &err);
    if (r < 0) {
        is_refusal(r, &err, ERR_DATA, ERR_BUSY);
        MUST(r != ERR_DATA || (err.offset >= 0 && err.offset <= (int64_t)len),
             "damaged at %lld of %zu", (long long)err.offset, len);
    }
    unpack_free(u);
    return r;
}

static void same(const struct buf *a, const struct buf *b, size_t len,
                 const char *what)
{
    MUST(a->len >= len && b->len >= len, "%s: %zu and %zu bytes", what, a->len,
         b->len);
    MUST(!len || !memcmp(a->data, b->data, len), "%s: other text", what);
}

static void any_bytes(const uint8_t *data, size_t len, size_t piece)
{
    CLEANUP(buf_release) struct buf whole = {0};
    CLEANUP(buf_release) struct buf parts = {0};
    int r = unpacked(data, len, len ? len : 1, &whole);
    int p = unpacked(data, len, piece, &parts);
    /* what is damaged far behind may be more than is wanted before that */
    MUST((r < 0) == (p < 0), "%d as a whole, %d in pieces of %zu", r, p, piece);
    if (r == 0)
        MUST(whole.len == parts.len, "%zu bytes and %zu", whole.len, parts.len);
    same(&whole, &parts, whole.len < parts.len ? whole.len : parts.len,
         "in pieces");
}

static void gzip_member(struct buf *out, const void *text, size_t len,
                        int level)
{
    z_stream z = {0};
    char part[8192];
    int r;
    MUST(deflateInit2(&z, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) ==
             Z_OK,
         "deflate");
    z.next_in = (z_const Bytef *)(uintptr_t)text;
    z.avail_in = (uInt)len;
    do {
        z.next_out = (Bytef *)part;
        z.avail_out = sizeof part;
        r = deflate(&z, Z_FINISH);
        must_add(out, part, sizeof part - z.avail_out);
    } while (r == Z_OK);
    MUST(r == Z_STREAM_END, "deflate: %d", r);
    deflateEnd(&z);
}

static void zstd_frame(struct buf *out, const void *text, size_t len, int level)
{
    AUTO_FREE char *part = malloc(ZSTD_compressBound(len));
    ZSTD_CCtx *c = ZSTD_createCCtx();
    MUST(part && c, "zstd");
    ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, level & 1);
    size_t n = ZSTD_compress2(c, part, ZSTD_compressBound(len), text, len);
    MUST(!ZSTD_isError(n), "%s", ZSTD_getErrorName(n));
    must_add(out, part, n);
    ZSTD_freeCCtx(c);
}

#define MEMBERS 8
static void round_trip(struct in *in, bool zstd, unsigned change, size_t piece)
{
    CLEANUP(buf_release) struct buf text = {0};
    CLEANUP(buf_release) struct buf packed = {0};
    CLEANUP(buf_release) struct buf got = {0};
    size_t ends[MEMBERS][2];
    unsigned members = in_byte(in) % MEMBERS + 1, times = in_short(in) % 512;
    unsigned at = in_short(in), bit = in_byte(in);
    for (unsigned m = 0; m < members; m++) {
        size_t n = m + 1 < members ? in_byte(in) : in->n;
        int level = (int)(in_byte(in) % 6);
        if (n > in->n)
            n = in->n;
        size_t from = text.len;
        for (unsigned k = 0; k <= times && text.len < 300000; k++)
            must_add(&text, in->p, n);
        in->p += n;
        in->n -= n;
        if (zstd && level == 5) /* something to skip in front of it */
            must_add(&packed, "\x53\x2a\x4d\x18\x03\0\0\0abc", 11);
        const char *s = text.len > from ? text.data + from : "";
        (zstd ? zstd_frame : gzip_member)(&packed, s, text.len - from, level);
        ends[m][0] = packed.len;
        ends[m][1] = text.len;
    }
    if (piece < packed.len / 500)
        piece = packed.len / 500;
    int r = unpacked(packed.data, packed.len, piece, &got);
    MUST(r == 0, "what was compressed is refused: %d", r);
    MUST(got.len == text.len, "%zu of %zu bytes", got.len, text.len);
    same(&got, &text, text.len, "round trip");

    CLEANUP(buf_release) struct buf hurt = {0};
    buf_clear(&got);
    if (change == 1) { /* cut */
        size_t len = at % packed.len;
        must_add(&hurt, packed.data, len);
        if (packing_of(hurt.data, len) == PACKING_NONE)
            return; /* and taken as the text that it is not: by its name it is
                       refused */
        r = unpacked(hurt.data, len, piece, &got);
        for (unsigned m = 0; m < members; m++)
            if (ends[m][0] == len) { /* whole members are a whole stream */
                MUST(r == 0 && got.len == ends[m][1], "%d, %zu bytes of %zu", r,
                     got.len, ends[m][1]);
                same(&got, &text, got.len, "members");
                return;
            }
        /* between something to skip and what follows it there is an end too */
        MUST(r < 0 || zstd, "cut at %zu of %zu, and taken", len, packed.len);
        if (r == 0) {
            bool end = false;
            for (unsigned m = 0; m < members; m++)
                end |= got.len == (m ? ends[m - 1][1] : 0) &&
                       len == (m ? ends[m - 1][0] : 0) + 11;
            MUST(end, "cut at %zu of %zu, and taken", len, packed.len);
        }
    } else if (change == 2) { /* a bit changed */
        must_add(&hurt, packed.data, packed.len);
        hurt.data[at % packed.len] ^= (char)(1 << bit % 8);
        if (packing_of(hurt.data, hurt.len) == PACKING_NONE)
            return;
        r = unpacked(hurt.data, hurt.len, piece, &got);
        if (r == 0)
            MUST(got.len == text.len &&
                     (!text.len || !memcmp(got.data, text.data, text.len)),
                 "a changed bit at %zu gave other text", at % packed.len);
    } else if (change == 3) { /* more behind it */
        must_add(&hurt, packed.data, packed.len);
        must_add(&hurt, "\0\0\0\0\0\0\0\0", bit % 8 + 1);
        r = unpacked(hurt.data, hurt.len, piece, &got);
        MUST(r == ERR_DATA, "%u zeros behind the end, and taken", bit % 8 + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = {data, size};
    unsigned what = in_byte(&in);
    size_t piece = in_byte(&in) % 200 + 1;
    if (what % 8 < 2)
        any_bytes(in.p, in.n, piece);
    else
        round_trip(&in, what & 1, what / 8 % 4, piece * piece);
    return 0;
}
