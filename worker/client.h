/* client.h - HTTP to pawld, over TCP or a Unix socket.
 *
 * A client is one connection, used by one thread. Where the server is can
 * change while a worker lives: with a state folder, DIR/url and DIR/token are
 * read again after every failure. client_try is one attempt; client_insist
 * repeats it until the server has answered, which is right for every write of
 * the worker protocol, since all may be sent twice. */
#pragma once
#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"

struct client_options {
    const char *state;      /* folder with url and token, or NULL */
    const char *server;     /* URL, instead of DIR/url */
    const char *token;      /* instead of a file's */
    const char *token_file; /* NULL: DIR/token */
    atomic_bool *interrupt; /* true ends a request under way; may be NULL */
};

struct client;

int client_new(const struct client_options *o, struct client **ret,
               struct err *err);
void client_free(struct client *c);

/* Bytes of an answer as they come: 0, or an ERR_ that ends it. */
typedef int client_bytes_fn(void *arg, const char *data, size_t len,
                            struct err *err);

struct request {
    const char *method, *path;
    const json_t *json; /* the body, or */
    const void *bytes;
    size_t len;
    int64_t lease_token; /* > 0: sent as Pawl-Token */
    const char *range;   /* "first-last" of the answer's bytes, or NULL */
    int timeout_s;       /* for the whole; 0: only that it does not stall */
    client_bytes_fn *on_bytes; /* for the body of a 2xx */
    void *arg;
};

struct answer {
    long status;
    json_t *json; /* or NULL */
    struct buf body;
};
void answer_release(struct answer *a);

/* One attempt. 0: the server answered 2xx; ERR_NET: it cannot be reached, or
 * the connection broke (ERR_IO when that was within bytes for on_bytes); else
 * the code of its refusal, its sentence in *err. */
int client_try(struct client *c, const struct request *rq, struct answer *ret,
               struct err *err);

/* May the refusal or failure go away by itself? */
bool client_retriable(int r);

/* Asked between attempts: true ends client_insist with the last error. */
typedef bool client_give_up_fn(void *arg);
int client_insist(struct client *c, const struct request *rq,
                  struct answer *ret, client_give_up_fn *give_up, void *arg,
                  struct err *err);
/* The pause between attempts, longer with each. */
void client_pause(struct client *c, int attempt);
