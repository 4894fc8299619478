/* lanework.c - what a connection has done on the lanes, and what follows.
 *
 *   BEGIN    the route's begin, before the body                         READ
 *   BLOCK    a block of an upload goes to disk while more of it comes   BULK
 *   PREPARE  parse a large body, the route's prepare                    READ
 *            (end an upload; for the CHUNK lane: check the digest)      BULK
 *   HANDLE   the handler                                    the route's lane
 *   READ     fill the window of a body that is being sent               READ
 *   STREAM   ask a stream for more                                      READ
 *
 * The connection is suspended all the while. A task runs on the lane's thread;
 * its done runs after the lane's commit and resumes the connection, puts it on
 * the next lane or parks it. What failed is logged here, once, when it is the
 * server's fault. */
#include <stdio.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/conn.h"
#include "server/server.h"
#include "server/upload.h"

#define STREAM_POLL_MS 1000
#define STREAM_COMMENT_MS 15000

static int stage_block(struct conn *c, struct err *err)
{
    int r = 0;
    if (c->req.body.len)
        r = upload_add(c->req.upload, c->req.body.data, c->req.body.len, err);
    buf_clear(&c->req.body);
    return r;
}

int conn_parse(struct conn *c, struct err *err)
{
    const struct request *req = &c->req;
    if (c->route->flags & (ROUTE_RAW | ROUTE_STREAM) || req->json)
        return 0;
    size_t blank = 0;
    while (blank < req->body.len && strchr(" \t\r\n", req->body.data[blank]))
        blank++;
    if (blank == req->body.len)
        return 0;
    int r = json_parse_strict(req->body.data, req->body.len, &c->req.json, err);
    if (r >= 0)
        buf_release(&c->req.body);
    return r;
}

static int stage_prepare(struct conn *c, struct ctx *ctx, struct err *err)
{
    int r = 0;
    if (c->route->flags & ROUTE_STREAM) {
        r = stage_block(c, err);
        if (r >= 0)
            r = upload_end(c->req.upload, err);
    } else {
        r = conn_parse(c, err);
    }
    if (r >= 0 && c->route->prepare)
        r = c->route->prepare(ctx, &c->req, &c->reply, err);
    return r;
}

static int stage_read(struct conn *c, struct ctx *ctx, struct err *err)
{
    int64_t left = c->first + c->reply.length - c->window_at;
    size_t want = left < WINDOW ? (size_t)left : WINDOW;
    buf_clear(&c->window);
    if (buf_reserve(&c->window, want) < 0)
        return err_set(err, ERR_NOMEM, "no memory to send a body");
    int64_t n = c->reply.read(ctx, c->reply.source, c->window_at,
                              c->window.data, want, err);
    if (n == 0)
        return err_set(err, ERR_IO, "a body ended before its length");
    if (n < 0)
        return (int)n;
    c->window.len = (size_t)n;
    return 0;
}

static int stage_stream(struct conn *c, struct ctx *ctx, struct err *err)
{
    int r = c->reply.next(ctx, c->reply.source, &c->window, err);
    if (r == 0)
        c->ended = true;
    if (c->window.len)
        c->last_data_ms = ctx->mono_ms;
    else if (!c->ended && !strncmp(c->reply.type, "text/event-stream", 17) &&
             ctx->mono_ms - c->last_data_ms >= STREAM_COMMENT_MS) {
        c->last_data_ms = ctx->mono_ms;
        buf_adds(&c->window, ":\n\n");
    }
    return r;
}

static int conn_task(struct task *t, struct ctx *ctx, struct err *err)
{
    struct conn *c = (struct conn *)t;
    conn_see(c);
    switch (c->stage) {
    case STAGE_BEGIN:
        return c->route->begin(ctx, &c->req, &c->reply, err);
    case STAGE_BLOCK:
        return stage_block(c, err);
    case STAGE_PREPARE:
        return stage_prepare(c, ctx, err);
    case STAGE_HANDLE:
        if (!c->first_run_ms)
            c->first_run_ms = ctx->mono_ms;
        return c->route->handler(ctx, &c->req, &c->reply, err);
    case STAGE_READ:
        return stage_read(c, ctx, err);
    case STAGE_STREAM:
        return stage_stream(c, ctx, err);
    }
    return 0;
}

static void log_failure(const struct conn *c, const struct err *err)
{
    if (reply_status_of(err->code) >= 500 && err->code != ERR_BUSY)
        fprintf(stderr, "pawld: %s %s: %s\n", c->method, c->path, err->text);
}

/* The handler's run is over and its commit done. */
static void handle_done(struct conn *c)
{
    if (c->task.result >= 0 && c->req.upload)
        upload_settle(c->req.upload);
    if (c->task.result < 0) {
        struct err *err = &c->task.err;
        if (!err->code || !err->text[0])
            err_set(err, c->task.result, "%s", err_word(c->task.result));
        log_failure(c, err);
        reply_problem(&c->reply, err, reply_status_of(err->code));
    } else if (c->reply.kind == REPLY_WAIT) {
        /* one that only looks again now and then has a later time by now */
        if (!c->req.last_wait ||
            (!httpd_flushing(c->h) && c->reply.until_ms > server_mono_ms())) {
            if (conn_park(c, c->reply.notices, c->reply.until_ms))
                return;
            conn_again(c);
            return;
        }
        struct err err;
        err_set(&err, ERR_BUSY, "nothing happened within the wait");
        reply_problem(&c->reply, &err, 503);
    } else if (c->reply.kind == REPLY_NONE) {
        struct err err;
        err_set(&err, ERR_IO, "no answer was made");
        log_failure(c, &err);
        reply_problem(&c->reply, &err, 500);
    }
    c->state = CONN_ANSWER;
    conn_resume(c);
}

static void conn_done(struct task *t)
{
    struct conn *c = (struct conn *)t;
    switch (c->stage) {
    case STAGE_BEGIN:
        if (t->result < 0) {
            c->err = t->err;
            log_failure(c, &c->err);
        }
        c->state = CONN_BEGUN;
        conn_resume(c);
        return;
    case STAGE_BLOCK:
        if (t->result < 0) {
            c->err = t->err;
            log_failure(c, &c->err);
        }
        c->state = t->result < 0 ? CONN_FAILED : CONN_BODY;
        conn_resume(c);
        return;
    case STAGE_PREPARE:
        if (t->result >= 0 && c->reply.kind == REPLY_NONE) {
            conn_run(c, STAGE_HANDLE, c->route->lane);
            return;
        }
        handle_done(c);
        return;
    case STAGE_HANDLE:
        handle_done(c);
        return;
    case STAGE_READ:
    case STAGE_STREAM:
        if (t->result < 0) {
            log_failure(c, &t->err);
            c->broken = true;
        } else if (c->stage == STAGE_STREAM && !c->window.len && !c->ended) {
            if (conn_park(c, c->reply.notices,
                          server_mono_ms() + STREAM_POLL_MS))
                return;
            if (!httpd_flushing(c->h)) {
                conn_again(c);
                return;
            }
            c->ended = true;
        }
        conn_resume(c);
        return;
    }
}

void conn_run(struct conn *c, enum conn_stage stage, enum lane lane)
{
    c->stage = stage;
    c->task.run = conn_task;
    c->task.done = conn_done;
    lanes_put(c->h->server->lanes, lane, &c->task);
}
