/* backup.h - a consistent copy of the state, as one tar.
 *
 * While jobs run, claims go on and states are saved, a thread of the backup's
 * own makes copies in DIR/tmp:
 *
 *   pawl.db         as it is at one moment (store_copy)
 *   checkpoints.db  the chunks that this pawl.db names: they were durable
 *                   before it named them, and nothing is swept until they are
 *                   copied
 *   datasets/       the shards that it names, as hard links: shards never
 *                   change in place
 *   copies/         of files below a root, those that open cycles read
 *
 * Then sweeping goes on, and the copies, which have no name any more, are sent
 * at whatever pace the client reads. They go with the request, or with the
 * process. Left out are the token, the sessions and logs: what is restored is a
 * server of its own, in which the workers of the moment are gone and ids of
 * leases go on a million later, so that none of theirs is taken for a new one.
 *
 * pawl.db comes last in the tar: without its end, the folder that was made of
 * it is refused (store.h). */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"

struct server;

#define BACKUPS_MAX 4 /* at a time */

struct backups; /* those of one server */
int backups_new(struct server *s, struct backups **ret, struct err *err);
void backups_free(struct backups *b); /* when all requests have ended */
/* A sweep takes a turn before it looks, and may remove what it found only while
 * nothing is being copied and nothing was since: 1, or 0. */
int64_t backups_turn(struct backups *b);
bool backups_may_sweep(struct backups *b, int64_t turn);

struct backup; /* one request's */
/* Begin to copy. ERR_BUSY: BACKUPS_MAX are under way, or the server stops. */
int backup_new(struct backups *b, struct backup **ret, struct err *err);
/* 1: copied; 0: not yet, NOTIFY_BACKUP will tell; < 0: it failed, with
 * ERR_NOSPACE and missing_bytes where the disk is too full. */
int backup_ready(struct backup *b, struct err *err);
/* Some more of the tar, appended to *out: 1; 0: that was all. */
int backup_next(struct backup *b, struct buf *out, struct err *err);
void backup_free(void *b); /* breaks off what is under way */
