/* store_db.h - what a store is inside. Private to store.c and the files beside
 * it: only those that include this know sqlite3.
 *
 *   store.c       transactions, statements, notices
 *   store_open.c  a file is opened, checked, created, migrated
 *   store_copy.c  copies of both files, for a backup */
#pragma once
#include <sqlite3.h>
#include "server/store.h"

#define BUSY_MS 10000
#define CHUNK_PAGE 65536 /* of checkpoints.db */

/* A transaction's statements, by depth: deeper ones than this do not occur. */
#define TXN_DEPTH 8
enum { TXN_BEGIN, TXN_COMMIT, TXN_UNDO, TXN_KINDS };

struct store {
    sqlite3 *db;
    char *dir, *path;
    sqlite3_stmt *stmts[SQL_COUNT];
    sqlite3_stmt *txns[TXN_DEPTH][TXN_KINDS]; /* prepared at first use */
    bool used[SQL_COUNT];
    int depth; /* of open transactions */
    bool full; /* the disk was, since the WAL was folded back last */
    unsigned notices;
    int wal_now;    /* pages in the WAL after the newest commit */
    bool wal_later; /* fold it back in store_fold alone */
    int wal_pages;  /* fold the WAL back from so many on */
    int wal_first;  /* and wait for readers from so many on, */
    int wal_most;   /* or later: they did not end the last time */
};

/* What SQLite said, as one of ours. */
int db_error(struct store *st, const char *what, struct err *err);
int db_exec(struct store *st, const char *sql, struct err *err);
/* The first column of the first row, or 0. */
int db_int(struct store *st, const char *sql, int64_t *ret, struct err *err);
/* A connection to any file, in no WAL mode: `chunks` picks the migrations. */
int db_open_copy(const struct store *of, const char *path, bool chunks,
                 struct store **ret, struct err *err);
/* Bring an empty file to the newest schema. */
int db_create(struct store *st, bool chunks, struct err *err);
