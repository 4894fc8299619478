#include "schema/line_index.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/line_hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "an index is mapped as it lies on disk");
_Static_assert(sizeof(struct line_entry) == 16, "16 bytes a record");

#define PENDING (16 * LINE_INDEX_PAGE) /* entries written at a time */

struct line_index_writer {
    char *path;
    int fd;
    int64_t records;
    uint64_t *pages; /* hashes of those that were written */
    int64_t n_pages, cap_pages;
    size_t n_pending;
    struct line_entry pending[PENDING];
};

static int io_error(struct err *err, const char *what)
{
    int e = errno;
    if (e == ENOSPC || e == EDQUOT)
        return err_set(err, ERR_NOSPACE,
                       "no space left to store an index of lines");
    return err_set(err, ERR_IO, "cannot %s an index of lines: %s", what,
                   strerror(e));
}

int line_index_new(const char *path, struct line_index_writer **ret,
                   struct err *err)
{
    struct line_index_writer *w = malloc(sizeof(*w));
    if (!w)
        return err_set(err, ERR_NOMEM, "no memory for an index of lines");
    w->records = w->n_pages = w->cap_pages = 0;
    w->n_pending = 0;
    w->pages = NULL;
    w->path = strdup(path);
    if (!w->path) {
        free(w);
        return err_set(err, ERR_NOMEM, "no memory for an index of lines");
    }
    w->fd =
        open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    static const char head[LINE_INDEX_HEAD];
    if (w->fd < 0) {
        int r = io_error(err, "begin");
        free(w->path);
        free(w);
        return r;
    }
    /* a header of zeros until the end: half an index is none */
    if (write(w->fd, head, sizeof(head)) != (ssize_t)sizeof(head)) {
        int r = io_error(err, "begin");
        line_index_free(w);
        return r;
    }
    *ret = w;
    return 0;
}

static int write_all(struct line_index_writer *w, const void *data, size_t len,
                     struct err *err)
{
    const char *s = data;
    for (size_t done = 0; done < len;) {
        ssize_t n = write(w->fd, s + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(err, "write");
        done += (size_t)n;
    }
    return 0;
}

static int64_t pages_of(int64_t records)
{
    return (records + LINE_INDEX_PAGE - 1) / LINE_INDEX_PAGE;
}

static uint64_t page_hash(const struct line_entry *v, int64_t n, int64_t number)
{
    return XXH64(v, (size_t)n * sizeof(*v), (uint64_t)number);
}

/* The pages under way: all whole but for the last of all. */
static int write_pending(struct line_index_writer *w, struct err *err)
{
    int64_t left = (int64_t)w->n_pending, more = pages_of(left);
    if (w->n_pages + more > w->cap_pages) {
        int64_t cap = 2 * (w->cap_pages + more);
        uint64_t *v = realloc(w->pages, (size_t)cap * sizeof(*v));
        if (!v)
            return err_set(err, ERR_NOMEM, "no memory for an index of lines");
        w->pages = v;
        w->cap_pages = cap;
    }
    for (const struct line_entry *v = w->pending; left > 0;
         v += LINE_INDEX_PAGE, left -= LINE_INDEX_PAGE, w->n_pages++)
        w->pages[w->n_pages] = page_hash(
            v, left < LINE_INDEX_PAGE ? left : LINE_INDEX_PAGE, w->n_pages);
    int r = write_all(w, w->pending, w->n_pending * sizeof(*w->pending), err);
    if (r >= 0)
        w->n_pending = 0;
    return r;
}

int line_index_add(struct line_index_writer *w, int64_t offset, int64_t length,
                   uint64_t hash, struct err *err)
{
    if (offset < 0 || offset >= (int64_t)1 << 40)
        return err_set(err, ERR_TOO_LARGE,
                       "a shard of more than 1 TiB has no index of lines");
    if (length > LINE_MAX_BYTES) {
        length = 0;
        hash = 0;
    }
    w->pending[w->n_pending++] = (struct line_entry){
        .place = (uint64_t)offset << 24 | (uint64_t)length, .hash = hash};
    w->records++;
    return w->n_pending == PENDING ? write_pending(w, err) : 0;
}

static void head_make(int64_t records, const uint8_t sha256[DIGEST_BYTES],
                      const uint64_t *pages, unsigned char out[LINE_INDEX_HEAD])
{
    uint64_t n = (uint64_t)records;
    size_t len = (size_t)pages_of(records) * sizeof(*pages);
    uint64_t table = XXH64(len ? (const void *)pages : "", len, n);
    memset(out, 0, LINE_INDEX_HEAD);
    memcpy(out, LINE_INDEX_MAGIC, 8);
    memcpy(out + 8, &n, 8);
    memcpy(out + 16, sha256, DIGEST_BYTES);
    memcpy(out + 16 + DIGEST_BYTES, &table, 8);
}

int line_index_end(struct line_index_writer *w,
                   const uint8_t text_sha256[DIGEST_BYTES], struct err *err)
{
    unsigned char head[LINE_INDEX_HEAD];
    int r = write_pending(w, err);
    if (r >= 0 && w->n_pages)
        r = write_all(w, w->pages, (size_t)w->n_pages * sizeof(*w->pages), err);
    if (r < 0)
        return r;
    head_make(w->records, text_sha256, w->pages, head);
    if (pwrite(w->fd, head, sizeof(head), 0) != (ssize_t)sizeof(head))
        return io_error(err, "write");
    if (fsync(w->fd) < 0)
        return io_error(err, "store");
    free(w->path);
    w->path = NULL;
    return 0;
}

void line_index_free(struct line_index_writer *w)
{
    if (!w)
        return;
    if (w->path)
        unlink(w->path);
    free(w->path);
    free(w->pages);
    close(w->fd);
    free(w);
}

static int damaged(struct err *err, const char *path)
{
    return err_set(err, ERR_CORRUPT,
                   "%s is not the index of lines that it should be", path);
}

int line_index_open(const char *path, const uint8_t text_sha256[DIGEST_BYTES],
                    int64_t records, struct line_index *ret, struct err *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat sb;
    if (fd < 0 && errno == ENOENT)
        return err_set(err, ERR_NOT_FOUND, "there is no index of lines at %s",
                       path);
    if (fd < 0 || fstat(fd, &sb) < 0)
        return io_error(err, "open");
    /* before anything is multiplied by it */
    if (!S_ISREG(sb.st_mode) || records < 0 || records > sb.st_size)
        return damaged(err, path);
    int64_t n_pages = pages_of(records);
    size_t entries = (size_t)records * sizeof(struct line_entry);
    size_t len = LINE_INDEX_HEAD + entries + (size_t)n_pages * sizeof(uint64_t);
    if ((size_t)sb.st_size != len)
        return damaged(err, path);
    char *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return io_error(err, "map");
    const uint64_t *pages = (const void *)(map + LINE_INDEX_HEAD + entries);
    unsigned char want[LINE_INDEX_HEAD];
    head_make(records, text_sha256, pages, want);
    bool same = !memcmp(map, want, sizeof(want));
    uint8_t *sound = same ? calloc((size_t)n_pages + 1, 1) : NULL;
    if (!sound) {
        munmap(map, len);
        return same ? err_set(err, ERR_NOMEM, "no memory for an index of lines")
                    : damaged(err, path);
    }
    *ret = (struct line_index){
        .v = (const void *)(map + LINE_INDEX_HEAD),
        .n = records,
        .pages = pages,
        .sound = sound,
        .map = map,
        .map_len = len,
    };
    return 0;
}

int line_index_check(struct line_index *x, int64_t first, int64_t n,
                     int64_t *ret_bytes, struct err *err)
{
    int64_t bytes = 0;
    for (int64_t p = first / LINE_INDEX_PAGE;
         n > 0 && p <= (first + n - 1) / LINE_INDEX_PAGE; p++) {
        if (__atomic_load_n(&x->sound[p], __ATOMIC_RELAXED))
            continue;
        int64_t at = p * LINE_INDEX_PAGE, left = x->n - at;
        if (left > LINE_INDEX_PAGE)
            left = LINE_INDEX_PAGE;
        if (page_hash(x->v + at, left, p) != x->pages[p])
            return err_set(err, ERR_CORRUPT,
                           "an index of lines is damaged: entries %" PRId64
                           " to %" PRId64 " are not what was written",
                           at, at + left - 1);
        bytes += left * (int64_t)sizeof(*x->v);
        __atomic_store_n(&x->sound[p], 1, __ATOMIC_RELAXED);
    }
    if (ret_bytes)
        *ret_bytes = bytes;
    return 0;
}

void line_index_close(struct line_index *x)
{
    if (x->map)
        munmap(x->map, x->map_len);
    free(x->sound);
    *x = (struct line_index){0};
}

bool line_is_held_out(uint64_t hash, double fraction)
{
    return hash && (double)(hash >> 11) * 0x1p-53 < fraction;
}
