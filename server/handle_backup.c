/* GET /v1/backup: wait until the copies are made, so that what goes wrong is an
 * answer; then send them. */
#include <string.h>
#include "server/backup.h"
#include "server/handle.h"
#include "server/server.h"

static int next(struct ctx *ctx, void *source, struct buf *out, struct err *err)
{
    if (atomic_load(&ctx->server->shutting_down))
        return err_set(err, ERR_BUSY, "the server is stopping");
    return backup_next(source, out, err);
}

int handle_backup(struct ctx *ctx, struct request *req, struct reply *ret,
                  struct err *err)
{
    if (!strcmp(req->method, "HEAD")) {
        struct buf none = {0};
        return reply_bytes(ret, 200, "application/x-tar", &none);
    }
    if (atomic_load(&ctx->server->shutting_down))
        return err_set(err, ERR_BUSY, "the server is stopping");
    struct backup *b = req->prepared;
    int r = 0;
    if (!b) {
        r = backup_new(ctx->server->backups, &b, err);
        if (r < 0)
            return r;
        req->prepared = b;
        req->prepared_free = backup_free;
    }
    r = backup_ready(b, err);
    if (r < 0)
        return r;
    if (r == 0)
        return reply_wait(ret, NOTIFY_BACKUP, INT64_MAX);
    req->prepared = NULL; /* the reply's now */
    reply_header(ret, "Content-Disposition",
                 "attachment; filename=\"pawl-backup.tar\"");
    r = reply_stream(ret, "application/x-tar", 0, next, b, backup_free);
    return r < 0 ? r : reply_whole(ret);
}
