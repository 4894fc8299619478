#include "server/store_db.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static const char *const sql_text[SQL_COUNT] = {
#define SQL(name, text) [SQL_##name] = text,
#include "server/sql.h"
#undef SQL
};

int db_error(struct store *st, const char *what, struct err *err)
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

int db_exec(struct store *st, const char *sql, struct err *err)
{
    if (sqlite3_exec(st->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return db_error(st, sql, err);
    return 0;
}

int db_int(struct store *st, const char *sql, int64_t *ret, struct err *err)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(st->db, sql, -1, &q, NULL) != SQLITE_OK)
        return db_error(st, sql, err);
    int rc = sqlite3_step(q);
    *ret = rc == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    sqlite3_finalize(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : db_error(st, sql, err);
}

const char *store_dir(const struct store *st)
{
    return st->dir;
}

/* Twice the WAL of checkpoints.db: to fold it back takes as much again. */
int64_t store_spare = 16 << 20;

int (*store_statvfs)(const char *path, struct statvfs *ret) = statvfs;

int store_left(struct store *chunks, int64_t *ret, struct err *err)
{
    struct statvfs fs;
    if (store_statvfs(chunks->dir, &fs) < 0) {
        *ret = INT64_MAX / 4; /* not known: writing will show */
        return 0;
    }
    int64_t free = (int64_t)((uint64_t)fs.f_bavail * fs.f_frsize) - store_spare;
    if (free > 0) { /* what goes into free pages goes through the WAL first */
        CLEANUP(stmt_end)
        struct stmt q = stmt_use(chunks, SQL_CHUNK_PAGES_FREE);
        int r = stmt_row(&q, err);
        if (r < 0)
            return r;
        free += col_int(&q, 0) * CHUNK_PAGE;
    }
    *ret = free;
    return 0;
}

int store_room(struct store *chunks, size_t more, struct err *err)
{
    int64_t free;
    int r = store_left(chunks, &free, err);
    if (r < 0 || free >= (int64_t)more)
        return r;
    err_set(err, ERR_NOSPACE,
            "%s: %" PRId64 " bytes are missing, for the last %d MiB of the "
            "disk are kept for what must still be written: make room there",
            chunks->dir, (int64_t)more - free, (int)(store_spare >> 20));
    if (err)
        err->missing_bytes = (int64_t)more - free;
    return ERR_NOSPACE;
}

int64_t store_free(const struct store *st)
{
    struct statvfs fs;
    return statvfs(st->dir, &fs) < 0
               ? -1
               : (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
}

void store_sizes(const struct store *st, struct store_sizes *ret)
{
    AUTO_FREE char *wal = NULL;
    struct stat sb;
    *ret = (struct store_sizes){0};
    if (stat(st->path, &sb) == 0)
        ret->db_bytes = sb.st_size;
    if (asprintf(&wal, "%s-wal", st->path) < 0)
        wal = NULL;
    else if (stat(wal, &sb) == 0)
        ret->wal_bytes = sb.st_size;
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
