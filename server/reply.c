#include "server/reply.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "server/text.h"

void reply_clear(struct reply *r)
{
    const struct request *req = r->req;
    if (r->done)
        r->done(r->source);
    for (int i = 0; i < r->n_headers; i++) {
        free(r->headers[i].name);
        free(r->headers[i].value);
    }
    buf_release(&r->bytes);
    free(r->etag);
    free(r->filename);
    memset(r, 0, sizeof(*r));
    r->req = req;
}

int reply_json(struct reply *ret, int status, json_t *body)
{
    AUTO_JSON json_t *owned = body;
    enum as as = ret->req ? req_as(ret->req) : AS_JSON;
    ret->kind = REPLY_BYTES;
    ret->status = status;
    buf_clear(&ret->bytes);
    if (as == AS_CSV) {
        int r = text_csv(owned, &ret->bytes);
        if (r < 0)
            return ERR_NOMEM;
        if (r == 0) {
            strcpy(ret->type, "text/csv; charset=utf-8");
            return 0;
        }
        buf_clear(&ret->bytes);
    }
    if (as == AS_TEXT) {
        strcpy(ret->type, "text/plain; charset=utf-8");
        return text_render(owned, &ret->bytes) < 0 ? ERR_NOMEM : 0;
    }
    if (json_text(owned, &ret->bytes) < 0 || buf_add(&ret->bytes, "\n", 1) < 0)
        return ERR_NOMEM;
    strcpy(ret->type, "application/json");
    return 0;
}

int reply_empty(struct reply *ret, int status)
{
    ret->kind = REPLY_BYTES;
    ret->status = status;
    ret->type[0] = '\0';
    buf_clear(&ret->bytes);
    return 0;
}

int reply_bytes(struct reply *ret, int status, const char *type, struct buf *b)
{
    ret->kind = REPLY_BYTES;
    ret->status = status;
    snprintf(ret->type, sizeof(ret->type), "%s", type);
    buf_release(&ret->bytes);
    ret->bytes = *b;
    memset(b, 0, sizeof(*b));
    return 0;
}

int reply_body(struct reply *ret, const char *type, const char *etag,
               const char *filename, int64_t bytes, reply_read_fn *read,
               void *source, void (*done)(void *))
{
    ret->kind = REPLY_BODY;
    ret->status = 200;
    snprintf(ret->type, sizeof(ret->type), "%s", type);
    ret->length = bytes;
    ret->read = read;
    ret->source = source;
    ret->done = done;
    if (etag) {
        size_t cap = strlen(etag) + 3;
        ret->etag = malloc(cap);
        if (!ret->etag)
            return ERR_NOMEM;
        snprintf(ret->etag, cap, *etag == '"' ? "%s" : "\"%s\"", etag);
    }
    if (filename && !(ret->filename = strdup(filename)))
        return ERR_NOMEM;
    return 0;
}

int reply_stream(struct reply *ret, const char *type, unsigned notices,
                 reply_next_fn *next, void *source, void (*done)(void *))
{
    ret->kind = REPLY_STREAM;
    ret->status = 200;
    snprintf(ret->type, sizeof(ret->type), "%s", type);
    ret->notices = notices;
    ret->next = next;
    ret->source = source;
    ret->done = done;
    return 0;
}

int reply_whole(struct reply *ret)
{
    ret->whole = true;
    return 0;
}

int reply_wait(struct reply *ret, unsigned notices, int64_t until_ms)
{
    ret->kind = REPLY_WAIT;
    ret->notices = notices;
    ret->until_ms = until_ms;
    return 0;
}

void reply_header(struct reply *ret, const char *name, const char *value)
{
    if (ret->n_headers == REPLY_HEADERS)
        return;
    char *n = strdup(name), *v = strdup(value);
    if (!n || !v) {
        free(n);
        free(v);
        return;
    }
    /* a value from outside must not begin a header of its own */
    for (char *s = v; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = ' ';
    ret->headers[ret->n_headers].name = n;
    ret->headers[ret->n_headers++].value = v;
}

int reply_status_of(int code)
{
    switch (code) {
    case ERR_INVALID:
    case ERR_DATA:
        return 400;
    case ERR_UNAUTHORIZED:
        return 401;
    case ERR_FORBIDDEN:
        return 403;
    case ERR_NOT_FOUND:
        return 404;
    case ERR_CONFLICT:
    case ERR_STALE:
        return 409;
    case ERR_PRECONDITION:
        return 412;
    case ERR_TOO_LARGE:
        return 413;
    case ERR_MEDIA:
        return 415;
    case ERR_RANGE:
        return 416;
    case ERR_MISMATCH:
        return 422;
    case ERR_BUSY:
        return 503;
    case ERR_NOSPACE:
        return 507;
    default:
        return 500;
    }
}

const char *reply_title(int status)
{
    switch (status) {
    case 400:
        return "Bad request";
    case 401:
        return "Not logged in";
    case 403:
        return "Forbidden";
    case 404:
        return "Not found";
    case 405:
        return "Method not allowed";
    case 409:
        return "Conflict";
    case 412:
        return "Precondition failed";
    case 413:
        return "Too large";
    case 415:
        return "Unsupported media type";
    case 416:
        return "Range not satisfiable";
    case 422:
        return "Key used before";
    case 503:
        return "Try again later";
    case 507:
        return "Disk full";
    default:
        return "Server error";
    }
}

int reply_problem(struct reply *ret, const struct err *err, int status)
{
    const char *title = reply_title(status);
    AUTO_JSON json_t *o =
        json_pack("{s:i, s:s, s:s, s:s}", "status", status, "title", title,
                  "detail", err->text[0] ? err->text : title, "code",
                  status == 405 ? "method" : err_word(err->code));
    if (!o) /* the sentence was no UTF-8: it quoted bytes from outside */
        o = json_pack("{s:i, s:s, s:s}", "status", status, "title", title,
                      "detail", title);
    if (!o)
        return ERR_NOMEM;
    if (err->pointer[0])
        json_object_set_new(o, err->pointer[0] == '/' ? "pointer" : "parameter",
                            json_string(err->pointer));
    if (err->shard[0])
        json_object_set_new(o, "shard", json_string(err->shard));
    if (err->line > 0) {
        json_object_set_new(o, "line", json_integer(err->line));
        json_object_set_new(o, "offset", json_integer(err->offset));
    } else if (err->shard[0]) {
        json_object_set_new(o, "offset", json_integer(err->offset));
    }
    if (err->field[0])
        json_object_set_new(o, "field", json_string(err->field));
    if (err->missing_bytes > 0)
        json_object_set_new(o, "missing_bytes",
                            json_integer(err->missing_bytes));
    reply_clear(ret);
    AUTO_FREE char *s = json_dumps(o, JSON_COMPACT);
    if (!s || buf_adds(&ret->bytes, s) < 0 || buf_add(&ret->bytes, "\n", 1) < 0)
        return ERR_NOMEM;
    ret->kind = REPLY_BYTES;
    ret->status = status;
    strcpy(ret->type, "application/problem+json");
    if (status == 401)
        reply_header(ret, "WWW-Authenticate", "Bearer");
    if (status == 503)
        reply_header(ret, "Retry-After", "1");
    if (ret->req && ret->req->says_offset) {
        char offset[24];
        snprintf(offset, sizeof(offset), "%" PRId64, ret->req->upload_offset);
        reply_header(ret, "Upload-Offset", offset);
    }
    return 0;
}

static bool parse_digits(const char **s, int64_t *ret)
{
    size_t n = strspn(*s, "0123456789");
    if (!n || n > 18)
        return false;
    *ret = strtoll(*s, NULL, 10);
    *s += n;
    return true;
}

int range_parse(const char *header, int64_t length, int64_t *first,
                int64_t *count)
{
    if (!header || strncasecmp(header, "bytes=", 6) || strchr(header, ','))
        return 0;
    const char *s = header + 6;
    int64_t a, b;
    while (*s == ' ')
        s++;
    if (*s == '-') {
        s++;
        if (!parse_digits(&s, &b) || *s)
            return 0;
        if (!b || !length)
            return ERR_RANGE;
        a = b < length ? length - b : 0;
        b = length - 1;
    } else {
        if (!parse_digits(&s, &a) || *s++ != '-')
            return 0;
        if (!*s)
            b = length - 1;
        else if (!parse_digits(&s, &b) || *s || b < a)
            return 0;
        if (a >= length)
            return ERR_RANGE;
        if (b >= length)
            b = length - 1;
    }
    *first = a;
    *count = b - a + 1;
    return 1;
}

bool etag_matches(const char *header, const char *etag)
{
    if (!header || !etag)
        return false;
    size_t len = strlen(etag);
    for (const char *s = header; *s;) {
        s += strspn(s, " \t,");
        if (*s == '*')
            return true;
        if (!strncmp(s, "W/", 2))
            s += 2;
        if (!strncmp(s, etag, len) && (!s[len] || strchr(", \t", s[len])))
            return true;
        s += strcspn(s, ",");
    }
    return false;
}

enum as accept_parse(const char *header)
{
    enum as best = AS_JSON;
    double best_q = 0;
    for (const char *s = header ? header : ""; *s;) {
        s += strspn(s, " \t,");
        size_t len = strcspn(s, ",;");
        const char *params = s + len;
        while (len && isspace((unsigned char)s[len - 1]))
            len--;
        size_t whole = strcspn(s, ",");
        double q = 1;
        for (const char *p = params; p && p < s + whole;) {
            p += strspn(p, "; \t");
            if ((*p == 'q' || *p == 'Q') && p[1] == '=') {
                q = strtod(p + 2, NULL);
                break;
            }
            size_t skip = strcspn(p, ";,");
            p = p[skip] == ';' ? p + skip : NULL;
        }
        int as = -1;
        if (len == 10 && !strncasecmp(s, "text/plain", len))
            as = AS_TEXT;
        else if (len == 8 && !strncasecmp(s, "text/csv", len))
            as = AS_CSV;
        else if ((len == 16 && !strncasecmp(s, "application/json", len)) ||
                 (len == 3 && !strncmp(s, "*/*", len)) ||
                 (len == 9 && !strncasecmp(s, "text/html", len)))
            as = AS_JSON;
        if (as >= 0 && q > best_q) {
            best_q = q;
            best = (enum as)as;
        }
        s += whole;
    }
    return best;
}
