#include "server/request.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "server/conn.h"

/* ---- path and query ---- */

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

int conn_split(struct conn *c, char *segments[SEGMENTS_MAX], struct err *err)
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

int route_find(struct conn *c, char **segments, int n)
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

/* Is `name` one of the words of `list`? */
static bool in_list(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *s = list; s && *s; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        if (n == len && !memcmp(s, name, n))
            return true;
        s += n;
    }
    return false;
}

int query_check(const struct conn *c, struct err *err)
{
    const char *known = c->route->query;
    for (int i = 0; i < c->n_query; i++) {
        const char *name = c->query[i].name, *value = c->query[i].value;
        if (strcmp(name, "as") && !in_list(known, name))
            return err_at(err, ERR_INVALID, name,
                          "there is no query parameter '%.60s' here (known: "
                          "as%s%s)",
                          name, known ? " " : "", known ? known : "");
        for (int k = 0; k < i; k++)
            if (!strcmp(name, c->query[k].name))
                return err_at(err, ERR_INVALID, name,
                              "query parameter '%s' is repeated", name);
        if (!strcmp(name, "as") && !in_list("json text csv", value))
            return err_at(err, ERR_INVALID, name,
                          "query parameter 'as' is json, text or csv");
    }
    return 0;
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
