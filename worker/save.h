/* save.h - the train state out to the server.
 *
 * Saving streams: tensors are handed out one at a time, their bytes fill a
 * chunk of 1 MiB, a full chunk is sent under its SHA-256 (flight.h). Nothing is
 * a checkpoint until the manifest is committed, so a save may end anywhere.
 *
 * Where the tensors come from is the caller's: from the trainer itself, which
 * stands still meanwhile, and then there is never a second copy of the state;
 * or from a copy of it (snapshot.h). */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"
#include "worker/client.h"
#include "worker/torch_shim.h"

#define FEED_BUFFER "feed.buffer" /* the feed's tensor, n × 4 of I64 */

/* A complete state at an optimizer-step boundary; all borrowed. */
struct state_out {
    int (*tensors)(void *from, trainer_put_fn *put, void *ctx, struct err *err);
    void *from;
    const json_t *feed;    /* its position */
    const int64_t *buffer; /* n × 4 */
    int64_t n;
};

struct save {
    struct client *client;
    int64_t lease, token;
    client_give_up_fn *give_up; /* of each chunk that does not get through */
    void *arg;
    json_t *known; /* digests that the server may have: keys; grows */
    const struct buf *model_header; /* of the model file: save_model_header */
};

/* The model file's header, the same for every state of a cycle: *ret is filled
 * once and left alone then. */
int save_model_header(const struct state_out *state,
                      const json_t *resolved_spec, struct buf *ret,
                      struct err *err);
/* Send all chunks. `head` has the manifest's fields that are not about
 * tensors; the complete manifest is *ret (caller owns). */
int save_state(const struct save *s, const struct state_out *state,
               const json_t *head, json_t **ret, struct err *err);
