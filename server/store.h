/* store.h - one connection to the state database, its statements prepared.
 *
 * DIR/pawl.db holds everything but chunks, DIR/checkpoints.db the chunks. Each
 * file has one writing connection, owned by one thread (lane.h); readers open
 * read-only. All SQL text stands in sql.h, prepared at first use; values go in
 * by named, typed binds. Nothing outside store.c knows sqlite3. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/cleanup.h"
#include "schema/err.h"

/* sql.h is a list of SQL(NAME, "text") lines, a section per noun. */
enum sql_id {
#define SQL(name, text) SQL_##name,
#include "server/sql.h"
#undef SQL
    SQL_COUNT
};

struct store; /* one connection to one of the two files */

/* Open for writing: create or migrate to the newest schema (each migration in
 * one transaction with PRAGMA user_version; a copy pawl.db.vN is kept of an
 * older one first), WAL, synchronous=FULL, foreign keys on. A newer database is
 * refused: ERR_CONFLICT. So is a missing or empty pawl.db beside chunks or
 * shards: it was lost, and a new one would have them swept or overwritten.
 * `chunks` picks checkpoints.db. */
int store_open(const char *dir, bool chunks, struct store **ret,
               struct err *err);
int store_open_reader(const char *dir, bool chunks, struct store **ret,
                      struct err *err);
void store_close(struct store *st);
const char *store_dir(const struct store *st); /* absolute */

/* A transaction. The outermost is BEGIN IMMEDIATE; inside another one it is a
 * savepoint, so a noun's own transaction nests in its lane's group commit. */
struct txn {
    struct store *st;
    int depth;
};
#define TXN_INIT                                                               \
    {                                                                          \
        0                                                                      \
    }
int txn_begin(struct txn *txn, struct store *st, struct err *err);
int txn_commit(struct txn *txn, struct err *err);
void txn_end(struct txn *txn); /* rolls back unless committed */
/* SQLite has rolled all of it back itself (disk full, I/O error): what is still
 * done in it comes to nothing. */
bool txn_lost(const struct txn *txn);

/* A statement in use; stmt_end resets it. One use of an id at a time. */
struct stmt {
    struct store *st;
    enum sql_id id;
    void *h;
    int bad; /* first bind that failed */
};
struct stmt stmt_use(struct store *st, enum sql_id id);
void stmt_end(struct stmt *q);
void stmt_int(struct stmt *q, const char *name, int64_t v);
void stmt_real(struct stmt *q, const char *name, double v);
void stmt_text(struct stmt *q, const char *name,
               const char *v); /* NULL: null */
void stmt_blob(struct stmt *q, const char *name, const void *v, size_t len);
void stmt_null(struct stmt *q, const char *name);
void stmt_json(struct stmt *q, const char *name, const json_t *v); /* compact */
/* Next row: 1; none: 0; < 0: *err. */
int stmt_row(struct stmt *q, struct err *err);
/* Run to the end; the count of rows changed, or < 0. */
int64_t stmt_run(struct stmt *q, struct err *err);
/* Columns of the current row, from 0. Text and blobs live until the next call. */
bool col_null(const struct stmt *q, int i);
int64_t col_int(const struct stmt *q, int i);
double col_real(const struct stmt *q, int i);
const char *col_text(const struct stmt *q, int i); /* "" for null */
const void *col_blob(const struct stmt *q, int i, size_t *ret_len);
json_t *col_json(const struct stmt *q, int i); /* parsed; NULL; caller owns */
/* The same as JSON, null for null; caller owns. */
json_t *col_text_or_null(const struct stmt *q, int i);
json_t *col_int_or_null(const struct stmt *q, int i);
json_t *col_json_or_null(const struct stmt *q, int i);

/* ---- copies, for a backup: store_copy.c ---- */

/* Copy pawl.db as it is at this moment to a new file at `path`; `from` is a
 * connection of its own, on which nothing else is done meanwhile. `stop` is
 * asked now and then: true breaks it off with ERR_BUSY. *ret is the copy, open:
 * not in WAL mode and never synced, for whoever reads it next is sent it. */
typedef bool store_stop_fn(void *arg);
int store_copy(struct store *from, const char *path, store_stop_fn *stop,
               void *arg, struct store **ret, struct err *err);
/* A new and empty checkpoints.db of that kind. */
int store_copy_chunks(struct store *from, const char *path, struct store **ret,
                      struct err *err);

/* ---- sizes ---- */

/* The WAL of pawl.db is folded back from so many bytes on (that of checkpoints.db
 * from four times as many), and stays under a few times as many; before
 * store_open. Nothing else is written meanwhile, so it is little at a time. */
extern int store_wal_bytes;
/* That is part of the commit, unless fold_later was called: then store_fold does
 * it, when what waited for the commit has been told. */
void store_fold_later(struct store *st);
void store_fold(struct store *st);

struct store_sizes {
    int64_t db_bytes, wal_bytes;
};
/* Of the file of a connection and its WAL, as they are on disk. */
void store_sizes(const struct store *st, struct store_sizes *ret);
/* Bytes that are free where the state is; < 0: not known. */
int64_t store_free(const struct store *st);
/* Is there room for `more` bytes, and store_spare besides? What lets go of
 * space has to write first, and so has every heartbeat: ERR_NOSPACE is better
 * said while they still can. */
extern int64_t store_spare; /* tests raise it */
int store_room(struct store *chunks, size_t more, struct err *err);
/* Bytes of chunks there is room for besides store_spare: what the disk has, and
 * pages that checkpoints.db has free. May be negative. */
int store_left(struct store *chunks, int64_t *ret, struct err *err);
struct statvfs;
extern int (*store_statvfs)(const char *path, struct statvfs *ret); /* tests */

int64_t store_last_id(struct store *st); /* rowid of the last insert */

/* What this transaction changed, for those who wait. Bits gather until the
 * outermost commit hands them to the hook (set once, by lane.c). */
enum notify {
    NOTIFY_QUEUE = 1,
    NOTIFY_JOB = 2,
    NOTIFY_WORKER = 4,
    NOTIFY_DATASET = 8,
    NOTIFY_BACKUP = 16, /* of no transaction: a copy is ready */
    NOTIFY_ERRAND = 32  /* nor this: one has ended (errand.h) */
};
void store_notify(struct store *st, unsigned bits);
unsigned store_take_notices(struct store *st);
