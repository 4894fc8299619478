/* save.h - the train state out to the server and back.
 *
 * Saving streams: the trainer hands out one tensor at a time, the bytes fill a
 * chunk of 1 MiB, a full chunk is sent under its SHA-256. There is never a
 * second copy of the state. Nothing is a checkpoint until the manifest is
 * committed, so a save may end anywhere.
 *
 * Loading streams, too, and no byte reaches the trainer before its chunk's
 * digest was found to be the manifest's. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"
#include "worker/client.h"
#include "worker/feed.h"
#include "worker/torch_shim.h"

struct save {
    struct client *client;
    int64_t lease, token;
    struct trainer *trainer;
    struct feed *feed;
    const json_t *resolved_spec;
    client_give_up_fn *give_up; /* of each chunk that does not get through */
    void *arg;
    struct buf model_header; /* kept from save to save; all-zero at first */
};

/* Send all chunks. `head` has the manifest's fields that are not about
 * tensors; the complete manifest is *ret (caller owns). */
int save_state(struct save *s, const json_t *head, json_t **ret,
               struct err *err);
void save_release(struct save *s);

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
