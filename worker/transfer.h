/* transfer.h - one HTTP request as libcurl sees it, for client.c and flight.c.
 *
 * A transfer is begun on an easy handle, performed by whoever has the handle
 * (alone, or among others in a multi handle), and ended with what came of it.
 * The request is copied, but not what it points to: its path and its bytes must
 * stay until the end. */
#pragma once
#include <curl/curl.h>
#include "worker/client.h"

struct client {
    struct client_options o;
    CURL *curl;
    char *url;         /* without a slash at the end */
    char *unix_socket; /* or NULL */
    char *token;
    bool stale; /* url and token must be read again */
    unsigned random;
};

struct transfer { /* stays where it is while it lasts: libcurl points at it */
    struct client *client;
    CURL *curl;
    struct request rq;
    char *text; /* of its JSON */
    struct buf url;
    struct curl_slist *headers;
    struct answer answer;
    int r; /* of on_bytes */
    struct err err;
    char why[CURL_ERROR_SIZE];
};
int transfer_begin(struct transfer *t, struct client *c, CURL *curl,
                   const struct request *rq, struct err *err);
/* What client_try returns; the transfer is released. `ret` may be NULL. */
int transfer_end(struct transfer *t, CURLcode e, struct answer *ret,
                 struct err *err);
void transfer_release(struct transfer *t);

/* How long to wait after so many failures: 50 ms, doubled to 2 s, and up to
 * half of it more at random. */
int64_t client_pause_ms(struct client *c, int attempt);
