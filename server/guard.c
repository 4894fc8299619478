#include "server/guard.h"
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

int guard_framing(const struct guard *g, struct err *err)
{
    if (g->lengths > 1)
        return err_set(err, ERR_INVALID, "two Content-Length headers");
    if (g->codings > 1)
        return err_set(err, ERR_INVALID, "two Transfer-Encoding headers");
    if (g->lengths && g->codings)
        return err_set(err, ERR_INVALID,
                       "Content-Length together with Transfer-Encoding");
    if (g->hosts > 1)
        return err_set(err, ERR_INVALID, "two Host headers");
    if (g->authorizations > 1)
        return err_set(err, ERR_INVALID, "two Authorization headers");
    if (g->codings && strcasecmp(g->coding, "chunked"))
        return err_set(err, ERR_INVALID,
                       "Transfer-Encoding '%.40s' is not known: send "
                       "'chunked' or a Content-Length",
                       g->coding);
    if (g->lengths) {
        size_t n = strspn(g->length, "0123456789");
        if (!n || g->length[n] || n > 18)
            return err_set(err, ERR_INVALID,
                           "Content-Length '%.40s' is not a length", g->length);
    }
    return 0;
}

/* The name in a Host header, without port, brackets and a last dot. */
static bool host_name(const char *host, char *out, size_t cap)
{
    const char *begin = host, *end;
    if (*host == '[') {
        begin = host + 1;
        end = strchr(begin, ']');
        if (!end || (end[1] && end[1] != ':'))
            return false;
    } else {
        end = host + strcspn(host, ":");
    }
    if (*end && *end != ']') {
        const char *port = end + 1;
        if (strspn(port, "0123456789") != strlen(port))
            return false;
    }
    size_t len = (size_t)(end - begin);
    if (len && begin[len - 1] == '.')
        len--;
    if (!len || len >= cap)
        return false;
    memcpy(out, begin, len);
    out[len] = '\0';
    return true;
}

static bool is_address(const char *name)
{
    unsigned char bytes[16];
    return inet_pton(AF_INET, name, bytes) == 1 ||
           inet_pton(AF_INET6, name, bytes) == 1;
}

int guard_host(const struct guard *g, const struct guard_names *names,
               struct err *err)
{
    static const char *const loopback[] = {"localhost", "127.0.0.1", "::1"};
    char name[256];

    if (g->is_unix)
        return 0;
    if (!g->host)
        return err_set(err, ERR_INVALID, "the request has no Host");
    if (!host_name(g->host, name, sizeof(name)))
        return err_set(err, ERR_INVALID,
                       "Host '%.80s' is not a name or address", g->host);
    for (size_t i = 0; i < sizeof(loopback) / sizeof(*loopback); i++)
        if (!strcasecmp(name, loopback[i]))
            return 0;
    for (size_t i = 0; i < names->n; i++)
        if (!strcasecmp(name, names->names[i]))
            return 0;
    if (names->any_address && is_address(name))
        return 0;
    return err_set(err, ERR_FORBIDDEN,
                   "this server does not answer to the name '%.80s': start it "
                   "with --host to allow that",
                   name);
}

bool guard_is_safe_method(const char *method)
{
    return !strcmp(method, "GET") || !strcmp(method, "HEAD") ||
           !strcmp(method, "OPTIONS");
}

int guard_origin(const struct guard *g, struct err *err)
{
    if (guard_is_safe_method(g->method))
        return 0;
    if (g->fetch_site && strcmp(g->fetch_site, "same-origin") &&
        strcmp(g->fetch_site, "none"))
        return err_set(err, ERR_FORBIDDEN,
                       "a page of another site may not do this");
    if (g->origin) {
        const char *sep = strstr(g->origin, "://");
        if (!sep || !g->host || strcasecmp(sep + 3, g->host))
            return err_set(err, ERR_FORBIDDEN,
                           "a page of '%.80s' may not do this", g->origin);
    }
    return 0;
}
