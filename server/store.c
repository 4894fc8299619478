#include "server/store.h"
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "server/assets.h"

#define APPLICATION_ID 0x7061776c /* "pawl" */
#define BUSY_MS 10000
/* quick_check reads the whole file: only where that takes a moment. */
#define CHECK_MAX ((int64_t)256 << 20)

static const char *const sql_text[SQL_COUNT] = {
#define SQL(name, text) [SQL_##name] = text,
#include "server/sql.h"
#undef SQL
};

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
};

/* What SQLite said, as one of ours. */
static int db_error(struct store *st, const char *what, struct err *err)
{
    int code;
    switch (sqlite3_errcode(st->db) & 0xff) {
    case SQLITE_FULL:
        code = ERR_NOSPACE;
        st->full = true;
        break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        code = ERR_BUSY;
        break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        code = ERR_CORRUPT;
        break;
    case SQLITE_NOMEM:
        code = ERR_NOMEM;
        break;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
        code = sqlite3_system_errno(st->db) == ENOSPC ? ERR_NOSPACE : ERR_IO;
        break;
    default:
        code = ERR_DB;
    }
    return err_set(err, code, "%s: %s: %s", st->path, what,
                   sqlite3_errmsg(st->db));
}

static int exec(struct store *st, const char *sql, struct err *err)
{
    if (sqlite3_exec(st->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return db_error(st, sql, err);
    return 0;
}

static int pragma_int(struct store *st, const char *sql, int64_t *ret,
                      struct err *err)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(st->db, sql, -1, &q, NULL) != SQLITE_OK)
        return db_error(st, sql, err);
    int rc = sqlite3_step(q);
    *ret = rc == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    sqlite3_finalize(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : db_error(st, sql, err);
}

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

/* pawl.db as it was, beside it as pawl.db.v3: a migration is not undone. */
static int keep_copy(struct store *st, int64_t version, struct err *err)
{
    AUTO_FREE char *to = NULL, *part = NULL;
    if (asprintf(&to, "%s.v%d", st->path, (int)version) < 0 ||
        asprintf(&part, "%s.part", to) < 0)
        return err_set(err, ERR_NOMEM, "no memory");
    unlink(part);
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(st->db, "VACUUM INTO ?1", -1, &q, NULL) != SQLITE_OK)
        return db_error(st, "copy", err);
    sqlite3_bind_text(q, 1, part, -1, SQLITE_STATIC);
    int rc = sqlite3_step(q);
    sqlite3_finalize(q);
    if (rc != SQLITE_DONE)
        return db_error(st, "cannot keep a copy before migrating", err);
    if (rename(part, to) < 0)
        return err_set(err, ERR_IO, "%s: %s", to, strerror(errno));
    return 0;
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

static int migrate(struct store *st, bool chunks, struct err *err)
{
    int newest = 0;
    for (const struct asset *a = migrations; a->name; a++) {
        int n = migration_number(a, chunks);
        newest = n > newest ? n : newest;
    }
    int64_t version, app;
    int r = pragma_int(st, "PRAGMA user_version", &version, err);
    if (r < 0)
        return r;
    r = pragma_int(st, "PRAGMA application_id", &app, err);
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
    if (version > 0 && version < newest && !chunks) {
        r = keep_copy(st, version, err);
        if (r < 0)
            return r;
    }
    for (const struct asset *a = migrations; a->name; a++) {
        int n = migration_number(a, chunks);
        if (n <= version)
            continue;
        char done[96];
        snprintf(done, sizeof(done),
                 "PRAGMA user_version = %d; PRAGMA application_id = %d", n,
                 APPLICATION_ID);
        CLEANUP(txn_end) struct txn txn = TXN_INIT;
        r = txn_begin(&txn, st, err);
        if (r < 0)
            return r;
        if (sqlite3_exec(st->db, (const char *)a->data, NULL, NULL, NULL) !=
            SQLITE_OK)
            return db_error(st, a->name, err);
        r = exec(st, done, err);
        if (r < 0)
            return r;
        r = txn_commit(&txn, err);
        if (r < 0)
            return r;
        version = n;
    }
    return 0;
}

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
    /* both hold only before the first page is written */
    if (chunks) {
        r = exec(st, "PRAGMA page_size=65536; PRAGMA auto_vacuum=INCREMENTAL",
                 err);
        if (r < 0)
            return r;
    }
    r = exec(st,
             "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
             "PRAGMA foreign_keys=ON; PRAGMA journal_size_limit=8388608",
             err);
    /* SQLite's 1000 pages would be 64 MiB of WAL before any is folded back */
    if (r >= 0 && chunks)
        r = exec(st, "PRAGMA wal_autocheckpoint=128", err);
    if (r < 0)
        return r;
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
        r = exec(st, "PRAGMA query_only=ON; PRAGMA wal_autocheckpoint=0", err);
    if (r < 0) {
        store_close(st);
        return r;
    }
    *ret = st;
    return 0;
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

const char *store_dir(const struct store *st)
{
    return st->dir;
}

/* Twice the WAL of checkpoints.db: to fold it back takes as much again. */
int64_t store_spare = 16 << 20;

int store_room(struct store *st, size_t more, struct err *err)
{
    struct statvfs fs;
    if (statvfs(st->dir, &fs) < 0)
        return 0;
    uint64_t spare = (uint64_t)store_spare;
    uint64_t free = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (free >= spare + more)
        return 0;
    return err_set(err, ERR_NOSPACE,
                   "%s: %d MiB are free, and the last %d are kept for what "
                   "must still be written: make room there",
                   st->dir, (int)(free >> 20), (int)(spare >> 20));
}

/* ---- transactions ---- */

/* The disk was full: what the WAL takes up may be had back. Waits for no
 * reader, and whether it helped the next write will show. */
static void fold_back(struct store *st)
{
    st->full = false;
    sqlite3_busy_timeout(st->db, 0);
    sqlite3_wal_checkpoint_v2(st->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
                              NULL);
    sqlite3_busy_timeout(st->db, BUSY_MS);
}

/* To parse SAVEPOINT and RELEASE anew took a tenth of a claim's time. */
static int txn_exec(struct store *st, int depth, int kind, struct err *err)
{
    static const char *const outer[] = {"BEGIN IMMEDIATE", "COMMIT",
                                        "ROLLBACK"};
    static const char *const inner[] = {"SAVEPOINT s%d", "RELEASE s%d",
                                        "ROLLBACK TO s%d"};
    char sql[40];
    assert(depth < TXN_DEPTH);
    sqlite3_stmt **q = &st->txns[depth][kind];
    snprintf(sql, sizeof(sql), depth ? inner[kind] : outer[kind], depth);
    if (!*q && sqlite3_prepare_v3(st->db, sql, -1, SQLITE_PREPARE_PERSISTENT, q,
                                  NULL) != SQLITE_OK)
        return db_error(st, sql, err);
    int r = sqlite3_step(*q) == SQLITE_DONE ? 0 : db_error(st, sql, err);
    sqlite3_reset(*q);
    return r;
}

int txn_begin(struct txn *txn, struct store *st, struct err *err)
{
    int r;
    if (st->depth == 0) {
        if (st->full)
            fold_back(st);
        r = txn_exec(st, 0, TXN_BEGIN, err);
    } else if (sqlite3_get_autocommit(st->db)) {
        /* a savepoint alone would commit on its release */
        return err_set(err, ERR_DB, "%s: the transaction was rolled back",
                       st->path);
    } else {
        r = txn_exec(st, st->depth, TXN_BEGIN, err);
    }
    if (r < 0)
        return r;
    txn->st = st;
    txn->depth = ++st->depth;
    return 0;
}

int txn_commit(struct txn *txn, struct err *err)
{
    struct store *st = txn->st;
    assert(st && txn->depth == st->depth);
    int r = txn_exec(st, txn->depth - 1, TXN_COMMIT, err);
    if (r < 0)
        return r; /* txn_end rolls back */
    st->depth--;
    txn->st = NULL;
    return 0;
}

bool txn_lost(const struct txn *txn)
{
    return txn->st && sqlite3_get_autocommit(txn->st->db);
}

void txn_end(struct txn *txn)
{
    struct store *st = txn->st;
    if (!st)
        return;
    assert(txn->depth == st->depth);
    st->depth--;
    txn->st = NULL;
    /* SQLite may have rolled all of it back itself (disk full, I/O error) */
    if (sqlite3_get_autocommit(st->db))
        return;
    struct err none;
    txn_exec(st, txn->depth - 1, TXN_UNDO, &none);
    if (txn->depth == 1)
        st->notices = 0;
    else
        txn_exec(st, txn->depth - 1, TXN_COMMIT, &none);
}

/* ---- statements ---- */

struct stmt stmt_use(struct store *st, enum sql_id id)
{
    struct stmt q = {.st = st, .id = id};
    assert(!st->used[id]); /* a noun called itself with its statement open */
    if (!st->stmts[id])
        q.bad =
            sqlite3_prepare_v3(st->db, sql_text[id], -1,
                               SQLITE_PREPARE_PERSISTENT, &st->stmts[id], NULL);
    q.h = st->stmts[id];
    st->used[id] = true;
    return q;
}

void stmt_end(struct stmt *q)
{
    if (!q->st)
        return;
    if (q->h) {
        sqlite3_reset(q->h);
        sqlite3_clear_bindings(q->h);
    }
    q->st->used[q->id] = false;
    q->st = NULL;
    q->h = NULL;
}

static void bound(struct stmt *q, int rc)
{
    if (rc != SQLITE_OK && !q->bad)
        q->bad = rc;
}

static int place(struct stmt *q, const char *name)
{
    if (!q->h)
        return 0;
    int i = sqlite3_bind_parameter_index(q->h, name);
    assert(i);
    if (!i)
        bound(q, SQLITE_RANGE);
    return i;
}

void stmt_int(struct stmt *q, const char *name, int64_t v)
{
    int i = place(q, name);
    if (i)
        bound(q, sqlite3_bind_int64(q->h, i, v));
}

void stmt_real(struct stmt *q, const char *name, double v)
{
    int i = place(q, name);
    if (i) /* SQLite stores NaN as null */
        bound(q, sqlite3_bind_double(q->h, i, v));
}

/* Bytes of the UTF-8 sequence that begins at s; 0: none does. */
static size_t utf8_len(const unsigned char *s)
{
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
               : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
               : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

/* A sentence that was cut to fit may end inside a character, and what is no
 * UTF-8 could never be answered as JSON: such bytes become '?'. */
static void utf8_mend(char *s)
{
    for (unsigned char *p = (unsigned char *)s; *p;) {
        size_t n = utf8_len(p);
        if (!n)
            *p = '?';
        p += n ? n : 1;
    }
}

void stmt_text(struct stmt *q, const char *name, const char *v)
{
    int i = place(q, name);
    if (!i)
        return;
    char *own = v ? strdup(v) : NULL;
    if (own)
        utf8_mend(own);
    bound(q, own ? sqlite3_bind_text(q->h, i, own, -1, free)
             : v ? SQLITE_NOMEM
                 : sqlite3_bind_null(q->h, i));
}

void stmt_blob(struct stmt *q, const char *name, const void *v, size_t len)
{
    int i = place(q, name);
    if (i) /* static: the caller's bytes outlive the statement's run */
        bound(q, sqlite3_bind_blob64(q->h, i, v ? v : "", len, SQLITE_STATIC));
}

void stmt_null(struct stmt *q, const char *name)
{
    int i = place(q, name);
    if (i)
        bound(q, sqlite3_bind_null(q->h, i));
}

void stmt_json(struct stmt *q, const char *name, const json_t *v)
{
    if (!v || json_is_null(v)) {
        stmt_null(q, name);
        return;
    }
    int i = place(q, name);
    if (!i)
        return;
    char *text =
        json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    bound(q, text ? sqlite3_bind_text(q->h, i, text, -1, free) : SQLITE_NOMEM);
}

int stmt_row(struct stmt *q, struct err *err)
{
    if (!q->h)
        return db_error(q->st, sql_text[q->id], err);
    if (q->bad)
        return err_set(err, ERR_DB, "%s: %s", sqlite3_errstr(q->bad),
                       sql_text[q->id]);
    int rc = sqlite3_step(q->h);
    if (rc == SQLITE_ROW)
        return 1;
    return rc == SQLITE_DONE ? 0 : db_error(q->st, sql_text[q->id], err);
}

int64_t stmt_run(struct stmt *q, struct err *err)
{
    int r;
    while ((r = stmt_row(q, err)) > 0)
        ;
    if (r < 0)
        return r;
    int64_t changed = sqlite3_changes64(q->st->db);
    sqlite3_reset(q->h);
    return changed;
}

bool col_null(const struct stmt *q, int i)
{
    return sqlite3_column_type(q->h, i) == SQLITE_NULL;
}

int64_t col_int(const struct stmt *q, int i)
{
    return sqlite3_column_int64(q->h, i);
}

double col_real(const struct stmt *q, int i)
{
    return sqlite3_column_double(q->h, i);
}

const char *col_text(const struct stmt *q, int i)
{
    const char *s = (const char *)sqlite3_column_text(q->h, i);
    return s ? s : "";
}

const void *col_blob(const struct stmt *q, int i, size_t *ret_len)
{
    const void *data = sqlite3_column_blob(q->h, i);
    *ret_len = (size_t)sqlite3_column_bytes(q->h, i);
    return data ? data : "";
}

json_t *col_json(const struct stmt *q, int i)
{
    if (col_null(q, i))
        return NULL;
    return json_loads(col_text(q, i), JSON_DECODE_ANY, NULL);
}

json_t *col_text_or_null(const struct stmt *q, int i)
{
    return col_null(q, i) ? json_null() : json_string(col_text(q, i));
}

json_t *col_int_or_null(const struct stmt *q, int i)
{
    return col_null(q, i) ? json_null() : json_integer(col_int(q, i));
}

json_t *col_json_or_null(const struct stmt *q, int i)
{
    return col_null(q, i) ? json_null() : col_json(q, i);
}

int64_t store_last_id(struct store *st)
{
    return sqlite3_last_insert_rowid(st->db);
}

void store_notify(struct store *st, unsigned bits)
{
    st->notices |= bits;
}

unsigned store_take_notices(struct store *st)
{
    unsigned bits = st->notices;
    st->notices = 0;
    return bits;
}
