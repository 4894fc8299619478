/* request.h - what a client asks: path, query, headers, body.
 *
 * Path and query are taken apart before they are decoded, and decoded once: a
 * "%2F" makes no segment, and a path parameter that holds a slash, a control
 * character or is a dot segment names nothing, so no handler has to think of
 * it. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"

struct ctx;    /* httpd.h */
struct upload; /* a streamed body on its way to disk: upload.h */

struct request {
    const char *method, *path;
    json_t *json;    /* the parsed body, or NULL when there was none */
    struct buf body; /* raw, for routes that are not JSON */
    /* for streamed routes: begun by `begin`; complete, not yet published, when
     * the handler runs */
    struct upload *upload;
    int64_t upload_offset; /* a refusal says so many bytes came, if it is */
    bool says_offset;      /* set */
    void *prepared;
    void (*prepared_free)(void *);
    bool last_wait; /* the long poll's time is up: answer now */
    bool by_cookie; /* the page, not a script */
    void *conn;     /* httpd.c's own */
};

/* Path parameter by its name in the route, decoded once; never NULL. */
const char *req_param(const struct request *req, const char *name);
/* A path parameter that must be an id: ERR_NOT_FOUND when it is not one. */
int req_id(const struct request *req, const char *name, int64_t *ret,
           struct err *err);
/* Query parameter, decoded, or NULL. An integer one in a range, with default;
 * ERR_INVALID naming it. */
const char *req_query(const struct request *req, const char *name);
int req_query_int(const struct request *req, const char *name, int64_t min,
                  int64_t max, int64_t fallback, int64_t *ret, struct err *err);
const char *req_header(const struct request *req, const char *name);
/* What the client wants a JSON answer as: ?as= before Accept. */
enum as { AS_JSON, AS_TEXT, AS_CSV };
enum as req_as(const struct request *req);
/* Deadline (mono_ms) of ?wait= or a body's "wait", counted from the first run
 * of the handler, so that re-runs do not extend it. */
int64_t req_deadline(struct request *req, const struct ctx *ctx,
                     int64_t wait_s);
