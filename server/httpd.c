#include "server/httpd.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "schema/wire.h"
#include "server/conn.h"
#include "server/listen.h"
#include "server/partial.h"
#include "server/server.h"
#include "server/upload.h"

#define CONNECTION_MEMORY (64 * KiB)
#define CONNECTION_LIMIT                                                       \
    4096 /* beyond it libmicrohttpd leaves clients hanging */
#define IDLE_S 60
/* Of a body refused and answered so much is still read, so that the client can
 * finish writing and read the answer; then the connection is cut. */
#define DRAIN_MAX (64 * MiB)
#define PARSE_HERE (64 * KiB) /* larger JSON is parsed on a READ thread */
/* Buffers for bodies that are kept for the next ones. */
#define SPARE_MIN (256 * KiB)
#define SPARE_MAX (2 * MiB)
#define STOP_MS 5000 /* for answers under way when the server stops */

/* ---- a connection, from call to call ---- */

void fresh_drop(struct conn *c)
{
    if (!c->fresh_at)
        return;
    *c->fresh_at = c->fresh_next;
    if (c->fresh_next)
        c->fresh_next->fresh_at = c->fresh_at;
    c->fresh_next = NULL;
    c->fresh_at = NULL;
}

/* A chunk comes in dozens of pieces: it is not to be moved each time it grows,
 * nor to have its pages made anew. */
static void body_room(struct conn *c)
{
    struct listener *l = c->listener;
    size_t want = c->declared < WIRE_BLOCK_BYTES ? (size_t)c->declared
                                                 : (size_t)WIRE_BLOCK_BYTES;
    if (want >= SPARE_MIN && l->n_spare)
        c->req.body = l->spare[--l->n_spare];
    buf_reserve(&c->req.body, want); /* where it fails, buf_add will say so */
}

static void body_release(struct conn *c)
{
    struct listener *l = c->listener;
    struct buf *b = &c->req.body;
    if (b->cap < SPARE_MIN || b->cap > SPARE_MAX || l->n_spare == SPARES) {
        buf_release(b);
        return;
    }
    buf_clear(b);
    l->spare[l->n_spare++] = *b;
    *b = (struct buf){0};
}

/* libmicrohttpd (0.9.75) waits for epoll to tell of more after it got less than
 * it asked for, and is told once. Where the client had hung up by then, behind
 * bytes that were still to be read, it would hear of it after IDLE_S. */
static void look_for_end(const struct conn *c)
{
    char byte;
    if (!c->chunked && c->received >= c->declared)
        return;
    if (recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        shutdown(c->fd, SHUT_RD); /* it is told once more */
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
    if (!c->req.body.cap && c->declared > 0)
        body_room(c);
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
        conn_run(c, STAGE_BLOCK, LANE_BULK);
        return MHD_YES;
    }
    look_for_end(c);
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
        conn_run(c, STAGE_PREPARE,
                 route->lane == LANE_CHUNK || route->flags & ROUTE_STREAM
                     ? LANE_BULK
                     : LANE_READ);
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
        return conn_admit(c, mhd, method);
    case CONN_BEGUN:
        if (c->err.code)
            return refuse(c, &c->err, reply_status_of(c->err.code), false);
        c->state = CONN_BODY;
        return *size ? conn_body(c, data, size) : MHD_YES;
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
        struct err err;
        next = c->fresh_next;
        if (!length_is_malformed(c, &err))
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

/* What came of an upload that broke off is kept; one that is stored goes. */
static void upload_leave(struct conn *c)
{
    struct partials *p = c->h->server->partials;
    if (!c->req.upload)
        return;
    const char *name = req_param(&c->req, "name");
    const char *shard = req_param(&c->req, "shard");
    if (!*shard) {
        upload_free(c->req.upload);
        return;
    }
    partials_keep(p, name, shard, c->req.upload, server_mono_ms());
    partials_end(p, name, shard);
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
    upload_leave(c);
    if (c->req.prepared && c->req.prepared_free)
        c->req.prepared_free(c->req.prepared);
    json_decref(c->req.json);
    body_release(c);
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

/* ---- the daemon ---- */

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
        l->is_unix = o->listen[i].unix_path;
        int r = listen_open(l->address, &l->fd, l->name, sizeof(l->name), err);
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

const char *httpd_library(void)
{
    return MHD_get_version();
}

int httpd_connections(const struct httpd *h, int *ret_limit)
{
    *ret_limit = CONNECTION_BUSY;
    return atomic_load(&h->connections);
}

static void on_notice(void *arg, unsigned bits)
{
    httpd_notice(arg, bits);
}

int httpd_start(struct httpd *h, struct err *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 8192) {
        files.rlim_cur = files.rlim_max < 8192 ? files.rlim_max : 8192;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    lanes_on_notice(h->server->lanes, on_notice, h);
    if (pthread_create(&h->timer, NULL, park_timer, h))
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
        while (l->n_spare)
            buf_release(&l->spare[--l->n_spare]);
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
