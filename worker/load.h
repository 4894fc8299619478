/* load.h - a train state back from the server.
 *
 * It streams, and no byte reaches the trainer before its chunk's digest was
 * found to be the manifest's. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "worker/client.h"
#include "worker/torch_shim.h"

/* The feed's part of a loaded state. */
struct loaded_feed {
    int64_t *buffer; /* n × 4, malloc'ed */
    int64_t n;
};
/* Fetch checkpoint `id` and put it into the trainer; the feed's tensor goes to
 * *ret_feed. ERR_CORRUPT when it does not verify or cannot be had whole. */
int load_state(struct client *c, int64_t id, const json_t *manifest,
               struct trainer *t, struct loaded_feed *ret_feed,
               client_give_up_fn *give_up, void *arg, struct err *err);
