#include "schema/seekable.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>
#include "schema/buf.h"
#include "schema/cleanup.h"

/* The table is a skippable frame at the end of the file: an entry of 8 bytes a
 * frame (12 with checksums) between a head of 8 bytes and a foot of 9. All
 * numbers are little-endian, 32 bits. */
#define TABLE_HEAD 8
#define TABLE_FOOT 9
#define TABLE_MAGIC 0x184d2a5eu
#define FOOT_MAGIC 0x8f92eab1u
#define HAS_CHECKSUMS 0x80
#define RESERVED_BITS 0x7c

#define LEVEL 1
#define FRAMES_MAX (1 << 24) /* 1 TiB of frames as we write them */
#define BATCH (512 * 1024)   /* of compressed bytes read at a time */
#define KEPT 16              /* frames kept, of the last reads */
#define EMPTY_FRAME_MAX 18   /* an empty one with all that its head may hold */
#define KEPT_BYTES (9 << 20)

static void put32(unsigned char *out, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(v >> 8 * i);
}

static uint32_t get32(const unsigned char *in)
{
    return in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 |
           (uint32_t)in[3] << 24;
}

/* ---- write ---- */

struct seekable_writer {
    int fd;
    int64_t stored;
    ZSTD_CCtx *zstd;
    struct buf table; /* entries so far */
    uint32_t frames;
    size_t n, n_out;
    size_t cap_out;
    char *out; /* compressed, on its way to the file */
    char text[SEEKABLE_FRAME];
};

static int write_error(struct err *err)
{
    int e = errno;
    if (e == ENOSPC || e == EDQUOT)
        return err_set(err, ERR_NOSPACE, "no space left to store frames");
    return err_set(err, ERR_IO, "cannot write frames: %s", strerror(e));
}

int seekable_writer_new(int fd, struct seekable_writer **ret, struct err *err)
{
    struct seekable_writer *w = malloc(sizeof(*w));
    if (w) {
        memset(w, 0, offsetof(struct seekable_writer, text));
        w->fd = fd;
        w->cap_out = BATCH + ZSTD_compressBound(SEEKABLE_FRAME);
        w->out = malloc(w->cap_out);
        w->zstd = ZSTD_createCCtx();
    }
    if (!w || !w->out || !w->zstd ||
        ZSTD_isError(
            ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, LEVEL)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1))) {
        seekable_writer_free(w);
        return err_set(err, ERR_NOMEM, "no memory to compress");
    }
    *ret = w;
    return 0;
}

static int write_all(struct seekable_writer *w, const char *s, size_t len,
                     struct err *err)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = write(w->fd, s + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return write_error(err);
        done += (size_t)n;
    }
    w->stored += (int64_t)len;
    return 0;
}

static int end_frame(struct seekable_writer *w, const char *text, size_t len,
                     struct err *err)
{
    unsigned char entry[8];
    if (w->frames == FRAMES_MAX)
        return err_set(err, ERR_TOO_LARGE,
                       "a compressed shard holds at most 1 TiB of text");
    size_t n = ZSTD_compress2(w->zstd, w->out + w->n_out, w->cap_out - w->n_out,
                              text, len);
    if (ZSTD_isError(n))
        return err_set(err, ERR_NOMEM, "cannot compress: %s",
                       ZSTD_getErrorName(n));
    put32(entry, (uint32_t)n);
    put32(entry + 4, (uint32_t)len);
    if (buf_add(&w->table, entry, sizeof(entry)) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a table of frames");
    w->frames++;
    w->n_out += n;
    if (w->n_out < BATCH)
        return 0;
    int r = write_all(w, w->out, w->n_out, err);
    w->n_out = 0;
    return r;
}

int seekable_write(struct seekable_writer *w, const void *text, size_t len,
                   struct err *err)
{
    const char *s = text;
    while (len) {
        int r = 0;
        size_t n = SEEKABLE_FRAME - w->n;
        if (!w->n && len >= SEEKABLE_FRAME) { /* need not be copied first */
            r = end_frame(w, s, n, err);
        } else {
            n = n < len ? n : len;
            memcpy(w->text + w->n, s, n);
            w->n += n;
            if (w->n == SEEKABLE_FRAME) {
                r = end_frame(w, w->text, w->n, err);
                w->n = 0;
            }
        }
        if (r < 0)
            return r;
        s += n;
        len -= n;
    }
    return 0;
}

int seekable_writer_end(struct seekable_writer *w, int64_t *ret_stored,
                        struct err *err)
{
    unsigned char head[TABLE_HEAD], foot[TABLE_FOOT];
    int r = w->n ? end_frame(w, w->text, w->n, err) : 0;
    w->n = 0;
    if (r >= 0)
        r = write_all(w, w->out, w->n_out, err);
    w->n_out = 0;
    put32(head, TABLE_MAGIC);
    put32(head + 4, (uint32_t)(w->table.len + TABLE_FOOT));
    put32(foot, w->frames);
    foot[4] = 0;
    put32(foot + 5, FOOT_MAGIC);
    if (r >= 0)
        r = write_all(w, (char *)head, sizeof(head), err);
    if (r >= 0 && w->table.len)
        r = write_all(w, w->table.data, w->table.len, err);
    if (r >= 0)
        r = write_all(w, (char *)foot, sizeof(foot), err);
    if (r < 0)
        return r;
    *ret_stored = w->stored;
    return 0;
}

size_t seekable_writer_memory(const struct seekable_writer *w)
{
    return sizeof(*w) + w->cap_out + w->table.cap + ZSTD_sizeof_CCtx(w->zstd);
}

void seekable_writer_free(struct seekable_writer *w)
{
    if (!w)
        return;
    ZSTD_freeCCtx(w->zstd);
    buf_release(&w->table);
    free(w->out);
    free(w);
}

/* ---- read ---- */

struct frame {
    int64_t stored, text; /* where it begins in the file and in the text */
};

struct kept {
    int64_t frame; /* -1: none */
    uint64_t used;
    size_t len, cap;
    char *text;
};

struct seekable {
    int fd;
    int64_t n;       /* frames */
    struct frame *v; /* n + 1: the last says where all ends */
    int64_t bytes_read;
    ZSTD_DCtx *zstd;
    struct buf in; /* compressed bytes of the frames under way */
    struct kept kept[KEPT];
    uint64_t clock;
};

static int no_table(struct err *err, const char *why)
{
    return err_set(err, ERR_CORRUPT, "the frames have no seek table: %s", why);
}

/* All of it, or ERR_CORRUPT. */
static int read_at(int fd, int64_t offset, void *out, size_t len,
                   struct err *err)
{
    char *s = out;
    for (size_t done = 0; done < len;) {
        ssize_t n =
            pread(fd, s + done, len - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "cannot read frames: %s",
                           strerror(errno));
        if (n == 0)
            return err_set(err, ERR_CORRUPT,
                           "the file ends at %" PRId64 ", within its frames",
                           offset + (int64_t)done);
        done += (size_t)n;
    }
    return 0;
}

static int read_table(struct seekable *s, int64_t size, struct err *err)
{
    unsigned char foot[TABLE_FOOT], head[TABLE_HEAD];
    if (size < TABLE_HEAD + TABLE_FOOT)
        return no_table(err, "it is too short for one");
    int r = read_at(s->fd, size - TABLE_FOOT, foot, sizeof(foot), err);
    if (r < 0)
        return r;
    if (get32(foot + 5) != FOOT_MAGIC)
        return no_table(err, "it does not end with one");
    if (foot[4] & RESERVED_BITS)
        return no_table(err, "it is of an unknown version");
    int64_t n = get32(foot), entry = foot[4] & HAS_CHECKSUMS ? 12 : 8;
    int64_t body = n * entry, at = size - TABLE_FOOT - body - TABLE_HEAD;
    if (at < 0)
        return no_table(err, "it is longer than the file");
    if (n > FRAMES_MAX)
        return err_set(err, ERR_TOO_LARGE,
                       "%" PRId64 " frames are more than %d", n, FRAMES_MAX);
    AUTO_FREE unsigned char *table = malloc((size_t)body + TABLE_HEAD);
    s->v = malloc((size_t)(n + 1) * sizeof(*s->v));
    if (!table || !s->v)
        return err_set(err, ERR_NOMEM, "no memory for a table of frames");
    r = read_at(s->fd, at, table, (size_t)body + TABLE_HEAD, err);
    if (r < 0)
        return r;
    memcpy(head, table, sizeof(head));
    if (get32(head) != TABLE_MAGIC ||
        get32(head + 4) != (uint64_t)body + TABLE_FOOT)
        return no_table(err, "its head and its foot disagree");

    struct frame f = {0};
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *e = table + TABLE_HEAD + i * entry;
        uint32_t stored = get32(e), text = get32(e + 4);
        s->v[i] = f;
        if (text > SEEKABLE_FRAME_MAX ||
            stored > ZSTD_COMPRESSBOUND(SEEKABLE_FRAME_MAX))
            return err_set(err, ERR_TOO_LARGE,
                           "frame %" PRId64 " holds %" PRIu32 " bytes in "
                           "%" PRIu32 ", more than can be sought in",
                           i, text, stored);
        if (!text && stored > EMPTY_FRAME_MAX) /* it would never be looked at */
            return no_table(err, "it has a frame of nothing that is none");
        f.stored += stored;
        f.text += text;
    }
    s->v[n] = f;
    s->n = n;
    if (f.stored != at)
        return no_table(err, "its frames are not those of the file");
    return 0;
}

int seekable_open(int fd, struct seekable **ret, struct err *err)
{
    struct stat sb;
    struct seekable *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory to read frames");
    s->fd = fd;
    for (int i = 0; i < KEPT; i++)
        s->kept[i].frame = -1;
    int r = 0;
    s->zstd = ZSTD_createDCtx();
    if (!s->zstd)
        r = err_set(err, ERR_NOMEM, "no memory to decompress");
    else if (fstat(fd, &sb) < 0)
        r = err_set(err, ERR_IO, "cannot read frames: %s", strerror(errno));
    else
        r = read_table(s, sb.st_size, err);
    if (r < 0) {
        seekable_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

int64_t seekable_bytes(const struct seekable *s)
{
    return s->v[s->n].text;
}

int64_t seekable_bytes_read(const struct seekable *s)
{
    return s->bytes_read;
}

/* The frame that holds the byte at `offset`, which is within the text. */
static int64_t frame_of(const struct seekable *s, int64_t offset)
{
    int64_t low = 0, high = s->n; /* v[low].text <= offset < v[high].text */
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        if (s->v[mid].text <= offset)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static size_t text_of(const struct seekable *s, int64_t i)
{
    return (size_t)(s->v[i + 1].text - s->v[i].text);
}

static struct kept *kept_find(struct seekable *s, int64_t frame)
{
    for (int i = 0; i < KEPT; i++)
        if (s->kept[i].frame == frame) {
            s->kept[i].used = ++s->clock;
            return &s->kept[i];
        }
    return NULL;
}

/* Room to keep a frame of `len` bytes: the one used longest ago goes, and
 * others until all fit into KEPT_BYTES. */
static struct kept *kept_room(struct seekable *s, size_t len)
{
    struct kept *oldest = NULL;
    for (int i = 0; i < KEPT; i++) {
        struct kept *k = &s->kept[i];
        if (k->frame < 0 && (!oldest || oldest->frame >= 0))
            oldest = k;
        else if (!oldest || (oldest->frame >= 0 && k->used < oldest->used))
            oldest = k;
    }
    for (;;) {
        size_t sum = len;
        struct kept *drop = NULL;
        for (int i = 0; i < KEPT; i++) {
            struct kept *k = &s->kept[i];
            if (k == oldest)
                continue;
            sum += k->cap;
            if (k->cap && (!drop || k->used < drop->used))
                drop = k;
        }
        if (sum <= KEPT_BYTES || !drop)
            break;
        free(drop->text);
        *drop = (struct kept){.frame = -1};
    }
    oldest->frame = -1;
    if (oldest->cap < len || oldest->cap > 4 * len + SEEKABLE_FRAME) {
        free(oldest->text);
        oldest->text = malloc(len ? len : 1);
        oldest->cap = oldest->text ? len : 0;
    }
    return oldest->text ? oldest : NULL;
}

static int decompress(struct seekable *s, int64_t i, const char *in, char *out,
                      struct err *err)
{
    size_t stored = (size_t)(s->v[i + 1].stored - s->v[i].stored);
    size_t len = text_of(s, i);
    size_t n = ZSTD_decompressDCtx(s->zstd, out, len, in, stored);
    if (!ZSTD_isError(n) && n == len)
        return 0;
    return err_set(err, ERR_CORRUPT,
                   "frame %" PRId64 " (at byte %" PRId64
                   " of the file, %" PRId64 " of the text) is damaged: %s",
                   i, s->v[i].stored, s->v[i].text,
                   ZSTD_isError(n) ? ZSTD_getErrorName(n)
                                   : "it holds less than the table says");
}

/* Compressed bytes of frames first … *end, of which at least one. */
static int read_frames(struct seekable *s, int64_t first, int64_t *end,
                       struct err *err)
{
    int64_t at = s->v[first].stored, i = first + 1;
    while (i < *end && s->v[i + 1].stored - at <= BATCH)
        i++;
    size_t len = (size_t)(s->v[i].stored - at);
    buf_clear(&s->in);
    if (buf_reserve(&s->in, len) < 0)
        return err_set(err, ERR_NOMEM, "no memory to read frames");
    int r = read_at(s->fd, at, s->in.data, len, err);
    if (r < 0)
        return r;
    s->bytes_read += (int64_t)len;
    *end = i;
    return 0;
}

/* The part of frame i's text that lies within offset … offset + len. */
static void give(const struct seekable *s, int64_t i, const char *text,
                 int64_t offset, size_t len, char *out)
{
    int64_t from = s->v[i].text, to = s->v[i + 1].text;
    int64_t end = offset + (int64_t)len;
    if (from < offset)
        from = offset;
    if (to > end)
        to = end;
    if (to > from)
        memcpy(out + (from - offset), text + (from - s->v[i].text),
               (size_t)(to - from));
}

int64_t seekable_read(struct seekable *s, int64_t offset, void *out, size_t len,
                      struct err *err)
{
    int64_t all = seekable_bytes(s);
    if (offset < 0 || offset >= all || !len)
        return 0;
    if ((int64_t)len > all - offset)
        len = (size_t)(all - offset);
    int64_t i = frame_of(s, offset);
    int64_t last = frame_of(s, offset + (int64_t)len - 1) + 1;
    while (i < last) {
        struct kept *k = kept_find(s, i);
        if (k) {
            give(s, i, k->text, offset, len, out);
            i++;
            continue;
        }
        int64_t end = last;
        int r = read_frames(s, i, &end, err);
        if (r < 0)
            return r;
        int64_t base = s->v[i].stored;
        for (; i < end; i++) {
            const char *in = s->in.data + (s->v[i].stored - base);
            /* a frame that is wanted whole is not copied, nor kept */
            if (s->v[i].text >= offset &&
                s->v[i + 1].text <= offset + (int64_t)len) {
                r = decompress(s, i, in, (char *)out + (s->v[i].text - offset),
                               err);
                if (r < 0)
                    return r;
                continue;
            }
            k = kept_room(s, text_of(s, i));
            if (!k)
                return err_set(err, ERR_NOMEM, "no memory to read a frame");
            r = decompress(s, i, in, k->text, err);
            if (r < 0)
                return r;
            k->frame = i;
            k->len = text_of(s, i);
            k->used = ++s->clock;
            give(s, i, k->text, offset, len, out);
        }
    }
    return (int64_t)len;
}

void seekable_close(struct seekable *s)
{
    if (!s)
        return;
    for (int i = 0; i < KEPT; i++)
        free(s->kept[i].text);
    ZSTD_freeDCtx(s->zstd);
    buf_release(&s->in);
    free(s->v);
    free(s);
}
