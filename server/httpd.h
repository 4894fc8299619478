/* httpd.h - HTTP in, handlers out. (conn.h names the files behind this.)
 *
 * One event thread reads requests: it guards (framing, Host, size, token),
 * finds the route, parses a JSON body, and gives the request to the route's
 * lane. A handler is parse, call the noun, reply; it runs on its lane's thread
 * with that lane's database connection:
 *
 *   READ    a few threads, read-only connections
 *   WRITE   one thread, pawl.db. Requests that queued up together share one
 *           commit; each has its own savepoint, rolled back when the handler
 *           fails. The answer leaves after the commit.
 *   CHUNK   one thread, checkpoints.db
 *   BULK    two threads, read-only connections: uploads and digests
 *
 * CHUNK and BULK take what processor the others leave, so that a large save
 * delays no claim. A route's `prepare`, if any, runs on a READ thread (BULK: for
 * the CHUNK lane and for uploads) before the handler: costly checks that need no
 * write (parse a spec, verify chunks). What it makes goes into req->prepared. A
 * prepare that replies is the end of it. A `begin` runs before the body comes and
 * can refuse it.
 * A handler that has nothing to say yet calls reply_wait: the request is parked
 * and the handler runs again when something it named has changed or its time
 * has come; so it must not note (store_notify) what it waits for. A client that
 * hangs up meanwhile is forgotten. Errors become problem+json here, once. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"
#include "server/request.h"
#include "server/store.h"

enum lane { LANE_READ, LANE_WRITE, LANE_CHUNK, LANE_BULK };
enum role { ROLE_NONE, ROLE_ANY }; /* ROLE_NONE: no token needed */

struct server; /* options, folders, supervisor: server.h */

struct ctx {
    struct store *st;     /* this lane's connection to pawl.db (CHUNK: to
                           * checkpoints.db) */
    struct store *chunks; /* a read-only connection to checkpoints.db */
    struct server *server;
    int64_t now_ms;  /* wall clock, for what people read */
    int64_t mono_ms; /* CLOCK_MONOTONIC, for expiry */
};

struct reply; /* what to answer; made by httpd.c, filled by one of these */

/* JSON, or what req_as says (text: aligned columns or `key  value` lines).
 * Takes the reference. */
int reply_json(struct reply *ret, int status, json_t *body);
int reply_empty(struct reply *ret, int status);
/* Takes the buffer's memory. */
int reply_bytes(struct reply *ret, int status, const char *type, struct buf *b);
/* Parts laid end to end, with ETag, Range, If-None-Match and HEAD handled
 * here. `read` copies up to `len` bytes at `offset` into `out` on a READ thread
 * and returns how many, or < 0. Takes `source`, freed by `done`. */
typedef int64_t reply_read_fn(struct ctx *ctx, void *source, int64_t offset,
                              char *out, size_t len, struct err *err);
int reply_body(struct reply *ret, const char *type, const char *etag,
               const char *filename, int64_t bytes, reply_read_fn *read,
               void *source, void (*done)(void *));
/* A stream without a length: `next` runs on a READ thread whenever one of
 * `notices` happened or a second passed, appends to *out, and returns 1 to go
 * on or 0 to end. */
typedef int reply_next_fn(struct ctx *ctx, void *source, struct buf *out,
                          struct err *err);
int reply_stream(struct reply *ret, const char *type, unsigned notices,
                 reply_next_fn *next, void *source, void (*done)(void *));
/* The stream means nothing without its end: cut short, by a stop of the server
 * for instance, it breaks off in a way that the client sees. */
int reply_whole(struct reply *ret);
/* Run this handler again after one of `notices`, or at until_ms (mono). */
int reply_wait(struct reply *ret, unsigned notices, int64_t until_ms);
void reply_header(struct reply *ret, const char *name, const char *value);

typedef int handler_fn(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err);

struct route {
    const char *method, *path;
    size_t body_max;
    enum lane lane;
    enum role role;
    handler_fn *handler, *prepare;
    unsigned flags;
    const char *query; /* its parameters beside ?as=, blanks between; or NULL */
    handler_fn *begin; /* READ, before the body is asked for; only refuses */
};
enum route_flags {
    ROUTE_RAW = 1,    /* the body is bytes, not JSON */
    ROUTE_STREAM = 2, /* the body goes to disk as it comes: upload.h */
};
extern const struct route routes[]; /* routes.c; ends with method NULL */

/* ---- for main.c ---- */
struct httpd;
/* Open the sockets: from here on clients can connect, and wait. */
int httpd_new(struct server *s, struct httpd **ret, struct err *err);
/* Base URL of the first TCP address, else "http://localhost". */
const char *httpd_url(const struct httpd *h);
/* Where socket i listens, in words ("http://127.0.0.1:7295", "unix:/run/p"). */
const char *httpd_listening(const struct httpd *h, size_t i);
/* Path of the first Unix socket, or NULL. */
const char *httpd_socket(const struct httpd *h);
int httpd_start(struct httpd *h, struct err *err);
/* What a handler waits for may have changed; any thread. */
void httpd_notice(struct httpd *h, unsigned bits);
/* Answer what waits and what is under way, then close. The lanes still run. */
void httpd_stop(struct httpd *h);
void httpd_free(struct httpd *h);
/* Open connections, and the number from which on new ones get 503. */
int httpd_connections(const struct httpd *h, int *ret_limit);
const char *httpd_library(void); /* libmicrohttpd's version */
