/* Frames with a seek table. Any file is opened or refused; what was opened
 * gives each byte the same however it is asked for it, and the text that
 * unpacking the file from its start gives. What was written comes back; a file
 * with a byte changed, cut off or added gives the same text or none.
 *
 * Input: what to do, then bytes. */
#include <zstd.h>
#include "fuzz.h"
#include "schema/seekable.h"
#include "schema/unpack.h"

#define TEXT_MAX (1 << 20)

static int keep(void *arg, const char *text, size_t len, struct err *err)
{
    struct buf *b = arg;
    if (b->len + len > TEXT_MAX)
        return err_set(err, ERR_BUSY, "that will do");
    must_add(b, text, len);
    return 0;
}

/* All of the text by way of seekable_read, in reads of `step` bytes. False:
 * refused. */
static bool read_all(struct seekable *s, size_t step, struct buf *ret)
{
    int64_t bytes = seekable_bytes(s);
    struct err err;
    if ((int64_t)step > bytes)
        step = (size_t)bytes;
    for (int64_t at = 0; at < bytes;) {
        AUTO_FREE char *part = malloc(step);
        int64_t n = seekable_read(s, at, part, step, &err);
        if (n < 0) {
            is_refusal((int)n, &err, ERR_CORRUPT, ERR_CORRUPT);
            return false;
        }
        MUST(n == (bytes - at < (int64_t)step ? bytes - at : (int64_t)step),
             "%lld bytes at %lld of %lld", (long long)n, (long long)at,
             (long long)bytes);
        must_add(ret, part, (size_t)n);
        at += n;
    }
    char c;
    MUST(seekable_read(s, bytes, &c, 1, &err) == 0, "a byte behind the end");
    return true;
}

/* Open it and read it all, three ways. 1: *ret is the text; 0: refused. */
static int text_of(int fd, struct in *in, struct buf *ret)
{
    struct seekable *s, *other;
    struct err err;
    int r = seekable_open(fd, &s, &err);
    if (r < 0) {
        is_refusal(r, &err, ERR_CORRUPT, ERR_TOO_LARGE);
        return 0;
    }
    if (seekable_bytes(s) > TEXT_MAX) {
        char part[64];
        seekable_read(s, seekable_bytes(s) - 50, part, sizeof part, &err);
        seekable_close(s);
        return 0;
    }
    CLEANUP(buf_release) struct buf small = {0};
    bool whole = read_all(s, TEXT_MAX, ret);
    size_t step = in_short(in) + 1;
    if (ret->len / step > 500)
        step = ret->len / 500 + 1;
    r = seekable_open(fd, &other, &err);
    MUST(r == 0, "opened once, but not twice: %s", err.text);
    bool parts = read_all(other, step, &small);
    MUST(whole == parts, "read as a whole: %d, in parts: %d", whole, parts);
    if (whole) {
        MUST(small.len == ret->len &&
                 (!ret->len || !memcmp(small.data, ret->data, ret->len)),
             "other text in parts");
        for (int i = 0; i < 16 && in->n; i++) { /* anywhere, by the same */
            size_t at =
                ((size_t)in_short(in) << 8 | in_byte(in)) % (ret->len + 1);
            size_t len = in_short(in) + 1;
            AUTO_FREE char *part = malloc(len);
            int64_t n = seekable_read(other, (int64_t)at, part, len, &err);
            size_t left = ret->len - at;
            MUST(n == (int64_t)(len < left ? len : left),
                 "%lld bytes of %zu at %zu", (long long)n, len, at);
            MUST(n == 0 || !memcmp(part, ret->data + at, (size_t)n),
                 "other text at %zu", at);
        }
    }
    seekable_close(s);
    seekable_close(other);
    return whole;
}

/* What unpacking from the start gives. 1: *ret; 0: refused. */
static int streamed(const void *file, size_t len, struct buf *ret)
{
    struct unpack *u;
    struct err err;
    MUST(unpack_new(PACKING_ZSTD, &u, &err) == 0, "%s", err.text);
    int r = unpack_add(u, file, len, keep, ret, &err);
    if (r == 0)
        r = unpack_end(u, &err);
    unpack_free(u);
    return r == 0;
}

static void any_file(struct in *in)
{
    CLEANUP(buf_release) struct buf text = {0};
    CLEANUP(buf_release) struct buf whole = {0};
    struct in reads = {in->p, in->n < 64 ? in->n : 64};
    AUTO_FD int fd = file_of(in->p, in->n);
    if (text_of(fd, &reads, &text) && streamed(in->p, in->n, &whole))
        MUST(text.len == whole.len &&
                 (!text.len || !memcmp(text.data, whole.data, text.len)),
             "%zu bytes by the table, %zu from the start", text.len, whole.len);
}

static void put32(struct buf *b, uint32_t v)
{
    unsigned char x[4] = {(unsigned char)v, (unsigned char)(v >> 8),
                          (unsigned char)(v >> 16), (unsigned char)(v >> 24)};
    must_add(b, x, 4);
}

/* A file that another program made: frames of any size, empty ones, some to be
 * skipped, several under one entry, checksums in the table or not; and a table
 * that may be wrong here and there. */
static void foreign(struct in *in)
{
    CLEANUP(buf_release) struct buf file = {0};
    CLEANUP(buf_release) struct buf table = {0};
    CLEANUP(buf_release) struct buf text = {0};
    CLEANUP(buf_release) struct buf by_table = {0};
    CLEANUP(buf_release) struct buf whole = {0};
    unsigned frames = in_byte(in) % 24, flags = in_byte(in), lie = in_byte(in);
    bool sums = flags & 1;
    uint32_t n = 0, stored = 0, len = 0;
    for (unsigned i = 0; i < frames; i++) {
        unsigned how = in_byte(in);
        size_t k = in_byte(in), times = how & 16 ? in_short(in) % 2000 : 1;
        CLEANUP(buf_release) struct buf part = {0};
        if (k > in->n)
            k = in->n;
        for (size_t j = 0; j < times && part.len < 70000; j++)
            must_add(&part, in->p, k);
        in->p += k;
        in->n -= k;
        size_t cap = ZSTD_compressBound(part.len), before = file.len;
        AUTO_FREE char *out = malloc(cap);
        size_t z = ZSTD_compress(out, cap, part.len ? part.data : "", part.len,
                                 (int)(how & 3) + 1);
        MUST(out && !ZSTD_isError(z), "compress");
        if (how & 32) { /* to be skipped, in front of it */
            put32(&file, 0x184d2a50u | (how & 7));
            put32(&file, how & 7);
            must_add(&file, "........", how & 7);
        }
        must_add(&file, out, z);
        must_add(&text, part.data, part.len);
        stored += (uint32_t)(file.len - before);
        len += (uint32_t)part.len;
        if ((how & 64) && i + 1 < frames)
            continue; /* one entry with the next */
        bool wrong = lie && lie % 24 == i;
        put32(&table, stored + (wrong ? lie / 24 : 0));
        put32(&table, len + (wrong && (flags & 2) ? lie / 24 : 0));
        if (sums)
            put32(&table, 0);
        n++;
        stored = len = 0;
    }
    put32(&file, 0x184d2a5e);
    put32(&file, (uint32_t)table.len + 9);
    must_add(&file, table.data, table.len);
    put32(&file, n);
    unsigned char descriptor = sums ? 0x80 : 0;
    must_add(&file, &descriptor, 1);
    put32(&file, 0x8f92eab1);
    AUTO_FD int fd = file_of(file.data, file.len);
    int r = text_of(fd, in, &by_table);
    if (r)
        MUST(by_table.len == text.len &&
                 (!text.len || !memcmp(by_table.data, text.data, text.len)),
             "%zu bytes by the table, %zu were written", by_table.len,
             text.len);
    MUST(streamed(file.data, file.len, &whole) && whole.len == text.len,
         "%zu bytes from the start, %zu were written", whole.len, text.len);
}

static void round_trip(struct in *in, unsigned change)
{
    CLEANUP(buf_release) struct buf text = {0};
    CLEANUP(buf_release) struct buf file = {0};
    CLEANUP(buf_release) struct buf got = {0};
    CLEANUP(buf_release) struct buf whole = {0};
    unsigned times = in_short(in) % 4096, where = in_short(in),
             bit = in_byte(in);
    size_t piece = (in_byte(in) + 1) * (in_byte(in) + 1);
    struct seekable_writer *w;
    struct err err;
    int64_t stored = -1; /* bytes of the file */
    const void *part = in->p;
    size_t n = in->n;
    for (unsigned k = 0; k <= times && text.len + n < 250000; k++)
        must_add(&text, part, n);
    if (piece < text.len / 500)
        piece = text.len / 500;
    AUTO_FD int fd = file_of("", 0);
    MUST(seekable_writer_new(fd, &w, &err) == 0, "%s", err.text);
    for (size_t done = 0; done < text.len;) {
        size_t k = text.len - done < piece ? text.len - done : piece;
        AUTO_FREE char *one = alone(text.data + done, k);
        MUST(seekable_write(w, one, k, &err) == 0, "%s", err.text);
        done += k;
    }
    MUST(seekable_writer_end(w, &stored, &err) == 0, "%s", err.text);
    seekable_writer_free(w);
    bytes_of(fd, &file);
    MUST(stored == (int64_t)file.len, "%lld bytes, not %zu", (long long)stored,
         file.len);
    MUST(text_of(fd, in, &got) && got.len == text.len &&
             (!text.len || !memcmp(got.data, text.data, text.len)),
         "it came back as %zu bytes of %zu", got.len, text.len);
    MUST(streamed(file.data, file.len, &whole) && whole.len == text.len &&
             (!text.len || !memcmp(whole.data, text.data, text.len)),
         "unpacked it is %zu bytes of %zu", whole.len, text.len);
    if (!change)
        return;

    CLEANUP(buf_release) struct buf hurt = {0};
    size_t at = where < 32768 ? where % file.len
                              : file.len - 1 - where % 256 % file.len;
    if (change == 1) {
        must_add(&hurt, file.data, at);
    } else if (change == 2) {
        must_add(&hurt, file.data, file.len);
        hurt.data[at] ^= (char)(1 << bit % 8);
    } else {
        must_add(&hurt, file.data, at);
        must_add(&hurt, &bit, 1);
        must_add(&hurt, file.data + at, file.len - at);
    }
    AUTO_FD int other = file_of(hurt.data, hurt.len);
    buf_clear(&got);
    if (text_of(other, in, &got))
        MUST(got.len == text.len &&
                 (!text.len || !memcmp(got.data, text.data, text.len)),
             "hurt at %zu of %zu it gives another text of %zu bytes, not %zu",
             at, file.len, got.len, text.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = {data, size};
    unsigned what = in_byte(&in);
    switch (what % 4) {
    case 0:
        any_file(&in);
        break;
    case 1:
        foreign(&in);
        break;
    default:
        round_trip(&in, what / 4 % 4);
    }
    return 0;
}
