#include "worker/source.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/seekable.h"

struct source {
    char *name, *path;
    int64_t bytes, stored_bytes, mtime_ns, inode; /* as frozen */
    bool compressed, changed, replaced;
    int fd;
    struct seekable *frames; /* under the lock */
    pthread_mutex_t lock;
    atomic_llong bytes_read; /* of a plain file */
};

int source_err(struct err *err, const char *name, int64_t offset,
               const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    err_set(err, ERR_DATA, "shard '%s' %s", name, what);
    if (err) {
        snprintf(err->shard, sizeof err->shard, "%s", name);
        err->offset = offset;
    }
    return ERR_DATA;
}

static int shrunk(struct err *err, const struct source *s, int64_t now)
{
    return source_err(err, s->name, now,
                      "has shrunk: it ends at offset %" PRId64
                      ", but held %" PRId64
                      " bytes when the cycle's data was frozen",
                      now, s->bytes);
}

/* Its frames cannot be read: the file is another one, whatever it holds. */
static int unreadable(struct err *err, const struct source *s, int64_t offset,
                      const char *why)
{
    return source_err(
        err, s->name, offset, "%s after the cycle's data was frozen: %.300s",
        s->replaced ? "was replaced by another file" : "was edited", why);
}

/* ---- opening ---- */

static int64_t whole(const json_t *in, const char *name, int64_t otherwise)
{
    const json_t *v = json_object_get(in, name);
    return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

static int parse(const json_t *in, struct source *s, struct err *err)
{
    const char *name = json_string_value(json_object_get(in, "name"));
    const char *path = json_string_value(json_object_get(in, "path"));
    const char *form = json_string_value(json_object_get(in, "form"));
    if (!name || !path)
        return err_set(err, ERR_INVALID,
                       "the claim names a shard without name or path");
    if (form && strcmp(form, "plain") && strcmp(form, "zstd"))
        return err_set(err, ERR_INVALID,
                       "shard '%s' is kept as '%s', which this worker cannot "
                       "read: is it older than the server?",
                       name, form);
    s->name = strdup(name);
    s->path = strdup(path);
    if (!s->name || !s->path)
        return err_set(err, ERR_NOMEM, "no memory for the list of shards");
    s->compressed = form && !strcmp(form, "zstd");
    s->bytes = whole(in, "bytes", 0);
    s->stored_bytes = whole(in, "stored_bytes", s->bytes);
    s->mtime_ns = whole(in, "mtime_ns", 0);
    s->inode = whole(in, "inode", 0);
    return 0;
}

static int open_file(struct source *s, struct err *err)
{
    /* O_NONBLOCK: a pipe in its place must not hold us up */
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (s->fd >= 0)
        return 0;
    switch (errno) {
    case ELOOP:
    case EMLINK:
        return source_err(err, s->name, 0,
                          "is a symbolic link now; links are not followed");
    case ENOENT:
    case ENOTDIR:
        return source_err(err, s->name, 0,
                          "is missing: there is no file %.180s", s->path);
    case EMFILE:
    case ENFILE:
        return err_set(err, ERR_IO, "cannot open shard '%s': %s", s->name,
                       strerror(errno));
    default:
        return source_err(err, s->name, 0, "cannot be opened: %s",
                          strerror(errno));
    }
}

static int look_at(struct source *s, int64_t *ret_size, struct err *err)
{
    struct stat st;
    if (fstat(s->fd, &st) < 0)
        return err_set(err, ERR_IO, "cannot stat %s: %s", s->path,
                       strerror(errno));
    if (!S_ISREG(st.st_mode))
        return source_err(err, s->name, 0, "is not a regular file any more");
#ifdef __APPLE__
    struct timespec mtime = st.st_mtimespec;
#else
    struct timespec mtime = st.st_mtim;
#endif
    int64_t mtime_ns = (int64_t)mtime.tv_sec * 1000000000 + mtime.tv_nsec;
    s->replaced = (int64_t)st.st_ino != s->inode;
    s->changed = s->replaced || mtime_ns != s->mtime_ns ||
                 (int64_t)st.st_size != s->stored_bytes;
    *ret_size = (int64_t)st.st_size;
    return 0;
}

static int open_frames(struct source *s, int64_t size, struct err *err)
{
    struct err why = {0};
    int r = seekable_open(s->fd, &s->frames, &why);
    if (r == ERR_CORRUPT || r == ERR_TOO_LARGE) {
        if (size < s->stored_bytes)
            return source_err(err, s->name, 0,
                              "has shrunk: its file holds %" PRId64
                              " bytes, but held %" PRId64
                              " when the cycle's data was frozen",
                              size, s->stored_bytes);
        return unreadable(err, s, 0, why.text);
    }
    if (r < 0) {
        if (err)
            *err = why;
        return r;
    }
    int64_t now = seekable_bytes(s->frames);
    return now < s->bytes ? shrunk(err, s, now) : 0;
}

int source_open(const json_t *in, struct source **ret, struct err *err)
{
    struct source *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for the list of shards");
    s->fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    int64_t size = 0;
    int r = parse(in, s, err);
    if (r == 0)
        r = open_file(s, err);
    if (r == 0)
        r = look_at(s, &size, err);
    if (r == 0 && s->compressed)
        r = open_frames(s, size, err);
    else if (r == 0 && size < s->bytes)
        r = shrunk(err, s, size);
    if (r < 0) {
        source_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

bool source_changed(const struct source *s)
{
    return s->changed;
}

bool source_replaced(const struct source *s)
{
    return s->replaced;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    seekable_close(s->frames);
    if (s->fd >= 0)
        close(s->fd);
    pthread_mutex_destroy(&s->lock);
    free(s->name);
    free(s->path);
    free(s);
}

/* ---- reading ---- */

static int read_frames(struct source *s, int64_t offset, char *out, size_t len,
                       struct err *err)
{
    struct err why = {0};
    pthread_mutex_lock(&s->lock);
    int64_t n = seekable_read(s->frames, offset, out, len, &why);
    pthread_mutex_unlock(&s->lock);
    if (n == (int64_t)len)
        return 0;
    if (n >= 0)
        return shrunk(err, s, offset + n);
    if (n == ERR_CORRUPT)
        return unreadable(err, s, offset, why.text);
    return err_set(err, (int)n, "cannot read shard '%s' at %" PRId64 ": %s",
                   s->name, offset, why.text);
}

/* Where the file ends, of which nothing is left at `at`. */
static int64_t end_before(const struct source *s, int64_t at)
{
    struct stat st;
    return fstat(s->fd, &st) == 0 && (int64_t)st.st_size < at
               ? (int64_t)st.st_size
               : at;
}

static int read_plain(struct source *s, int64_t offset, char *out, size_t len,
                      struct err *err)
{
    size_t have = 0;
    while (have < len) {
        int64_t at = offset + (int64_t)have;
        ssize_t n = pread(s->fd, out + have, len - have, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO,
                           "cannot read shard '%s' at %" PRId64 ": %s", s->name,
                           at, strerror(errno));
        if (n == 0)
            return shrunk(err, s, end_before(s, at));
        have += (size_t)n;
    }
    atomic_fetch_add(&s->bytes_read, (long long)len);
    return 0;
}

int source_read(struct source *s, int64_t offset, char *out, size_t len,
                struct err *err)
{
    return s->compressed ? read_frames(s, offset, out, len, err)
                         : read_plain(s, offset, out, len, err);
}

int64_t source_bytes_read(struct source *s)
{
    if (!s->compressed)
        return atomic_load(&s->bytes_read);
    pthread_mutex_lock(&s->lock);
    int64_t n = seekable_bytes_read(s->frames);
    pthread_mutex_unlock(&s->lock);
    return n;
}
