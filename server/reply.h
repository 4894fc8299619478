/* reply.h - an answer on its way from a handler to httpd.c, which sends it. */
#pragma once
#include "server/httpd.h"

enum reply_kind {
    REPLY_NONE,
    REPLY_BYTES,
    REPLY_BODY,
    REPLY_STREAM,
    REPLY_WAIT,
};

#define REPLY_HEADERS 8

struct reply {
    const struct request *req;
    enum reply_kind kind;
    int status;
    char type[80];
    struct buf bytes;
    struct {
        char *name, *value;
    } headers[REPLY_HEADERS];
    int n_headers;
    /* BODY and STREAM */
    char *etag, *filename;
    int64_t length;
    reply_read_fn *read;
    reply_next_fn *next;
    bool whole; /* a STREAM that must not just end */
    void *source;
    void (*done)(void *);
    /* STREAM and WAIT */
    unsigned notices;
    int64_t until_ms;
};

/* Forget what was filled in; the request stays. */
void reply_clear(struct reply *r);
/* What went wrong as RFC 9457 problem+json. */
int reply_problem(struct reply *ret, const struct err *err, int status);
int reply_status_of(int err_code);
const char *reply_title(int status);

/* Range of a body of `length` bytes. 1: *first and *count are set; 0: no or
 * several ranges, send the whole; ERR_RANGE. */
int range_parse(const char *header, int64_t length, int64_t *first,
                int64_t *count);
/* Does an If-None-Match list hold this quoted ETag (or is it "*")? */
bool etag_matches(const char *header, const char *etag);
/* Accept: what of JSON, text and CSV it likes best; JSON when in doubt. */
enum as accept_parse(const char *header);
