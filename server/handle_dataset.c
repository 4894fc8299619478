#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "server/dataset.h"
#include "server/handle.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && !strcmp(s + n - m, end);
}

int handle_shard_put(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    const char *name = req_param(req, "name"), *shard = req_param(req, "shard");
    bool made = false;
    json_t *out = NULL;
    if (ends_with(shard, ".gz") || ends_with(shard, ".zst"))
        return err_set(err, ERR_MEDIA,
                       "compressed shards are not supported yet: upload plain "
                       "JSON lines");
    int r = dataset_put(ctx->st, name, shard, req->upload, ctx->now_ms, &made,
                        &out, err);
    return r < 0 ? r : reply_json(ret, made ? 201 : 200, out);
}

struct file {
    int fd;
};

static void file_free(void *p)
{
    struct file *f = p;
    if (f->fd >= 0)
        close(f->fd);
    free(f);
}

static int64_t file_read(struct ctx *ctx, void *source, int64_t offset,
                         char *out, size_t len, struct err *err)
{
    const struct file *f = source;
    ssize_t n = pread(f->fd, out, len, (off_t)offset);
    return n < 0 ? err_set(err, ERR_IO, "shard: %s", strerror(errno)) : n;
}

int handle_shard_get(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    struct shard_file s;
    const char *shard = req_param(req, "shard");
    int r = dataset_shard(ctx->st, req_param(req, "name"), shard, &s, err);
    if (r < 0)
        return r;
    struct file *f = malloc(sizeof(*f));
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory for a download");
    /* O_NONBLOCK: a pipe in its place must not hold up a reader */
    f->fd = open(s.path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (f->fd < 0)
        r = err_set(err, ERR_IO, "shard %s: %s", shard, strerror(errno));
    else if (fstat(f->fd, &st) < 0 || !S_ISREG(st.st_mode))
        r = err_set(err, ERR_IO, "shard %s is not a regular file any more",
                    shard);
    if (r < 0) {
        file_free(f);
        return r;
    }
    return reply_body(ret, "application/x-ndjson", s.sha256, NULL, s.bytes,
                      file_read, f, file_free);
}

int handle_shard_delete(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    int r = dataset_delete(ctx->st, req_param(req, "name"),
                           req_param(req, "shard"), err);
    return r < 0 ? r : reply_empty(ret, 204);
}

int handle_dataset_delete(struct ctx *ctx, struct request *req,
                          struct reply *ret, struct err *err)
{
    int r = dataset_delete(ctx->st, req_param(req, "name"), NULL, err);
    return r < 0 ? r : reply_empty(ret, 204);
}

int handle_dataset_list(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    int64_t limit, cursor;
    json_t *page = NULL;
    int r = page_params(req, &limit, &cursor, err);
    if (r >= 0)
        r = dataset_list(ctx->st, cursor, limit, &page, err);
    return r < 0 ? r : reply_json(ret, 200, page);
}

int handle_dataset_get(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    json_t *out = NULL;
    int r = dataset_get(ctx->st, req_param(req, "name"), &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}
