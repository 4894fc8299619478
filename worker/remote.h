/* remote.h - text and indexes of a lease's shards from the server, for a worker
 * that does not share its file system.
 *
 *   GET /v1/leases/{id}/shards/{n}[?part=index]   Range: bytes=a-b
 *
 * n counts the shards of the claim's `data`, those for validation behind the
 * others. A server that is away is waited for, as everything else in a worker
 * does; one that refuses (a shard is gone, shrunk, a link) is believed. What
 * comes is not verified here. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "worker/client.h"

struct cache;

struct remote_options {
    const struct client_options *net;
    int64_t lease, token;
    struct cache *cache; /* the caller's; NULL: none */
    /* Asked between attempts, by any thread: true ends the wait. */
    client_give_up_fn *give_up;
    void *arg;
};

struct remote;
int remote_new(const struct remote_options *o, struct remote **ret,
               struct err *err);
struct cache *remote_cache(struct remote *r);

/* A piece that is wanted; `out` holds len bytes, all of which are there. */
struct piece {
    int shard;
    bool index;
    int64_t offset;
    size_t len;
    char *out;
};
/* Get all of them, several under way at a time. By any thread, one waits for
 * the other. ERR_NET: it was given up, or *stop became true. */
int remote_get(struct remote *r, const struct piece *v, int n,
               const atomic_bool *stop, struct err *err);
int64_t remote_bytes_read(struct remote *r);
void remote_free(struct remote *r);
