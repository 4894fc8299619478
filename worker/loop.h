/* loop.h - one worker process: claim a lease, train, report, end.
 *
 *   claim ─► load ─► first step ─► train ─► save and release ─► exit
 *                       │            ▲ │
 *                       │            └─┘ checkpoint_every
 *                       └─ a threshold below what a fresh process needs
 *
 * All decisions are taken at optimizer-step boundaries: what the server asked
 * for with its last answer, SIGTERM, a threshold, a new policy, a save that is
 * due. A process holds one lease in its life; the next one starts afresh. */
#pragma once
#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include "schema/err.h"
#include "worker/client.h"

struct cache;

struct worker_options {
    struct client_options net;
    const char *name;    /* NULL: host name */
    json_t *labels;      /* object of strings, or NULL: none */
    bool supervised;     /* a child of pawld on this host */
    pid_t parent;        /* supervised: that pawld. It may be gone before this
                         * process gets to look, so it is told */
    bool once;           /* do not wait for work */
    bool remote;         /* shards come from the server, by way of the */
    struct cache *cache; /* which the caller owns; may be NULL */
    atomic_bool *drain;  /* SIGTERM: save, yield, end */
};

/* 0: the lease was released, or there is nothing to do here any more. < 0: the
 * worker could not do its work, *err says why. */
int worker_run(const struct worker_options *o, struct err *err);
