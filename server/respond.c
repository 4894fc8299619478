/* respond.c - answers go out: bytes, page files, bodies with ranges, streams;
 * and refusals, for which libmicrohttpd has no good way while a body still
 * comes.
 *
 * A refusal without a body is an answer like any other. A small body is read to
 * its end first and the connection kept (DISCARD). With a large one, or when
 * nobody can say where the next request would begin, the answer is written past
 * libmicrohttpd, and what still comes is thrown away for a while so that the
 * client gets to read it (DRAIN). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "schema/cleanup.h"
#include "server/assets.h"
#include "server/conn.h"
#include "server/server.h"

/* A refused body up to here is read to its end, and the connection kept. */
#define DISCARD_MAX (1 * MiB)
#define DRAIN_MS 20000

static void add_header(struct MHD_Response *r, const char *name,
                       const char *value)
{
    MHD_add_response_header(r, name, value);
}

static void add_common(struct conn *c, struct MHD_Response *r)
{
    add_header(r, "X-Content-Type-Options", "nosniff");
    add_header(r, "Referrer-Policy", "no-referrer");
    add_header(r, "Cross-Origin-Resource-Policy", "same-origin");
    if (c->asset) {
        add_header(r, "Cache-Control", "no-cache");
        add_header(r, "Content-Security-Policy",
                   "default-src 'none'; script-src 'self'; style-src 'self'; "
                   "img-src 'self' data:; connect-src 'self'; "
                   "base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'; "
                   "require-trusted-types-for 'script'");
        add_header(r, "Cross-Origin-Opener-Policy", "same-origin");
    } else {
        add_header(r, "Cache-Control",
                   c->reply.etag ? "private, no-cache" : "no-store");
        add_header(r, "Content-Security-Policy",
                   "default-src 'none'; frame-ancestors 'none'");
    }
    for (int i = 0; i < c->reply.n_headers; i++)
        add_header(r, c->reply.headers[i].name, c->reply.headers[i].value);
}

static enum MHD_Result send_response(struct conn *c, struct MHD_Response *r,
                                     int status, bool close)
{
    if (!r)
        return MHD_NO;
    add_common(c, r);
    if (close)
        add_header(r, "Connection", "close");
    c->state = CONN_SENDING;
    enum MHD_Result ok = MHD_queue_response(c->mhd, (unsigned)status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result answer_bytes(struct conn *c, bool close)
{
    struct reply *reply = &c->reply;
    char *data = reply->bytes.data;
    size_t len = reply->bytes.len;
    memset(&reply->bytes, 0, sizeof(reply->bytes));
    struct MHD_Response *r = MHD_create_response_from_buffer(
        len, data ? data : (void *)"",
        data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (!r) {
        free(data);
        return MHD_NO;
    }
    if (reply->type[0])
        add_header(r, "Content-Type", reply->type);
    return send_response(c, r, reply->status, close);
}

static enum MHD_Result answer_asset(struct conn *c)
{
    const struct asset *a = c->asset;
    char etag[80];
    snprintf(etag, sizeof(etag), "\"%s\"", a->etag);
    bool same = etag_matches(req_header(&c->req, "If-None-Match"), etag);
    struct MHD_Response *r = MHD_create_response_from_buffer(
        same ? 0 : a->len, (void *)a->data, MHD_RESPMEM_PERSISTENT);
    if (r) {
        add_header(r, "ETag", etag);
        if (!same)
            add_header(r, "Content-Type", a->type);
    }
    return send_response(c, r, same ? 304 : 200, false);
}

static ssize_t body_reader(void *cls, uint64_t pos, char *out, size_t max)
{
    struct conn *c = cls;
    int64_t at = c->first + (int64_t)pos;
    int64_t skip = at - c->window_at;
    if (c->broken)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (skip >= 0 && skip < (int64_t)c->window.len) {
        size_t n = c->window.len - (size_t)skip;
        if (n > max)
            n = max;
        memcpy(out, c->window.data + skip, n);
        return (ssize_t)n;
    }
    c->window_at = at;
    if (!conn_suspend(c))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    conn_run(c, STAGE_READ, LANE_READ);
    return 0;
}

static ssize_t stream_reader(void *cls, uint64_t pos, char *out, size_t max)
{
    struct conn *c = cls;
    if (c->broken)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t left = c->window.len - c->sent;
    if (left) {
        size_t n = left < max ? left : max;
        memcpy(out, c->window.data + c->sent, n);
        c->sent += n;
        return (ssize_t)n;
    }
    if (c->ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    buf_clear(&c->window);
    c->sent = 0;
    if (!conn_suspend(c))
        return c->reply.whole ? MHD_CONTENT_READER_END_WITH_ERROR
                              : MHD_CONTENT_READER_END_OF_STREAM;
    conn_run(c, STAGE_STREAM, LANE_READ);
    return 0;
}

int problem_answer(struct conn *c, int code, const char *text)
{
    struct err err;
    err_set(&err, code, "%s", text);
    return reply_problem(&c->reply, &err, reply_status_of(code));
}

static enum MHD_Result answer_body(struct conn *c)
{
    struct reply *reply = &c->reply;
    const char *match = req_header(&c->req, "If-None-Match");
    const char *range = req_header(&c->req, "Range");
    const char *if_range = req_header(&c->req, "If-Range");
    int64_t whole = reply->length, first = 0, count = whole;
    char text[96];

    if (etag_matches(match, reply->etag)) {
        struct MHD_Response *r =
            MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
        if (r)
            add_header(r, "ETag", reply->etag);
        return send_response(c, r, 304, false);
    }
    if (c->head ||
        (if_range && (!reply->etag || strcmp(if_range, reply->etag))))
        range = NULL;
    int ranged = range_parse(range, whole, &first, &count);
    if (ranged < 0) {
        snprintf(text, sizeof(text), "the body has %" PRId64 " bytes", whole);
        problem_answer(c, ERR_RANGE, text);
        snprintf(text, sizeof(text), "bytes */%" PRId64, whole);
        reply_header(reply, "Content-Range", text);
        return answer_bytes(c, false);
    }
    c->first = first;
    reply->length = count;
    c->window_at = -1;
    struct MHD_Response *r =
        count ? MHD_create_response_from_callback((uint64_t)count, 64 * KiB,
                                                  body_reader, c, NULL)
              : MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!r)
        return MHD_NO;
    add_header(r, "Content-Type", reply->type);
    add_header(r, "Accept-Ranges", "bytes");
    if (reply->etag)
        add_header(r, "ETag", reply->etag);
    if (reply->filename) {
        char disposition[200];
        char name[128];
        size_t n = 0;
        for (const char *s = reply->filename; *s && n < sizeof(name) - 1; s++)
            if ((unsigned char)*s > 0x20 && (unsigned char)*s < 0x7f &&
                !strchr("\"\\/;", *s))
                name[n++] = *s;
        name[n] = '\0';
        snprintf(disposition, sizeof(disposition),
                 "attachment; filename=\"%s\"", name);
        add_header(r, "Content-Disposition", disposition);
    }
    if (ranged) {
        snprintf(text, sizeof(text), "bytes %" PRId64 "-%" PRId64 "/%" PRId64,
                 first, first + count - 1, whole);
        add_header(r, "Content-Range", text);
    }
    return send_response(c, r, ranged ? 206 : 200, false);
}

static enum MHD_Result answer_stream(struct conn *c)
{
    struct MHD_Response *r = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, 16 * KiB, stream_reader, c, NULL);
    if (r)
        add_header(r, "Content-Type", c->reply.type);
    c->last_data_ms = server_mono_ms();
    return send_response(c, r, 200, false);
}

enum MHD_Result conn_answer(struct conn *c, bool close)
{
    if (c->asset)
        return answer_asset(c);
    switch (c->reply.kind) {
    case REPLY_BODY:
        return answer_body(c);
    case REPLY_STREAM:
        return answer_stream(c);
    default:
        return answer_bytes(c, close);
    }
}

/* ---- refusals ---- */

/* Write the answer past libmicrohttpd, which cannot send one while a body is
 * still coming, and stop sending; the rest of the body is then read and thrown
 * away, so that the client gets to read the answer. */
enum MHD_Result refuse_now(struct conn *c)
{
    struct reply *reply = &c->reply;
    CLEANUP(buf_release) struct buf out = {0};
    int r = buf_addf(&out,
                     "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n"
                     "Content-Length: %zu\r\nCache-Control: no-store\r\n"
                     "X-Content-Type-Options: nosniff\r\n",
                     reply->status, reply_title(reply->status), reply->type,
                     reply->bytes.len);
    for (int i = 0; i < reply->n_headers && r >= 0; i++)
        r = buf_addf(&out, "%s: %s\r\n", reply->headers[i].name,
                     reply->headers[i].value);
    if (r >= 0)
        r = buf_adds(&out, "Connection: close\r\n\r\n");
    if (r >= 0 && !c->head)
        r = buf_add(&out, reply->bytes.data, reply->bytes.len);
    if (r < 0)
        return MHD_NO;
    for (size_t done = 0; done < out.len;) {
        ssize_t n = send(c->fd, out.data + done, out.len - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return MHD_NO;
        done += (size_t)n;
    }
    shutdown(c->fd, SHUT_WR);
    c->state = CONN_DRAIN;
    c->received = 0;
    c->drain_until_ms = server_mono_ms() + DRAIN_MS;
    return MHD_YES;
}

enum MHD_Result refuse(struct conn *c, const struct err *err, int status,
                       bool cut)
{
    reply_problem(&c->reply, err, status);
    if (status == 405) {
        char allow[64] = "";
        for (const struct route *r = routes; r->method; r++) {
            if (c->route && !strcmp(r->path, c->route->path)) {
                if (allow[0])
                    strcat(allow, ", ");
                strcat(allow, r->method);
                if (!strcmp(r->method, "GET"))
                    strcat(allow, ", HEAD");
            }
        }
        reply_header(&c->reply, "Allow", allow[0] ? allow : "GET, HEAD");
    }
    if (cut)
        return refuse_now(c);
    if (!c->has_body) {
        c->state = CONN_ANSWER;
        return MHD_YES;
    }
    if (c->expects)
        return answer_bytes(c, true); /* nothing of the body was sent */
    if (!c->chunked && c->declared <= DISCARD_MAX) {
        c->state = CONN_DISCARD;
        return MHD_YES;
    }
    return refuse_now(c);
}
