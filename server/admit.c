/* admit.c - headers are read: who asks, for what, and is there any reason to
 * refuse it before its body comes?
 *
 * In this order: framing (nobody may read these bytes as another request than
 * we do), too many connections, Host, the shape of the path, a page file, the
 * token or the cookie, path and method, query, media type, size. So whoever
 * has no token learns nothing but that one is needed. The looks at single
 * headers that need no connection stand in guard.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "server/assets.h"
#include "server/conn.h"
#include "server/server.h"
#include "server/session.h"

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
    if (in->encoding && strcasecmp(in->encoding, "identity") &&
        !(c->route->flags & ROUTE_STREAM))
        return err_set(err, ERR_MEDIA,
                       "a body of Content-Encoding '%.40s' is taken by uploads "
                       "alone: send the bytes as they are",
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

enum MHD_Result conn_admit(struct conn *c, struct MHD_Connection *mhd,
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
    if (query_check(c, &err) < 0)
        return refuse(c, &err, 400, false);
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
    if (c->route->begin) {
        /* this call is made once more when it has run, still before the body */
        c->state = CONN_RUNNING;
        if (!conn_suspend(c))
            return MHD_NO;
        conn_run(c, STAGE_BEGIN, LANE_READ);
        return MHD_YES;
    }
    c->state = CONN_BODY;
    return MHD_YES;
}

bool length_is_malformed(struct conn *c, struct err *err)
{
    struct headers in = {0};
    in.guard.method = "";
    MHD_get_connection_values(c->mhd, MHD_HEADER_KIND, see_header, &in);
    return in.guard.lengths && guard_framing(&in.guard, err) < 0;
}
