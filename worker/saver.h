/* saver.h - the checkpoints that a lease makes, one after the other.
 *
 *   due ──► copy ──► thread: room, chunks, metrics, manifest ──► saved
 *    │      (snapshot.h; training stands still for no longer than that)
 *    └────► streamed, while training waits: where memory allows no copy
 *
 *   leaving ──► streamed, with the release in the manifest's transaction
 *
 * One save at most is under way. A save that comes due meanwhile waits for its
 * end; a lease that ends waits for the one of the very step it ends at, and
 * breaks any other off: chunks without a manifest are nobody's. The state that
 * was copied is the state of its step, so the checkpoint is the same, bit for
 * bit, whichever way it was written.
 *
 * Before its first chunk a save asks the server for room. Refused, a save on
 * the way is put off and training goes on; one for the lease's end is tried
 * again for a while, and is ERR_NOSPACE then.
 *
 * The thread that runs a lease owns the saver; while a save is under way, what
 * the chain of manifests needs is the save's thread's. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "worker/beat.h"
#include "worker/client.h"
#include "worker/feed.h"
#include "worker/memory.h"
#include "worker/torch_shim.h"

struct saver_options {
    const struct client_options *net;
    int64_t lease, token, cycle;
    const char *signature;
    const json_t *fingerprint, *resolved_spec;
    struct trainer *trainer;
    struct feed *feed;
    struct beat *beat;
    client_give_up_fn *give_up; /* of a save for the lease's end */
    client_give_up_fn *ends;    /* a release is not waited for for long */
    void *arg;
};

struct saver;

/* from: the checkpoint that was loaded, {"digest", "manifest"}, or NULL;
 * resumed: it is this cycle's own, at progress *at. */
int saver_new(const struct saver_options *o, const json_t *from, bool resumed,
              const struct progress *at, struct saver **ret, struct err *err);
void saver_free(struct saver *s); /* breaks off what is under way */

/* At a step boundary: take note of a save that has ended, and begin one when
 * `every` micro-batches were trained since the last. One that does not get
 * through is due again soon, for training goes on without it. 1: training stood
 * still meanwhile; 0; < 0: there is no point in going on. */
int saver_boundary(struct saver *s, const struct progress *p, int every,
                   const struct memory *m, const struct thresholds *t,
                   struct err *err);

/* For the lease's end. Is there a step that no checkpoint covers? */
bool saver_wants(struct saver *s, int64_t step);
/* Save the state and end the lease with `release`. ERR_NOSPACE: see err's
 * missing_bytes and *ret_bytes, what the state takes. */
int saver_leave(struct saver *s, const struct progress *p, json_t *release,
                int64_t *ret_bytes, struct err *err);
