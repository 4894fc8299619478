/* flight.h - chunks on their way to the server, several at a time.
 *
 *   fill a buffer ──► digest ──► under way (up to FLIGHT_SLOTS) ──► stored
 *                                   │ ▲
 *                                   ▼ │ after a pause, all of them
 *                                  failed
 *
 * The server stores chunks one after the other, and each waits for its commit:
 * with some under way the next is there when it is wanted, and the caller fills
 * and digests one more meanwhile. Their order does not matter, for a chunk is
 * named by its digest. What the server is likely to have (it was in the state
 * before) is asked for first, and sent only when it is not there, or not whole;
 * what was sent in this flight is not sent again.
 *
 * Nothing runs by itself: transfers move while one of these calls is at work.
 * There are FLIGHT_SLOTS + 1 buffers of a chunk's size, and no more. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "worker/client.h"

/* As many as the server commits together. Of what bare SQLite writes, 600 MB on 16
 * idle cores: 0.47 with one under way, 0.70 with 4, 0.97 with 8; on 2 busy ones
 * 0.45, 0.60, 0.70, and no more with 12. */
#define FLIGHT_SLOTS 8

struct flight;

/* known: a set of digests (the keys of an object) that the server may have, or
 * NULL; what this flight sent is added at its end. give_up is asked between
 * attempts, as client_insist does. */
int flight_new(struct client *c, int64_t lease, int64_t token, json_t *known,
               client_give_up_fn *give_up, void *arg, struct flight **ret,
               struct err *err);
void flight_free(struct flight *f); /* what is under way is broken off */

/* The buffer to fill, STATE_CHUNK bytes. */
char *flight_buffer(struct flight *f);
/* Take its digest and put it under way; *hex: its name. Waits until there is
 * another buffer to fill. A full disk (ERR_NOSPACE) is told at once, what may
 * pass by itself is tried again. */
int flight_send(struct flight *f, size_t len, char hex[DIGEST_HEX],
                struct err *err);
/* All that was sent is stored. */
int flight_land(struct flight *f, struct err *err);
