#include "schema/line_index.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "an index is mapped as it lies on disk");
_Static_assert(sizeof(struct line_entry) == 16, "16 bytes a record");

#define PENDING 4096 /* entries written at a time */

struct line_index_writer {
    char *path;
    int fd;
    int64_t records;
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
    w->records = 0;
    w->n_pending = 0;
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

static int write_pending(struct line_index_writer *w, struct err *err)
{
    const char *s = (const char *)w->pending;
    size_t len = w->n_pending * sizeof(*w->pending);
    for (size_t done = 0; done < len;) {
        ssize_t n = write(w->fd, s + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(err, "write");
        done += (size_t)n;
    }
    w->n_pending = 0;
    return 0;
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
                      unsigned char out[LINE_INDEX_HEAD])
{
    uint64_t n = (uint64_t)records;
    memset(out, 0, LINE_INDEX_HEAD);
    memcpy(out, LINE_INDEX_MAGIC, 8);
    memcpy(out + 8, &n, 8);
    memcpy(out + 16, sha256, DIGEST_BYTES);
}

int line_index_end(struct line_index_writer *w,
                   const uint8_t text_sha256[DIGEST_BYTES], struct err *err)
{
    unsigned char head[LINE_INDEX_HEAD];
    int r = write_pending(w, err);
    if (r < 0)
        return r;
    head_make(w->records, text_sha256, head);
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
    if (!S_ISREG(sb.st_mode) || sb.st_size < LINE_INDEX_HEAD ||
        (sb.st_size - LINE_INDEX_HEAD) % (off_t)sizeof(struct line_entry))
        return damaged(err, path);
    int64_t n =
        (sb.st_size - LINE_INDEX_HEAD) / (off_t)sizeof(struct line_entry);
    unsigned char head[LINE_INDEX_HEAD], want[LINE_INDEX_HEAD];
    head_make(records, text_sha256, want);
    if (pread(fd, head, sizeof(head), 0) != (ssize_t)sizeof(head))
        return io_error(err, "read");
    if (n != records || memcmp(head, want, sizeof(head)))
        return damaged(err, path);
    size_t len = (size_t)sb.st_size;
    void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return io_error(err, "map");
    *ret = (struct line_index){
        .v = (const struct line_entry *)((const char *)map + LINE_INDEX_HEAD),
        .n = n,
        .map = map,
        .map_len = len,
    };
    return 0;
}

void line_index_close(struct line_index *x)
{
    if (x->map)
        munmap(x->map, x->map_len);
    *x = (struct line_index){0};
}

bool line_is_held_out(uint64_t hash, double fraction)
{
    return hash && (double)(hash >> 11) * 0x1p-53 < fraction;
}
