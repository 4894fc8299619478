#include "server/shard_text.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/seekable.h"

struct shard_text {
    int fd;
    struct seekable *frames; /* NULL: plain */
    int64_t bytes;
    char name[160];
};

int shard_text_of(int fd, const char *name, const char *form, int64_t bytes,
                  struct shard_text **ret, struct err *err)
{
    struct shard_text *t = calloc(1, sizeof(*t));
    struct stat st;
    int r = 0;
    if (!t) {
        close(fd);
        return err_set(err, ERR_NOMEM, "no memory for a shard");
    }
    t->fd = fd;
    strncpy(t->name, name, sizeof(t->name) - 1);
    t->bytes = bytes;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        r = err_set(err, ERR_IO, "shard %s is not a regular file any more",
                    t->name);
    if (r >= 0 && !strcmp(form, "zstd"))
        r = seekable_open(t->fd, &t->frames, err);
    if (r >= 0 && t->frames && seekable_bytes(t->frames) < bytes)
        r = err_set(err, ERR_CORRUPT,
                    "shard %s holds %" PRId64 " bytes of text, not %" PRId64,
                    t->name, seekable_bytes(t->frames), bytes);
    if (r < 0) {
        shard_text_close(t);
        return r;
    }
    *ret = t;
    return 0;
}

int shard_text_open(const char *path, const char *form, int64_t bytes,
                    struct shard_text **ret, struct err *err)
{
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    /* O_NONBLOCK: a pipe in its place must not hold up a reader */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return err_set(err, ERR_IO, "shard %.160s: %s", name, strerror(errno));
    return shard_text_of(fd, name, form, bytes, ret, err);
}

static int64_t read_plain(struct shard_text *t, int64_t offset, char *out,
                          size_t len, struct err *err)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(t->fd, out + done, len - done,
                          (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "shard %s: %s", t->name,
                           strerror(errno));
        if (n == 0)
            return err_set(err, ERR_CORRUPT,
                           "shard %s ends at offset %" PRId64
                           ", it had %" PRId64 " bytes",
                           t->name, offset + (int64_t)done, t->bytes);
        done += (size_t)n;
    }
    return (int64_t)done;
}

int64_t shard_text_read(struct shard_text *t, int64_t offset, void *out,
                        size_t len, struct err *err)
{
    if (offset >= t->bytes)
        return 0;
    if ((int64_t)len > t->bytes - offset)
        len = (size_t)(t->bytes - offset);
    return t->frames ? seekable_read(t->frames, offset, out, len, err)
                     : read_plain(t, offset, out, len, err);
}

int64_t shard_text_bytes(const struct shard_text *t)
{
    return t->bytes;
}

void shard_text_close(struct shard_text *t)
{
    if (!t)
        return;
    seekable_close(t->frames);
    if (t->fd >= 0)
        close(t->fd);
    free(t);
}
