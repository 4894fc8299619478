#include "server/httpd.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/wire.h"
#include "server/assets.h"
#include "server/guard.h"
#include "server/reply.h"
#include "server/server.h"
#include "server/session.h"
#include "server/upload.h"

#define KiB 1024
#define MiB (1024 * 1024)

#define CONNECTION_MEMORY (64 * KiB)
#define CONNECTION_LIMIT                                                       \
    4096 /* beyond it libmicrohttpd leaves clients hanging */
#define CONNECTION_BUSY 3072 /* beyond it all but workers get 503 */
#define IDLE_S 60
#define PARAMS_MAX 4
#define QUERY_MAX 16
/* A refused body up to here is read to its end, and the connection kept. */
#define DISCARD_MAX (1 * MiB)
/* Beyond it the answer is sent at once and so much is still read, so that the
 * client can finish writing and read it; then the connection is cut. */
#define DRAIN_MAX (64 * MiB)
#define DRAIN_MS 20000
#define PARSE_HERE (64 * KiB) /* larger JSON is parsed on a READ thread */
#define WINDOW (512 * KiB)    /* of a reply_body, read at a time */
#define STREAM_POLL_MS 1000
#define STREAM_COMMENT_MS 15000
#define STOP_MS 5000 /* for answers under way when the server stops */

enum conn_state {
    CONN_NEW,
    CONN_BODY,
    CONN_DISCARD, /* refused; the body is read, then the answer sent */
    CONN_DRAIN,   /* refused and answered; the body is read, then we hang up */
    CONN_RUNNING, /* suspended: a lane has it, or it is parked */
    CONN_FAILED,  /* a lane failed while the body was still coming */
    CONN_ANSWER,
    CONN_SENDING,
    CONN_GONE, /* the client hung up while it waited */
};

enum conn_stage {
    STAGE_BLOCK,   /* write a block of an upload */
    STAGE_PREPARE, /* parse, finish the upload, the route's prepare */
    STAGE_HANDLE,
    STAGE_READ,   /* fill the window of a body */
    STAGE_STREAM, /* ask a stream for more */
};

struct pair {
    char *name, *value;
};

struct conn {
    struct task task; /* first: tasks are cast back */
    struct request req;
    struct reply reply;
    struct err err;
    struct httpd *h;
    struct listener *listener;
    struct MHD_Connection *mhd;
    int fd;
    enum conn_state state;
    enum conn_stage stage;

    char *uri, *decoded; /* as sent; what params and query point into */
    char *path;          /* decoded, for people */
    struct pair params[PARAMS_MAX], query[QUERY_MAX];
    int n_params, n_query;
    const struct route *route;
    const struct asset *asset;
    char method[16];
    bool head, has_body, expects, chunked;
    int64_t declared, received, drain_until_ms;
    int64_t first_run_ms; /* of the handler, 0: not yet */

    struct conn *fresh_next, **fresh_at; /* headers are still coming */

    /* parked */
    struct conn *next, *prev;
    bool parked;
    int64_t until_ms;
    uint64_t seen[32]; /* notice counters when the run began */

    /* body and stream; touched by one side at a time: the event thread while
     * the connection runs, a lane while it is suspended */
    struct buf window;
    int64_t window_at; /* offset of the window in the source */
    int64_t first;     /* where the range begins in the source */
    size_t sent;       /* of the window, for a stream */
    bool ended, broken;
    int64_t last_data_ms;
};

struct listener {
    struct httpd *h;
    const struct listen_address *address;
    struct MHD_Daemon *daemon;
    int fd;
    bool is_unix;
    char name[320];
    struct conn *fresh; /* the event thread's own */
};

struct httpd {
    struct server *server;
    struct listener *listeners;
    size_t n_listeners;
    const char **names;
    struct guard_names guard_names;
    char cookie[32]; /* "pawl_<instance>=" */
    atomic_int connections, active;

    pthread_mutex_t mutex;
    pthread_cond_t wake; /* the timer; and httpd_stop */
    struct conn *parked;
    uint64_t notices[32]; /* how often each was noted */
    int suspended;
    bool flushing; /* waits end now */
    bool closing;  /* nothing may be suspended any more */
    bool timer_stop, timer_started;
    pthread_t timer;
};

static void conn_run(struct conn *c, enum conn_stage stage, enum lane lane);

/* ---- suspend, resume, park ---- */

static bool conn_suspend(struct conn *c)
{
    struct httpd *h = c->h;
    pthread_mutex_lock(&h->mutex);
    bool closing = h->closing;
    if (!closing)
        h->suspended++;
    pthread_mutex_unlock(&h->mutex);
    if (!closing)
        MHD_suspend_connection(c->mhd);
    return !closing;
}

/* The event thread may free the connection before this returns. */
static void conn_resume(struct conn *c)
{
    struct httpd *h = c->h;
    MHD_resume_connection(c->mhd);
    pthread_mutex_lock(&h->mutex);
    h->suspended--;
    pthread_cond_broadcast(&h->wake);
    pthread_mutex_unlock(&h->mutex);
}

/* A suspended client is never seen to hang up, so look. */
static bool conn_hung_up(const struct conn *c)
{
    char b;
    ssize_t n = recv(c->fd, &b, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 ||
           (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

static void conn_unlink(struct conn *c)
{
    struct httpd *h = c->h;
    if (c->prev)
        c->prev->next = c->next;
    else
        h->parked = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->next = c->prev = NULL;
    c->parked = false;
}

static void conn_see(struct conn *c)
{
    pthread_mutex_lock(&c->h->mutex);
    memcpy(c->seen, c->h->notices, sizeof(c->seen));
    pthread_mutex_unlock(&c->h->mutex);
}

/* Leave it until a notice or until_ms. False: something it waits for happened
 * while it ran, so it must run again now. */
static bool conn_park(struct conn *c, unsigned notices, int64_t until_ms)
{
    struct httpd *h = c->h;
    pthread_mutex_lock(&h->mutex);
    bool missed = h->flushing;
    for (int i = 0; i < 32; i++)
        if ((notices >> i & 1) && c->seen[i] != h->notices[i])
            missed = true;
    if (!missed) {
        c->until_ms = until_ms;
        c->prev = NULL;
        c->next = h->parked;
        if (h->parked)
            h->parked->prev = c;
        h->parked = c;
        c->parked = true;
        pthread_cond_broadcast(&h->wake);
    }
    pthread_mutex_unlock(&h->mutex);
    return !missed;
}

static void conn_again(struct conn *c)
{
    struct httpd *h = c->h;
    bool gone = conn_hung_up(c);
    if (c->stage == STAGE_STREAM) {
        if (gone) {
            c->broken = true;
            conn_resume(c);
            return;
        }
        conn_run(c, STAGE_STREAM, LANE_READ);
        return;
    }
    if (gone) {
        c->state = CONN_GONE;
        conn_resume(c);
        return;
    }
    pthread_mutex_lock(&h->mutex);
    bool flushing = h->flushing;
    pthread_mutex_unlock(&h->mutex);
    c->req.last_wait = flushing || server_mono_ms() >= c->reply.until_ms;
    reply_clear(&c->reply);
    conn_run(c, STAGE_HANDLE, c->route->lane);
}

/* Take from the parked those that have a reason, and run them again. */
static void httpd_wake(struct httpd *h, unsigned bits, int64_t now_ms,
                       bool look_for_hangups)
{
    struct conn *due = NULL;
    pthread_mutex_lock(&h->mutex);
    for (int i = 0; i < 32; i++)
        if (bits >> i & 1)
            h->notices[i]++;
    for (struct conn *c = h->parked, *next; c; c = next) {
        next = c->next;
        unsigned waits = c->reply.notices;
        if (!(waits & bits) && now_ms < c->until_ms && !h->flushing &&
            !(look_for_hangups && conn_hung_up(c)))
            continue;
        conn_unlink(c);
        c->next = due;
        due = c;
    }
    pthread_mutex_unlock(&h->mutex);
    for (struct conn *c = due, *next; c; c = next) {
        next = c->next;
        c->next = NULL;
        conn_again(c);
    }
}

void httpd_notice(struct httpd *h, unsigned bits)
{
    httpd_wake(h, bits, 0, false);
}

static void on_notice(void *arg, unsigned bits)
{
    httpd_notice(arg, bits);
}

static void *timer_main(void *arg)
{
    struct httpd *h = arg;
    int64_t looked_ms = 0;
    pthread_mutex_lock(&h->mutex);
    while (!h->timer_stop) {
        int64_t now = server_mono_ms(), next = now + 1000;
        for (struct conn *c = h->parked; c; c = c->next)
            if (c->until_ms < next)
                next = c->until_ms;
        if (next > now) {
            struct timespec ts;
            clock_gettime(CLOCK_MONOTONIC, &ts);
            int64_t ns = ts.tv_nsec + (next - now) * 1000000;
            ts.tv_sec += ns / 1000000000;
            ts.tv_nsec = ns % 1000000000;
            pthread_cond_timedwait(&h->wake, &h->mutex, &ts);
        }
        pthread_mutex_unlock(&h->mutex);
        now = server_mono_ms();
        bool look = now - looked_ms >= 1000;
        if (look)
            looked_ms = now;
        httpd_wake(h, 0, now, look);
        pthread_mutex_lock(&h->mutex);
    }
    pthread_mutex_unlock(&h->mutex);
    return NULL;
}

/* ---- what handlers ask ---- */

static struct conn *conn_of(const struct request *req)
{
    return req->conn;
}

const char *req_param(const struct request *req, const char *name)
{
    const struct conn *c = conn_of(req);
    for (int i = 0; i < c->n_params; i++)
        if (!strcmp(c->params[i].name, name))
            return c->params[i].value;
    return "";
}

int req_id(const struct request *req, const char *name, int64_t *ret,
           struct err *err)
{
    const char *s = req_param(req, name);
    size_t n = strspn(s, "0123456789");
    if (!n || s[n] || n > 18)
        return err_set(err, ERR_NOT_FOUND, "there is no %s '%.80s'", name, s);
    *ret = strtoll(s, NULL, 10);
    return 0;
}

const char *req_query(const struct request *req, const char *name)
{
    const struct conn *c = conn_of(req);
    for (int i = 0; i < c->n_query; i++)
        if (!strcmp(c->query[i].name, name))
            return c->query[i].value;
    return NULL;
}

int req_query_int(const struct request *req, const char *name, int64_t min,
                  int64_t max, int64_t fallback, int64_t *ret, struct err *err)
{
    const char *s = req_query(req, name);
    if (!s) {
        *ret = fallback;
        return 0;
    }
    char *end;
    errno = 0;
    int64_t v = strtoll(s, &end, 10);
    if (!*s || *end || errno || v < min || v > max || *s == ' ' || *s == '+')
        return err_at(err, ERR_INVALID, name,
                      "query parameter '%s' must be an integer from %" PRId64
                      " to %" PRId64,
                      name, min, max);
    *ret = v;
    return 0;
}

const char *req_header(const struct request *req, const char *name)
{
    return MHD_lookup_connection_value(conn_of(req)->mhd, MHD_HEADER_KIND,
                                       name);
}

enum as req_as(const struct request *req)
{
    const char *as = req_query(req, "as");
    if (as && !strcmp(as, "text"))
        return AS_TEXT;
    if (as && !strcmp(as, "csv"))
        return AS_CSV;
    if (as)
        return AS_JSON;
    const char *method = conn_of(req)->method;
    if (strcmp(method, "GET") && strcmp(method, "HEAD"))
        return AS_JSON;
    return accept_parse(req_header(req, "Accept"));
}

int64_t req_deadline(struct request *req, const struct ctx *ctx, int64_t wait_s)
{
    struct conn *c = conn_of(req);
    if (!c->first_run_ms)
        c->first_run_ms = ctx->mono_ms;
    return c->first_run_ms + wait_s * 1000;
}

/* ---- on the lanes ---- */

static int stage_block(struct conn *c, struct err *err)
{
    int r = 0;
    if (!c->req.upload)
        r = upload_new(c->h->server->tmp_dir, &c->req.upload, err);
    if (r >= 0 && c->req.body.len)
        r = upload_add(c->req.upload, c->req.body.data, c->req.body.len, err);
    buf_clear(&c->req.body);
    return r;
}

static int conn_parse(struct conn *c, struct err *err)
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
    if (c->task.result < 0) {
        struct err *err = &c->task.err;
        if (!err->code || !err->text[0])
            err_set(err, c->task.result, "%s", err_word(c->task.result));
        log_failure(c, err);
        reply_problem(&c->reply, err, reply_status_of(err->code));
    } else if (c->reply.kind == REPLY_WAIT) {
        if (!c->req.last_wait) {
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
            pthread_mutex_lock(&c->h->mutex);
            bool flushing = c->h->flushing;
            pthread_mutex_unlock(&c->h->mutex);
            if (!flushing) {
                conn_again(c);
                return;
            }
            c->ended = true;
        }
        conn_resume(c);
        return;
    }
}

/* The connection is suspended. */
static void conn_run(struct conn *c, enum conn_stage stage, enum lane lane)
{
    c->stage = stage;
    c->task.run = conn_task;
    c->task.done = conn_done;
    lanes_put(c->h->server->lanes, lane, &c->task);
}

/* ---- answers ---- */

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
        return MHD_CONTENT_READER_END_OF_STREAM;
    conn_run(c, STAGE_STREAM, LANE_READ);
    return 0;
}

static int problem_answer(struct conn *c, int code, const char *text)
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

static enum MHD_Result conn_answer(struct conn *c, bool close)
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
static enum MHD_Result refuse_now(struct conn *c)
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

/* In the first call for a request. `cut`: nobody can say where the next
 * request would begin. */
static enum MHD_Result refuse(struct conn *c, const struct err *err, int status,
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

/* ---- requests ---- */

static int hex_digit(char ch)
{
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    if (ch >= 'a' && ch <= 'f')
        return ch - 'a' + 10;
    if (ch >= 'A' && ch <= 'F')
        return ch - 'A' + 10;
    return -1;
}

/* In place, once. False: a broken escape or a NUL. */
static bool decode(char *s, bool plus)
{
    char *out = s;
    for (; *s; s++) {
        if (*s == '%') {
            int hi = hex_digit(s[1]), lo = hi < 0 ? -1 : hex_digit(s[2]);
            if (lo < 0 || (hi == 0 && lo == 0))
                return false;
            *out++ = (char)(hi << 4 | lo);
            s += 2;
        } else {
            *out++ = *s == '+' && plus ? ' ' : *s;
        }
    }
    *out = '\0';
    return true;
}

#define SEGMENTS_MAX 12

/* Split c->decoded into path segments and query pairs. */
static int conn_split(struct conn *c, char *segments[SEGMENTS_MAX],
                      struct err *err)
{
    int n = 0;
    char *s = c->decoded, *query = strchr(s, '?');
    if (query)
        *query++ = '\0';
    if (*s != '/')
        return err_set(err, ERR_INVALID, "the path must begin with a slash");
    while (s) {
        char *segment = ++s;
        s = strchr(s, '/');
        if (s)
            *s = '\0';
        if (n == SEGMENTS_MAX)
            return err_set(err, ERR_NOT_FOUND, "there is no such path");
        if (!decode(segment, false))
            return err_set(err, ERR_INVALID, "a broken %%-escape in the path");
        segments[n++] = segment;
    }
    while (query && *query) {
        char *pair = query;
        query = strchr(query, '&');
        if (query)
            *query++ = '\0';
        if (!*pair)
            continue;
        char *value = strchr(pair, '=');
        if (value)
            *value++ = '\0';
        else
            value = pair + strlen(pair);
        if (c->n_query == QUERY_MAX)
            return err_set(err, ERR_INVALID, "too many query parameters");
        if (!decode(pair, true) || !decode(value, true))
            return err_set(err, ERR_INVALID, "a broken %%-escape in the query");
        c->query[c->n_query].name = pair;
        c->query[c->n_query++].value = value;
    }
    return n;
}

/* No name of ours holds a slash, a control character or is a dot segment, so a
 * path with one names nothing; no handler has to think of it. */
static bool is_plain(const char *s)
{
    if (!*s || !strcmp(s, ".") || !strcmp(s, ".."))
        return false;
    for (; *s; s++)
        if (*s == '/' || *s == '\\' || (unsigned char)*s < 0x20 || *s == 0x7f)
            return false;
    return true;
}

static bool segments_match(const struct route *route, char **segments, int n,
                           struct conn *c)
{
    const char *p = route->path;
    c->n_params = 0;
    for (int i = 0; i < n; i++) {
        if (*p++ != '/')
            return false;
        size_t len = strcspn(p, "/");
        if (*p == '{') {
            if (!is_plain(segments[i]) || c->n_params == PARAMS_MAX)
                return false;
            char *name = strndup(p + 1, len - 2);
            if (!name)
                return false;
            free(c->params[c->n_params].name);
            c->params[c->n_params].name = name;
            c->params[c->n_params++].value = segments[i];
        } else if (strlen(segments[i]) != len || memcmp(p, segments[i], len)) {
            return false;
        }
        p += len;
    }
    return !*p;
}

/* 1: c->route is set; 0: no such path; -1: the path has other methods, and
 * c->route is one of them. */
static int route_find(struct conn *c, char **segments, int n)
{
    const char *method = c->head ? "GET" : c->method;
    const struct route *other = NULL, *head = NULL;
    for (const struct route *r = routes; r->method; r++) {
        if (!segments_match(r, segments, n, c))
            continue;
        if (!strcmp(r->method, c->method)) {
            c->route = r;
            return 1;
        }
        if (!strcmp(r->method, method))
            head = r;
        other = r;
    }
    const struct route *found = head ? head : other;
    if (!found)
        return 0;
    segments_match(found, segments, n, c);
    c->route = found;
    return head ? 1 : -1;
}

static const struct asset *asset_find(char **segments, int n)
{
    if (n != 1)
        return NULL;
    const char *name = *segments[0] ? segments[0] : "index.html";
    for (const struct asset *a = assets; a->name; a++)
        if (!strcmp(a->name, name))
            return a;
    return NULL;
}

struct headers {
    struct guard guard;
    const char *expect, *authorization, *cookie, *type, *encoding;
    bool odd_name;
};

/* libmicrohttpd takes "Content-Length : 2" for a header of that name, space
 * included, and the body for the next request. */
static bool is_token(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789!#$%&'*+-.^_`|~");
    return n && !s[n];
}

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind,
                                  const char *name, const char *value)
{
    struct headers *h = cls;
    if (!value)
        value = "";
    if (!is_token(name)) {
        h->odd_name = true;
    } else if (!strcasecmp(name, "Host")) {
        h->guard.hosts++;
        h->guard.host = value;
    } else if (!strcasecmp(name, "Content-Length")) {
        h->guard.lengths++;
        h->guard.length = value;
    } else if (!strcasecmp(name, "Transfer-Encoding")) {
        h->guard.codings++;
        h->guard.coding = value;
    } else if (!strcasecmp(name, "Origin")) {
        h->guard.origin = value;
    } else if (!strcasecmp(name, "Sec-Fetch-Site")) {
        h->guard.fetch_site = value;
    } else if (!strcasecmp(name, "Authorization")) {
        h->guard.authorizations++;
        h->authorization = value;
    } else if (!strcasecmp(name, "Expect")) {
        h->expect = value;
    } else if (!strcasecmp(name, "Cookie")) {
        h->cookie = value;
    } else if (!strcasecmp(name, "Content-Type")) {
        h->type = value;
    } else if (!strcasecmp(name, "Content-Encoding")) {
        h->encoding = value;
    }
    return MHD_YES;
}

static bool cookie_known(struct conn *c, const char *cookie)
{
    const char *prefix = c->h->cookie;
    size_t len = strlen(prefix);
    for (const char *s = cookie; s && *s;) {
        s += strspn(s, " ;");
        size_t whole = strcspn(s, ";");
        if (!strncmp(s, prefix, len) && whole - len == 64) {
            char id[65];
            memcpy(id, s + len, 64);
            id[64] = '\0';
            if (session_known(c->h->server->sessions, id, server_wall_ms()))
                return true;
        }
        s += whole;
    }
    return false;
}

static int authorize(struct conn *c, const struct headers *in, struct err *err)
{
    if (in->authorization) {
        const char *s = in->authorization;
        if (!strncasecmp(s, "Bearer ", 7)) {
            s += 7 + strspn(s + 7, " ");
            if (secret_equal(s, c->h->server->token))
                return 0;
        }
        return err_set(err, ERR_UNAUTHORIZED,
                       "the token is not this server's: it lies in the state "
                       "folder's file 'token'");
    }
    if (cookie_known(c, in->cookie)) {
        c->req.by_cookie = true;
        return guard_origin(&in->guard, err);
    }
    return err_set(err, ERR_UNAUTHORIZED,
                   "send 'Authorization: Bearer TOKEN': the token lies in the "
                   "state folder's file 'token'");
}

static bool type_is(const char *type, const char *name)
{
    size_t len = strcspn(type, "; \t");
    return len == strlen(name) && !strncasecmp(type, name, len);
}

static int check_media(const struct conn *c, const struct headers *in,
                       struct err *err)
{
    if (in->encoding && strcasecmp(in->encoding, "identity"))
        return err_set(err, ERR_MEDIA,
                       "Content-Encoding '%.40s' is not supported yet: send "
                       "the bytes as they are",
                       in->encoding);
    if (!in->type || !*in->type)
        return 0;
    /* what curl --data-binary says when it is told nothing */
    if (type_is(in->type, "application/x-www-form-urlencoded"))
        return 0;
    if (c->route->flags & ROUTE_STREAM) {
        if (type_is(in->type, "application/x-ndjson"))
            return 0;
        return err_set(
            err, ERR_MEDIA,
            "a shard is application/x-ndjson or untyped, not '%.60s'",
            in->type);
    }
    if (c->route->flags & ROUTE_RAW)
        return 0;
    size_t len = strcspn(in->type, "; \t");
    if (len >= 4 && !strncasecmp(in->type + len - 4, "json", 4))
        return 0;
    return err_set(err, ERR_MEDIA, "send application/json, not '%.60s'",
                   in->type);
}

static bool is_workers(const char *path)
{
    return !strncmp(path, "/v1/leases", 10) || !strcmp(path, "/livez");
}

static void fresh_drop(struct conn *c)
{
    if (!c->fresh_at)
        return;
    *c->fresh_at = c->fresh_next;
    if (c->fresh_next)
        c->fresh_next->fresh_at = c->fresh_at;
    c->fresh_next = NULL;
    c->fresh_at = NULL;
}

/* Headers are read: refuse, or go on to the body. */
static enum MHD_Result conn_begin(struct conn *c, struct MHD_Connection *mhd,
                                  const char *method)
{
    struct httpd *h = c->h;
    struct err err;
    struct headers in = {0};
    char *segments[SEGMENTS_MAX];

    fresh_drop(c);
    snprintf(c->method, sizeof(c->method), "%s", method);
    c->head = !strcmp(method, "HEAD");
    c->req.method = c->method;
    c->req.conn = c;
    c->reply.req = &c->req;

    in.guard.method = c->method;
    in.guard.is_unix = c->listener->is_unix;
    MHD_get_connection_values(mhd, MHD_HEADER_KIND, see_header, &in);
    if (in.odd_name) {
        err_set(&err, ERR_INVALID, "the name of a header is malformed");
        return refuse(c, &err, 400, true);
    }
    if (guard_framing(&in.guard, &err) < 0)
        return refuse(c, &err, 400, true);
    c->chunked = in.guard.codings;
    c->declared = in.guard.lengths ? strtoll(in.guard.length, NULL, 10) : 0;
    c->has_body = c->chunked || c->declared > 0;
    c->expects = in.expect && !strcasecmp(in.expect, "100-continue");

    if (!c->uri || !(c->decoded = strdup(c->uri)) ||
        !(c->path = strdup(c->uri)))
        return MHD_NO;
    c->path[strcspn(c->path, "?")] = '\0';
    c->req.path = c->path;
    if ((atomic_load(&h->connections) > CONNECTION_BUSY &&
         !is_workers(c->path))) {
        err_set(&err, ERR_BUSY, "%d connections are open: no more are taken",
                CONNECTION_BUSY);
        return refuse(c, &err, 503, false);
    }
    if (guard_host(&in.guard, &h->guard_names, &err) < 0)
        return refuse(c, &err, reply_status_of(err.code),
                      err.code == ERR_INVALID);

    int n = conn_split(c, segments, &err);
    if (n < 0)
        return refuse(c, &err, reply_status_of(err.code), false);
    int found = route_find(c, segments, n);
    if (!found) {
        const struct asset *asset = asset_find(segments, n);
        if (asset && guard_is_safe_method(c->method) && !c->has_body) {
            c->asset = asset;
            c->state = CONN_ANSWER;
            return MHD_YES;
        }
        if (asset) {
            err_set(&err, ERR_INVALID, "%s can only be read", c->path);
            return refuse(c, &err, 405, false);
        }
    }
    bool open = found && c->route->role == ROLE_NONE;
    if (open ? guard_origin(&in.guard, &err) < 0 : authorize(c, &in, &err) < 0)
        return refuse(c, &err, reply_status_of(err.code), false);
    if (!found) {
        err_set(&err, ERR_NOT_FOUND, "there is no path %.200s", c->path);
        return refuse(c, &err, 404, false);
    }
    if (found < 0) {
        err_set(&err, ERR_INVALID, "%s does not take %s", c->route->path,
                c->method);
        return refuse(c, &err, 405, false);
    }
    if (c->has_body) {
        if (check_media(c, &in, &err) < 0)
            return refuse(c, &err, 415, false);
        if (c->declared > 0 && (uint64_t)c->declared > c->route->body_max) {
            err_set(&err, ERR_TOO_LARGE,
                    "a body of %" PRId64 " bytes is over the limit of %zu",
                    c->declared, c->route->body_max);
            return refuse(c, &err, 413, false);
        }
    }
    c->state = CONN_BODY;
    return MHD_YES;
}

/* Bytes of the body came. */
static enum MHD_Result conn_body(struct conn *c, const char *data, size_t *size)
{
    struct err err;
    size_t take = *size;
    if ((uint64_t)c->received + take > c->route->body_max) {
        err_set(&err, ERR_TOO_LARGE, "the body is over the limit of %zu bytes",
                c->route->body_max);
        reply_problem(&c->reply, &err, 413);
        *size = 0;
        return refuse_now(c);
    }
    bool stream = c->route->flags & ROUTE_STREAM;
    if (stream && c->req.body.len + take > WIRE_BLOCK_BYTES)
        take = WIRE_BLOCK_BYTES - c->req.body.len;
    if (buf_add(&c->req.body, data, take) < 0) {
        err_set(&err, ERR_NOMEM, "no memory for the body");
        reply_problem(&c->reply, &err, 500);
        *size = 0;
        return refuse_now(c);
    }
    c->received += (int64_t)take;
    *size -= take;
    if (stream && c->req.body.len == WIRE_BLOCK_BYTES) {
        c->state = CONN_RUNNING;
        if (!conn_suspend(c))
            return MHD_NO;
        conn_run(c, STAGE_BLOCK, LANE_READ);
    }
    return MHD_YES;
}

/* The request is whole: off to its lane. */
static enum MHD_Result conn_dispatch(struct conn *c)
{
    const struct route *route = c->route;
    struct err err;
    bool prepare =
        route->prepare || (route->flags & ROUTE_STREAM) ||
        (!(route->flags & ROUTE_RAW) && c->req.body.len > PARSE_HERE);
    if (!prepare && conn_parse(c, &err) < 0) {
        reply_problem(&c->reply, &err, reply_status_of(err.code));
        return conn_answer(c, false);
    }
    c->state = CONN_RUNNING;
    if (!conn_suspend(c)) {
        problem_answer(c, ERR_BUSY, "the server is stopping");
        return conn_answer(c, true);
    }
    if (prepare)
        conn_run(c, STAGE_PREPARE, LANE_READ);
    else
        conn_run(c, STAGE_HANDLE, route->lane);
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd,
                                  const char *url, const char *method,
                                  const char *version, const char *data,
                                  size_t *size, void **con_cls)
{
    struct conn *c = *con_cls;
    if (!c)
        return MHD_NO;
    switch (c->state) {
    case CONN_NEW:
        return conn_begin(c, mhd, method);
    case CONN_BODY:
        return *size ? conn_body(c, data, size) : conn_dispatch(c);
    case CONN_DISCARD:
        if (*size) {
            *size = 0;
            return MHD_YES;
        }
        return conn_answer(c, false);
    case CONN_DRAIN:
        c->received += (int64_t)*size;
        if (!*size || c->received > DRAIN_MAX ||
            server_mono_ms() > c->drain_until_ms)
            return MHD_NO;
        *size = 0;
        return MHD_YES;
    case CONN_FAILED:
        reply_problem(&c->reply, &c->err, reply_status_of(c->err.code));
        if (!*size)
            return conn_answer(c, false);
        *size = 0;
        return refuse_now(c);
    case CONN_ANSWER:
        return conn_answer(c, false);
    case CONN_RUNNING:
    case CONN_SENDING:
        return MHD_YES;
    case CONN_GONE:
        return MHD_NO;
    }
    return MHD_NO;
}

/* The request line as it came: the only place where it is not yet decoded. */
static void *on_uri(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    struct listener *l = cls;
    struct conn *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->h = l->h;
    c->listener = l;
    c->mhd = mhd;
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)
                ->connect_fd;
    c->uri = strdup(uri);
    c->fresh_next = l->fresh;
    c->fresh_at = &l->fresh;
    if (l->fresh)
        l->fresh->fresh_at = &c->fresh_next;
    l->fresh = c;
    atomic_fetch_add(&l->h->active, 1);
    return c;
}

/* libmicrohttpd answers a malformed Content-Length itself, with two heads in a
 * row (0.9.75), and tells nobody but its log which request that was. Any whose
 * length is malformed gets our answer first; theirs then finds the socket shut.
 */
static void on_log(void *cls, const char *format, va_list ap)
{
    struct listener *l = cls;
    for (struct conn *c = l->fresh, *next; c; c = next) {
        struct headers in = {0};
        struct err err;
        next = c->fresh_next;
        in.guard.method = "";
        MHD_get_connection_values(c->mhd, MHD_HEADER_KIND, see_header, &in);
        if (!in.guard.lengths || guard_framing(&in.guard, &err) == 0)
            continue;
        fresh_drop(c);
        c->reply.req = &c->req;
        c->req.conn = c;
        refuse(c, &err, 400, true);
    }
}

static size_t keep_escapes(void *cls, struct MHD_Connection *mhd, char *s)
{
    return strlen(s);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                         enum MHD_RequestTerminationCode how)
{
    struct conn *c = *con_cls;
    if (!c)
        return;
    *con_cls = NULL;
    fresh_drop(c);
    reply_clear(&c->reply);
    upload_free(c->req.upload);
    if (c->req.prepared && c->req.prepared_free)
        c->req.prepared_free(c->req.prepared);
    json_decref(c->req.json);
    buf_release(&c->req.body);
    buf_release(&c->window);
    for (int i = 0; i < PARAMS_MAX; i++)
        free(c->params[i].name);
    free(c->uri);
    free(c->decoded);
    free(c->path);
    atomic_fetch_sub(&c->h->active, 1);
    free(c);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **sock,
                          enum MHD_ConnectionNotificationCode what)
{
    struct listener *l = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        atomic_fetch_add(&l->h->connections, 1);
    else
        atomic_fetch_sub(&l->h->connections, 1);
}

/* ---- sockets ---- */

static int listen_unix(struct listener *l, struct err *err)
{
    const char *path = l->address->unix_path;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a.sun_path))
        return err_set(err, ERR_INVALID, "the socket path %s is too long",
                       path);
    strcpy(a.sun_path, path);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return err_set(err, ERR_IO, "cannot make a socket: %s",
                       strerror(errno));
    /* a socket that nobody answers is left over from a killed server */
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        AUTO_FD int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(probe, (struct sockaddr *)&a, sizeof(a)) < 0 &&
            errno == ECONNREFUSED)
            unlink(path);
    }
    mode_t old = umask(0177);
    int r = bind(l->fd, (struct sockaddr *)&a, sizeof(a));
    int e = errno;
    umask(old);
    if (r < 0 || listen(l->fd, 128) < 0)
        return err_set(err, ERR_IO, "cannot listen on unix:%s: %s", path,
                       strerror(r < 0 ? e : errno));
    l->is_unix = true;
    snprintf(l->name, sizeof(l->name), "unix:%s", path);
    return 0;
}

static int listen_tcp(struct listener *l, struct err *err)
{
    const struct listen_address *in = l->address;
    struct sockaddr_in a4 = {.sin_family = AF_INET,
                             .sin_port = htons(in->port)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6,
                              .sin6_port = htons(in->port)};
    bool six = strchr(in->host, ':');
    inet_pton(six ? AF_INET6 : AF_INET, in->host,
              six ? (void *)&a6.sin6_addr : (void *)&a4.sin_addr);
    struct sockaddr *a = six ? (struct sockaddr *)&a6 : (struct sockaddr *)&a4;
    socklen_t len = six ? sizeof(a6) : sizeof(a4);
    int on = 1;

    l->fd = socket(six ? AF_INET6 : AF_INET,
                   SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return err_set(err, ERR_IO, "cannot make a socket: %s",
                       strerror(errno));
    setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (six)
        setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    if (bind(l->fd, a, len) < 0 || listen(l->fd, 511) < 0)
        return err_set(err, ERR_IO, "cannot listen on %s: %s", in->text,
                       strerror(errno));
    if (getsockname(l->fd, a, &len) < 0)
        return err_set(err, ERR_IO, "cannot name the socket: %s",
                       strerror(errno));
    unsigned port = ntohs(six ? a6.sin6_port : a4.sin_port);
    /* a wildcard is no address to connect to */
    const char *host = in->host;
    if (!strcmp(host, "0.0.0.0"))
        host = "127.0.0.1";
    if (!strcmp(host, "::"))
        host = "::1";
    snprintf(l->name, sizeof(l->name), six ? "http://[%s]:%u" : "http://%s:%u",
             host, port);
    return 0;
}

int httpd_new(struct server *s, struct httpd **ret, struct err *err)
{
    const struct options *o = &s->options;
    struct httpd *h = calloc(1, sizeof(*h));
    if (!h)
        return err_set(err, ERR_NOMEM, "no memory for the HTTP server");
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->wake, &attr);
    pthread_condattr_destroy(&attr);
    h->server = s;
    snprintf(h->cookie, sizeof(h->cookie), "pawl_%s=", s->instance);
    h->listeners = calloc(o->n_listen, sizeof(*h->listeners));
    h->names = calloc(o->n_listen + o->n_hosts, sizeof(*h->names));
    if (!h->listeners || !h->names) {
        httpd_free(h);
        return err_set(err, ERR_NOMEM, "no memory for the HTTP server");
    }
    for (size_t i = 0; i < o->n_listen; i++) {
        struct listener *l = &h->listeners[h->n_listeners++];
        l->h = h;
        l->fd = -1;
        l->address = &o->listen[i];
        int r =
            l->address->unix_path ? listen_unix(l, err) : listen_tcp(l, err);
        if (r < 0) {
            httpd_free(h);
            return r;
        }
        if (l->is_unix)
            continue;
        if (!strcmp(l->address->host, "0.0.0.0") ||
            !strcmp(l->address->host, "::"))
            h->guard_names.any_address = true;
        h->names[h->guard_names.n++] = l->address->host;
    }
    for (size_t i = 0; i < o->n_hosts; i++)
        h->names[h->guard_names.n++] = o->hosts[i];
    h->guard_names.names = h->names;
    *ret = h;
    return 0;
}

const char *httpd_url(const struct httpd *h)
{
    for (size_t i = 0; i < h->n_listeners; i++)
        if (!h->listeners[i].is_unix)
            return h->listeners[i].name;
    return "http://localhost";
}

const char *httpd_listening(const struct httpd *h, size_t i)
{
    return i < h->n_listeners ? h->listeners[i].name : NULL;
}

const char *httpd_socket(const struct httpd *h)
{
    for (size_t i = 0; i < h->n_listeners; i++)
        if (h->listeners[i].is_unix)
            return h->listeners[i].address->unix_path;
    return NULL;
}

int httpd_connections(const struct httpd *h, int *ret_limit)
{
    *ret_limit = CONNECTION_BUSY;
    return atomic_load(&h->connections);
}

int httpd_start(struct httpd *h, struct err *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 8192) {
        files.rlim_cur = files.rlim_max < 8192 ? files.rlim_max : 8192;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    lanes_on_notice(h->server->lanes, on_notice, h);
    if (pthread_create(&h->timer, NULL, timer_main, h))
        return err_set(err, ERR_NOMEM, "cannot start the timer's thread");
    h->timer_started = true;
    for (size_t i = 0; i < h->n_listeners; i++) {
        struct listener *l = &h->listeners[i];
        l->daemon = MHD_start_daemon(
            MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                MHD_USE_ERROR_LOG,
            0, NULL, NULL, on_request, l, MHD_OPTION_EXTERNAL_LOGGER, on_log, l,
            MHD_OPTION_LISTEN_SOCKET, l->fd, MHD_OPTION_URI_LOG_CALLBACK,
            on_uri, l, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL,
            MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
            MHD_OPTION_NOTIFY_CONNECTION, on_connection, l,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTION_LIMIT,
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
            MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_END);
        if (!l->daemon)
            return err_set(err, ERR_IO, "cannot serve %s", l->name);
        l->fd = -1; /* the daemon's now */
    }
    return 0;
}

static int64_t plain_mono_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void httpd_stop(struct httpd *h)
{
    for (size_t i = 0; i < h->n_listeners; i++) {
        struct listener *l = &h->listeners[i];
        if (l->daemon)
            l->fd = MHD_quiesce_daemon(l->daemon);
        if (l->fd >= 0)
            close(l->fd);
        l->fd = -1;
        if (l->is_unix)
            unlink(l->address->unix_path);
    }
    pthread_mutex_lock(&h->mutex);
    h->flushing = true;
    pthread_mutex_unlock(&h->mutex);
    httpd_wake(h, 0, 0, false);

    /* let answers under way leave, slow downloads excepted */
    int64_t until = plain_mono_ms() + STOP_MS;
    while (atomic_load(&h->active) > 0 && plain_mono_ms() < until) {
        struct timespec nap = {.tv_nsec = 5000000};
        nanosleep(&nap, NULL);
    }
    pthread_mutex_lock(&h->mutex);
    h->closing = true;
    while (h->suspended > 0)
        pthread_cond_wait(&h->wake, &h->mutex);
    h->timer_stop = true;
    pthread_cond_broadcast(&h->wake);
    pthread_mutex_unlock(&h->mutex);
    if (h->timer_started)
        pthread_join(h->timer, NULL);
    h->timer_started = false;
    for (size_t i = 0; i < h->n_listeners; i++) {
        if (h->listeners[i].daemon)
            MHD_stop_daemon(h->listeners[i].daemon);
        h->listeners[i].daemon = NULL;
    }
    lanes_on_notice(h->server->lanes, NULL, NULL);
}

void httpd_free(struct httpd *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->n_listeners; i++) {
        struct listener *l = &h->listeners[i];
        if (l->fd < 0)
            continue;
        close(l->fd);
        if (l->is_unix)
            unlink(l->address->unix_path);
    }
    pthread_mutex_destroy(&h->mutex);
    pthread_cond_destroy(&h->wake);
    free(h->listeners);
    free(h->names);
    free(h);
}
