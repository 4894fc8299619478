/* GET /v1/leases/{id}/shards/{n}: the data of a lease, for a worker that has no
 * part in the state folder (schema/wire.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/wire.h"
#include "server/frozen.h"
#include "server/handle.h"
#include "server/lease.h"
#include "server/reply.h"
#include "server/server.h"
#include "server/shard_text.h"

/* A part up to this size is read before it is answered: what is wrong with it
 * can still be said. */
#define AT_ONCE ((int64_t)16 << 20)

struct part {
    struct shard_text *text; /* or */
    int fd;                  /* of an index */
    int64_t first;           /* of what was read before */
    char *bytes;             /* or NULL */
};

static void part_free(void *p)
{
    struct part *part = p;
    shard_text_close(part->text);
    if (part->fd >= 0)
        close(part->fd);
    free(part->bytes);
    free(part);
}

static int64_t read_index(const struct part *p, int64_t offset, char *out,
                          size_t len, struct err *err)
{
    ssize_t n;
    while ((n = pread(p->fd, out, len, (off_t)offset)) < 0 && errno == EINTR)
        ;
    return n >= 0 ? n
                  : err_set(err, ERR_IO, "an index cannot be read: %s",
                            strerror(errno));
}

static int64_t read_part(struct ctx *ctx, void *source, int64_t offset,
                         char *out, size_t len, struct err *err)
{
    struct part *p = source;
    if (p->bytes) {
        memcpy(out, p->bytes + (offset - p->first), len);
        return (int64_t)len;
    }
    return p->text ? shard_text_read(p->text, offset, out, len, err)
                   : read_index(p, offset, out, len, err);
}

/* What a single Range asks for, while an error has an answer. */
static int read_ahead(struct request *req, struct part *p, int64_t length,
                      struct err *err)
{
    int64_t first = 0, count = length;
    int r = range_parse(req_header(req, "Range"), length, &first, &count);
    if (r < 0 || count > AT_ONCE)
        return 0; /* said, or sent, by whoever answers */
    char *bytes = malloc(count ? (size_t)count : 1);
    if (!bytes)
        return err_set(err, ERR_NOMEM, "no memory to read a shard");
    for (int64_t at = 0; at < count;) {
        int64_t n = read_part(NULL, p, first + at, bytes + at,
                              (size_t)(count - at), err);
        if (n <= 0) {
            free(bytes);
            return n < 0 ? (int)n
                         : err_set(err, ERR_IO, "a shard ended too early");
        }
        at += n;
    }
    p->bytes = bytes;
    p->first = first;
    return 0;
}

static int open_part(struct ctx *ctx, const struct frozen *f, bool index,
                     struct part *p, int64_t *ret_bytes, struct err *err)
{
    if (!index) {
        *ret_bytes = f->bytes;
        return frozen_open(ctx->server->dir, f, &p->text, err);
    }
    p->fd =
        frozen_index(ctx->server->dir, f, ctx->server->errands, ret_bytes, err);
    return p->fd < 0 ? p->fd : 0;
}

/* A shard that is not what it was: who trains on it shall say so. */
static int reply_refused(struct reply *ret, const struct frozen *f,
                         struct err *err)
{
    if (err->code != ERR_DATA && err->code != ERR_CORRUPT)
        return err->code;
    struct err why = *err;
    if (why.code == ERR_CORRUPT) {
        err_set(&why, ERR_DATA,
                "shard '%.400s' was edited after the cycle's data was frozen: "
                "%.300s",
                f->name, err->text);
        snprintf(why.shard, sizeof(why.shard), "%s", f->name);
        why.offset = err->offset;
    }
    return reply_problem(ret, &why, 409);
}

static int shard_number(const struct request *req, int64_t *ret,
                        struct err *err)
{
    const char *text = req_param(req, "n");
    char *end;
    errno = 0;
    *ret = strtoll(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        return err_set(err, ERR_NOT_FOUND, "a lease has no shard '%.40s'",
                       text);
    return 0;
}

int handle_lease_shard(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    int64_t id, n = 0, bytes = 0;
    CLEANUP(frozen_release) struct frozen f = {0};
    const char *what = req_query(req, "part");
    bool index = what && !strcmp(what, "index");
    if (what && !index)
        return err_at(err, ERR_INVALID, "part", "part is index, or left out");
    int r = handle_chunk_head_prepare(ctx, req, ret, err);
    if (r >= 0)
        r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = shard_number(req, &n, err);
    if (r >= 0)
        r = frozen_find(ctx->st, id, n, &f, err);
    if (r < 0)
        return r;
    struct part *p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(err, ERR_NOMEM, "no memory to read a shard");
    p->fd = -1;
    r = open_part(ctx, &f, index, p, &bytes, err);
    if (r >= 0)
        r = read_ahead(req, p, bytes, err);
    if (r < 0) {
        part_free(p);
        return reply_refused(ret, &f, err);
    }
    return reply_body(
        ret, index ? "application/octet-stream" : "application/x-ndjson",
        f.sha256, NULL, bytes, read_part, p, part_free);
}
