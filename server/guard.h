/* guard.h - which requests are refused before anything is done with them.
 *
 * libmicrohttpd takes a request with two lengths, or a length and chunks, or
 * two Hosts; a proxy in front may read such bytes as other requests than we do.
 * A browser may be made to call us from a foreign page, under a foreign name
 * (DNS rebinding) or with our own cookie. All of this is a look at headers. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "schema/err.h"

struct guard {
    const char *method;
    bool is_unix; /* came over a Unix socket: Host means nothing there */
    int hosts, lengths, codings, authorizations; /* how often each came */
    const char *host, *length, *coding;
    const char *origin, *fetch_site;
};

/* ERR_INVALID: answer 400 and close, since nobody can say where the next
 * request would begin. */
int guard_framing(const struct guard *g, struct err *err);

/* The names by which this server may be called. */
struct guard_names {
    const char *const *names; /* host names or addresses */
    size_t n;
    bool any_address; /* listening on a wildcard: any IP literal */
};
/* ERR_FORBIDDEN */
int guard_host(const struct guard *g, const struct guard_names *names,
               struct err *err);

/* A request that changes something and whose authority is the browser's (a
 * cookie, or none at all) must come from our own page. ERR_FORBIDDEN */
int guard_origin(const struct guard *g, struct err *err);
bool guard_is_safe_method(const char *method);
