#include "server/upload.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/wire.h"

static int io_error(struct err *err, const char *what)
{
    int e = errno;
    if (e == ENOSPC || e == EDQUOT)
        return err_set(err, ERR_NOSPACE, "no space left to store the upload");
    return err_set(err, ERR_IO, "cannot %s the upload: %s", what, strerror(e));
}

int upload_new(const char *tmp_dir, struct upload **ret, struct err *err)
{
    struct upload *u = calloc(1, sizeof(*u));
    if (!u)
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    u->fd = -1;
    u->whole = digest_new();
    u->block = digest_new();
    char *path = NULL;
    if (!u->whole || !u->block ||
        asprintf(&path, "%s/upload-XXXXXX", tmp_dir) < 0) {
        upload_free(u);
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    }
    u->fd = mkostemp(path, O_CLOEXEC);
    if (u->fd < 0 && errno == ENOENT && mkdir(tmp_dir, 0700) == 0) {
        /* some cleaner took the folder */
        memcpy(path + strlen(path) - 6, "XXXXXX", 6);
        u->fd = mkostemp(path, O_CLOEXEC);
    }
    if (u->fd < 0) {
        int r = io_error(err, "begin");
        free(path);
        upload_free(u);
        return r;
    }
    u->path = path;
    *ret = u;
    return 0;
}

static int end_block(struct upload *u, struct err *err)
{
    if (u->n_blocks == u->cap_blocks) {
        size_t cap = u->cap_blocks ? 2 * u->cap_blocks : 16;
        void *more = realloc(u->blocks, cap * sizeof(*u->blocks));
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for an upload's digests");
        u->blocks = more;
        u->cap_blocks = cap;
    }
    uint8_t sum[DIGEST_BYTES];
    digest_end(u->block, sum);
    digest_hex(sum, u->blocks[u->n_blocks++]);
    u->in_block = 0;
    return 0;
}

static const struct {
    const char *name, *magic;
} compressed[] = {
    {"gzip", "\x1f\x8b"},
    {"zstd", "\x28\xb5\x2f\xfd"},
    {"bzip2", "BZh"},
    {"xz", "\xfd"
           "7zXZ"},
    {"zip", "PK\x03\x04"},
    {"lz4", "\x04\x22\x4d\x18"},
};

/* No JSON begins with any of these, so a few bytes are enough to tell. */
static int check_head(struct upload *u, const void *data, size_t len,
                      struct err *err)
{
    if (u->n_head == UPLOAD_HEAD)
        return 0;
    size_t n = UPLOAD_HEAD - u->n_head;
    if (n > len)
        n = len;
    memcpy(u->head + u->n_head, data, n);
    u->n_head += n;
    for (size_t i = 0; i < sizeof(compressed) / sizeof(compressed[0]); i++) {
        size_t m = strlen(compressed[i].magic);
        if (u->n_head >= m && !memcmp(u->head, compressed[i].magic, m))
            return err_set(err, ERR_MEDIA,
                           "the shard is %s-compressed, which is not "
                           "supported yet: upload plain JSON lines",
                           compressed[i].name);
    }
    return 0;
}

int upload_add(struct upload *u, const void *data, size_t len, struct err *err)
{
    const char *s = data;
    int bad = check_head(u, data, len, err);
    if (bad < 0)
        return bad;
    for (size_t done = 0; done < len;) {
        ssize_t n = write(u->fd, s + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(err, "write");
        done += (size_t)n;
    }
    digest_add(u->whole, data, len);
    line_count_add(&u->lines, data, len);
    while (len) {
        size_t n = WIRE_BLOCK_BYTES - u->in_block;
        if (n > len)
            n = len;
        digest_add(u->block, s, n);
        u->in_block += n;
        s += n;
        len -= n;
        if (u->in_block == WIRE_BLOCK_BYTES) {
            int r = end_block(u, err);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

int upload_end(struct upload *u, struct err *err)
{
    uint8_t sum[DIGEST_BYTES];
    if (u->in_block) {
        int r = end_block(u, err);
        if (r < 0)
            return r;
    }
    digest_end(u->whole, sum);
    digest_hex(sum, u->sha256);
    line_count_end(&u->lines);
    if (fsync(u->fd) < 0)
        return io_error(err, "store");
    return 0;
}

static int sync_folder(const char *path, struct err *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return io_error(err, "file");
    return 0;
}

int upload_publish(struct upload *u, const char *path, struct err *err)
{
    AUTO_FREE char *folder = strdup(path);
    if (!folder)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    char *slash = strrchr(folder, '/');
    if (!slash)
        return err_set(err, ERR_IO, "'%s' lies in no folder", path);
    *slash = '\0';
    if (mkdir(folder, 0700) == 0) {
        /* a new folder's own entry must last, too */
        AUTO_FREE char *above = strdup(folder);
        char *cut = above ? strrchr(above, '/') : NULL;
        if (!cut)
            return err_set(err, ERR_NOMEM, "no memory for a path");
        *cut = '\0';
        int r = sync_folder(above, err);
        if (r < 0)
            return r;
    } else if (errno != EEXIST) {
        return io_error(err, "make a folder for");
    }
    if (rename(u->path, path) < 0)
        return io_error(err, "publish");
    free(u->path);
    u->path = NULL;
    return sync_folder(folder, err);
}

void upload_free(struct upload *u)
{
    if (!u)
        return;
    if (u->path)
        unlink(u->path);
    free(u->path);
    if (u->fd >= 0)
        close(u->fd);
    free(u->blocks);
    digest_free(u->whole);
    digest_free(u->block);
    free(u);
}
