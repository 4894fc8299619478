/* store_open.c - a database file is opened, checked, created or migrated. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "server/assets.h"
#include "server/store_db.h"

#define WAL_MOST 8   /* times store_wal_bytes */
#define WAL_CHUNKS 4 /* the same, where chunks fold back */
#define WAL_CHUNKS_MOST 16
#define WAL_WAIT_MS 50            /* for readers; writers wait meanwhile */
#define APPLICATION_ID 0x7061776c /* "pawl" */
/* quick_check reads the whole file: only where that takes a moment. */
#define CHECK_MAX ((int64_t)256 << 20)
/* One connection alone writes and checkpoints (3.7.0 to 3.51.2 may lose pages
 * when two do); the mutexes of a connection are not needed. */
static int open_file(struct store *st, const char *dir, bool chunks, int flags,
                     struct err *err)
{
    char real[PATH_MAX];
    if (!realpath(dir, real))
        return err_set(err, ERR_IO, "%s: %s", dir, strerror(errno));
    st->dir = strdup(real);
    if (!st->dir || asprintf(&st->path, "%s/%s", real,
                             chunks ? "checkpoints.db" : "pawl.db") < 0) {
        st->path = NULL;
        return err_set(err, ERR_NOMEM, "no memory");
    }
    if (sqlite3_open_v2(st->path, &st->db, flags | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK) {
        if (!st->db)
            return err_set(err, ERR_NOMEM, "no memory");
        return db_error(st, "cannot be opened", err);
    }
    sqlite3_extended_result_codes(st->db, 1);
    sqlite3_busy_timeout(st->db, BUSY_MS);
    sqlite3_db_config(st->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    return 0;
}

static int migration_number(const struct asset *a, bool chunks)
{
    const char *name = a->name;
    bool is_chunks = !strncmp(name, "chunks-", 7);
    return is_chunks == chunks ? atoi(name + (is_chunks ? 7 : 0)) : 0;
}

static int check_once(struct store *st, struct err *err)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(st->db, "PRAGMA quick_check(10)", -1, &q, NULL) !=
        SQLITE_OK)
        return db_error(st, "check", err);
    int rc, r = 0;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW && r != ERR_IO) {
        const char *said = (const char *)sqlite3_column_text(q, 0);
        /* a page that the disk did not give is no damage of the database */
        const char *why = strstr(said, "error code=");
        if (why && (atoi(why + 11) & 0xff) == SQLITE_IOERR)
            r = err_set(err, ERR_IO, "%s cannot be read: %s", st->path, said);
        else if (r == 0 && strcmp(said, "ok"))
            r = err_set(err, ERR_CORRUPT,
                        "%s is damaged (%s): put a backup in its place",
                        st->path, said);
    }
    if (r == 0 && rc != SQLITE_DONE)
        r = db_error(st, "check", err);
    sqlite3_finalize(q);
    return r;
}

static int check(struct store *st, struct err *err)
{
    struct stat sb;
    if (stat(st->path, &sb) < 0 || sb.st_size > CHECK_MAX)
        return 0;
    int r = check_once(st, err);
    /* not every failed read is told as one: damage shows twice */
    return r == ERR_CORRUPT ? check_once(st, err) : r;
}

/* Durable before anything may rely on it. */
static int sync_path(const char *path, int flags, struct err *err)
{
    AUTO_FD int fd = open(path, flags | O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO, "%s: %s",
                       path, strerror(errno));
    return 0;
}

static int copy_into(struct store *st, const char *path, struct err *err)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(st->db, "VACUUM INTO ?1", -1, &q, NULL) != SQLITE_OK)
        return db_error(st, "copy", err);
    sqlite3_bind_text(q, 1, path, -1, SQLITE_STATIC);
    int rc = sqlite3_step(q);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? 0 : db_error(st, "VACUUM INTO", err);
}

/* pawl.db as it was, beside it as pawl.db.v3: a migration is not undone. */
static int keep_copy(struct store *st, int64_t version, struct err *err)
{
    AUTO_FREE char *to = NULL, *part = NULL;
    if (asprintf(&to, "%s.v%d", st->path, (int)version) < 0 ||
        asprintf(&part, "%s.part", to) < 0)
        return err_set(err, ERR_NOMEM, "no memory");
    unlink(part); /* of an upgrade that was killed */
    int r = copy_into(st, part, err);
    if (r >= 0)
        r = sync_path(part, 0, err);
    if (r >= 0 && rename(part, to) < 0)
        r = err_set(err, ERR_IO, "%s: %s", to, strerror(errno));
    if (r >= 0)
        return sync_path(st->dir, O_DIRECTORY, err);
    unlink(part);
    return r;
}

/* ---- is a new pawl.db new, or the old one lost? ---- */

static int64_t file_size(const char *dir, const char *name)
{
    AUTO_FREE char *path = NULL;
    struct stat sb;
    if (asprintf(&path, "%s/%s", dir, name) < 0) {
        path = NULL;
        return 0;
    }
    return stat(path, &sb) == 0 ? sb.st_size : 0;
}

static bool holds_files(int above, const char *name)
{
    int fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;
    bool found = false;
    while (d && !found && (e = readdir(d)))
        found = e->d_type == DT_REG ||
                (e->d_type == DT_DIR && e->d_name[0] != '.' &&
                 holds_files(fd, e->d_name));
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    return found;
}

/* Every chunk that no manifest names is swept, so an empty pawl.db in the place
 * of a lost one would cost all checkpoints, too. */
static int refuse_lost(const char *dir, const char *holds, struct err *err)
{
    return err_set(err, ERR_CONFLICT,
                   "%s/pawl.db is missing or empty, but %s: put a backup of "
                   "pawl.db in its place (pawl.db.vN is one that an upgrade "
                   "kept); to begin anew, take another state folder",
                   dir, holds);
}

static int look_for_loss(const char *dir, struct err *err)
{
    if (file_size(dir, "checkpoints.db") > 0) {
        struct store *chunks = NULL;
        int r = store_open_reader(dir, true, &chunks, err);
        if (r >= 0) {
            CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_ANY);
            r = stmt_row(&q, err);
        }
        store_close(chunks);
        if (r == ERR_CORRUPT) /* half of a backup, perhaps */
            return refuse_lost(dir, "checkpoints.db is there, and damaged",
                               err);
        if (r < 0)
            return r;
        if (r > 0)
            return refuse_lost(dir, "checkpoints.db holds checkpoints", err);
    }
    AUTO_FREE char *datasets = NULL;
    if (asprintf(&datasets, "%s/datasets", dir) < 0) {
        datasets = NULL;
        return err_set(err, ERR_NOMEM, "no memory");
    }
    if (holds_files(AT_FDCWD, datasets))
        return refuse_lost(dir, "datasets/ holds shards", err);
    return 0;
}

/* All steps are one transaction: a database is as it was, or it is new. */
static int apply(struct store *st, bool chunks, int64_t version,
                 struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    for (const struct asset *a = migrations; a->name; a++) {
        int n = migration_number(a, chunks);
        if (n <= version)
            continue;
        char done[96];
        snprintf(done, sizeof(done),
                 "PRAGMA user_version = %d; PRAGMA application_id = %d", n,
                 APPLICATION_ID);
        if (sqlite3_exec(st->db, (const char *)a->data, NULL, NULL, NULL) !=
            SQLITE_OK)
            return db_error(st, a->name, err);
        r = db_exec(st, done, err);
        if (r < 0)
            return r;
        version = n;
    }
    return txn_commit(&txn, err);
}

static void say_unchanged(const struct store *st, int newest, struct err *err)
{
    char why[sizeof(err->text)];
    snprintf(why, sizeof(why), "%s", err->text);
    err_set(err, err->code,
            "%s was not upgraded to schema %d and is as it was: %s", st->path,
            newest, why);
}

static int migrate(struct store *st, bool chunks, struct err *err)
{
    int newest = 0;
    for (const struct asset *a = migrations; a->name; a++) {
        int n = migration_number(a, chunks);
        newest = n > newest ? n : newest;
    }
    int64_t version, app;
    int r = db_int(st, "PRAGMA user_version", &version, err);
    if (r < 0)
        return r;
    r = db_int(st, "PRAGMA application_id", &app, err);
    if (r < 0)
        return r;
    if (version > 0 && app != APPLICATION_ID)
        return err_set(err, ERR_CONFLICT, "%s is not a database of Pawl",
                       st->path);
    if (version > newest)
        return err_set(err, ERR_CONFLICT,
                       "%s was written by a newer pawld (schema %d; this one "
                       "knows up to %d): start that one, or put the copy %s.v%d"
                       " in its place",
                       st->path, (int)version, newest, st->path, newest);
    if (version == 0 && !chunks) {
        r = look_for_loss(st->dir, err);
        if (r < 0)
            return r;
    }
    if (version == newest)
        return 0;
    if (version > 0 && !chunks)
        r = keep_copy(st, version, err);
    if (r >= 0)
        r = apply(st, chunks, version, err);
    if (r < 0 && version > 0 && err)
        say_unchanged(st, newest, err);
    return r;
}

int store_wal_bytes = 2 << 20;

/* Folded back it is as SQLite would do it, past no reader;
 * but where there is always some reader, the WAL never begins anew. So beyond
 * wal_most wait for the readers of the moment: those that come later find all
 * in the file and need no WAL. One that stays (a copy) is asked again only once
 * as much has been written again. */
static void fold(struct store *st)
{
    sqlite3 *db = st->db;
    int pages = st->wal_now;
    if (pages < st->wal_pages)
        return;
    int first = st->wal_first;
    if (pages < first)
        st->wal_most = first;
    bool wait = pages >= st->wal_most;
    if (wait)
        sqlite3_busy_timeout(db, WAL_WAIT_MS);
    int rc = sqlite3_wal_checkpoint_v2(db, "main",
                                       wait ? SQLITE_CHECKPOINT_TRUNCATE
                                            : SQLITE_CHECKPOINT_PASSIVE,
                                       NULL, NULL);
    if (wait) {
        sqlite3_busy_timeout(db, BUSY_MS);
        st->wal_most = rc == SQLITE_OK ? first : pages + first;
    }
    /* what could not be folded back now is tried again after the next commit;
     * each is kept whatever this said */
    st->wal_now = 0;
}

static int on_commit(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct store *st = arg;
    st->wal_now = pages;
    if (!st->wal_later)
        fold(st);
    return SQLITE_OK;
}

void store_fold_later(struct store *st)
{
    st->wal_later = true;
}

void store_fold(struct store *st)
{
    fold(st);
}

/* Both hold only before the first page is written. */
static const char chunk_pages[] =
    "PRAGMA page_size=65536; PRAGMA auto_vacuum=INCREMENTAL";

static int open_writer(struct store *st, const char *dir, bool chunks,
                       struct err *err)
{
    /* SQLite would throw such a WAL away, and take the file for a new one */
    if (!chunks && file_size(dir, "pawl.db") == 0 &&
        file_size(dir, "pawl.db-wal") > 0)
        return refuse_lost(dir, "pawl.db-wal holds writes to it", err);
    int r = open_file(st, dir, chunks,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, err);
    if (r < 0)
        return r;
    if (chunks) {
        r = db_exec(st, chunk_pages, err);
        if (r < 0)
            return r;
    }
    r = db_exec(st,
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                "PRAGMA foreign_keys=ON; PRAGMA journal_size_limit=8388608",
                err);
    /* What a savepoint may have to restore goes to a file in /var/tmp from 64 KiB
     * on, in each group commit anew: not so with temp_store. (Not by
     * SQLITE_CONFIG_STMTJRNL_SPILL: 3.40.1 takes any value but its own for a
     * full disk once it is passed.) Chunks would be too much to keep in memory,
     * and a page more or less of them to write is nothing. */
    if (r >= 0 && !chunks)
        r = db_exec(st, "PRAGMA temp_store=MEMORY", err);
    if (r < 0)
        return r;
    st->wal_pages = chunks ? WAL_CHUNKS * store_wal_bytes / CHUNK_PAGE
                           : store_wal_bytes / 4096;
    if (st->wal_pages < 1)
        st->wal_pages = 1;
    st->wal_first = st->wal_most =
        st->wal_pages * (chunks ? WAL_CHUNKS_MOST / WAL_CHUNKS : WAL_MOST);
    sqlite3_wal_hook(st->db, on_commit, st);
    r = check(st, err);
    return r < 0 ? r : migrate(st, chunks, err);
}

int store_open(const char *dir, bool chunks, struct store **ret,
               struct err *err)
{
    struct store *st = calloc(1, sizeof(*st));
    if (!st)
        return err_set(err, ERR_NOMEM, "no memory for a store");
    int r = open_writer(st, dir, chunks, err);
    if (r == ERR_CORRUPT && st->db) {
        char what[200];
        snprintf(what, sizeof(what), "%s", sqlite3_errmsg(st->db));
        if (sqlite3_errcode(st->db) != SQLITE_OK &&
            sqlite3_errcode(st->db) != SQLITE_ROW)
            r = err_set(err, r, "%s is damaged (%s): put a backup in its place",
                        st->path, what);
    }
    if (r < 0) {
        store_close(st);
        return r;
    }
    *ret = st;
    return 0;
}

int store_open_reader(const char *dir, bool chunks, struct store **ret,
                      struct err *err)
{
    struct store *st = calloc(1, sizeof(*st));
    if (!st)
        return err_set(err, ERR_NOMEM, "no memory for a store");
    int r = open_file(st, dir, chunks, SQLITE_OPEN_READONLY, err);
    if (r >= 0)
        r = db_exec(st, "PRAGMA query_only=ON; PRAGMA wal_autocheckpoint=0",
                    err);
    if (r < 0) {
        store_close(st);
        return r;
    }
    *ret = st;
    return 0;
}

int db_open_copy(const struct store *of, const char *path, bool chunks,
                 struct store **ret, struct err *err)
{
    struct store *st = calloc(1, sizeof(*st));
    if (!st)
        return err_set(err, ERR_NOMEM, "no memory for a store");
    int r = 0;
    st->dir = strdup(of->dir);
    st->path = strdup(path);
    if (!st->dir || !st->path)
        r = err_set(err, ERR_NOMEM, "no memory");
    else if (sqlite3_open_v2(path, &st->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                                 SQLITE_OPEN_NOMUTEX,
                             NULL) != SQLITE_OK)
        r = st->db ? db_error(st, "cannot be made", err)
                   : err_set(err, ERR_NOMEM, "no memory");
    if (r >= 0 && chunks)
        r = db_exec(st, chunk_pages, err);
    if (r < 0) {
        store_close(st);
        return r;
    }
    *ret = st;
    return 0;
}

int db_create(struct store *st, bool chunks, struct err *err)
{
    return apply(st, chunks, 0, err);
}

void store_close(struct store *st)
{
    if (!st)
        return;
    for (int i = 0; i < SQL_COUNT; i++)
        sqlite3_finalize(st->stmts[i]);
    for (int i = 0; i < TXN_DEPTH * TXN_KINDS; i++)
        sqlite3_finalize(st->txns[i / TXN_KINDS][i % TXN_KINDS]);
    sqlite3_close(st->db);
    free(st->dir);
    free(st->path);
    free(st);
}
