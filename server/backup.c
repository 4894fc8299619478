#include "server/backup.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "server/httpd.h"
#include "server/server.h"
#include "server/store.h"

#define CHUNKS_AT_ONCE 32      /* of a transaction of the copy */
#define PART ((size_t)1 << 18) /* read and sent at a time */

struct backups {
    struct server *server;
    pthread_mutex_t mutex;
    pthread_cond_t less; /* of copying */
    int copying, open;
    int64_t turn; /* grows when a copy begins */
    int64_t made; /* names folders */
};

struct part { /* a file in the tar */
    char *name, *path;
    int fd; /* of the copies, which have no name any more; else -1 */
    int64_t bytes;
    struct timespec mtime;
};

struct backup {
    struct backups *all;
    char *folder; /* DIR/tmp/backup-N */
    atomic_bool stop;
    /* under the mutex of all: the request and the thread have it, and what the
     * thread leaves */
    int refs;
    bool over;
    int result;
    struct err err;
    int64_t taken_ms;
    /* in the order of the tar */
    struct part *parts;
    size_t n_parts, next;
    /* the tar under way */
    struct archive *tar;
    struct buf *out; /* of the call of the moment */
    int fd;
    int64_t left;
    bool ended;
    char data[PART];
};

/* ---- those of a server ---- */

int backups_new(struct server *s, struct backups **ret, struct err *err)
{
    struct backups *b = calloc(1, sizeof(*b));
    if (!b)
        return err_set(err, ERR_NOMEM, "no memory for backups");
    b->server = s;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->less, NULL);
    *ret = b;
    return 0;
}

void backups_free(struct backups *b)
{
    if (!b)
        return;
    /* the requests are gone, and the server stops: so will their threads */
    pthread_mutex_lock(&b->mutex);
    while (b->open > 0)
        pthread_cond_wait(&b->less, &b->mutex);
    pthread_mutex_unlock(&b->mutex);
    pthread_mutex_destroy(&b->mutex);
    pthread_cond_destroy(&b->less);
    free(b);
}

int64_t backups_turn(struct backups *b)
{
    pthread_mutex_lock(&b->mutex);
    int64_t turn = b->copying ? -1 : b->turn;
    pthread_mutex_unlock(&b->mutex);
    return turn;
}

bool backups_may_sweep(struct backups *b, int64_t turn)
{
    pthread_mutex_lock(&b->mutex);
    bool may = !b->copying && b->turn == turn;
    pthread_mutex_unlock(&b->mutex);
    return may;
}

/* ---- copying, on the backup's own thread ---- */

static bool stopped(void *arg)
{
    struct backup *b = arg;
    return atomic_load(&b->stop) || atomic_load(&b->all->server->shutting_down);
}

static int go_on(struct backup *b, struct err *err)
{
    return stopped(b) ? err_set(err, ERR_BUSY, "the backup was broken off") : 0;
}

static int room(struct store *st, int64_t bytes, const char *what,
                struct err *err)
{
    int64_t free = store_free(st);
    int64_t missing = bytes + store_spare - free;
    if (free < 0 || missing <= 0)
        return 0;
    int r = err_set(err, ERR_NOSPACE,
                    "no room for a copy of %s in %s/tmp: %" PRId64
                    " bytes are missing",
                    what, store_dir(st), missing);
    if (err)
        err->missing_bytes = missing;
    return r;
}

static int add_part(struct backup *b, const char *name, const char *path,
                    int fd, struct err *err)
{
    struct part *more = realloc(b->parts, (b->n_parts + 1) * sizeof(*more));
    if (!more)
        return err_set(err, ERR_NOMEM, "no memory for a backup");
    b->parts = more;
    struct part *p = &b->parts[b->n_parts];
    struct stat sb;
    *p = (struct part){.fd = -1, .name = strdup(name)};
    p->path = path ? strdup(path) : NULL;
    b->n_parts++;
    if (!p->name || (path && !p->path))
        return err_set(err, ERR_NOMEM, "no memory for a backup");
    if ((fd >= 0 ? fstat(fd, &sb) : stat(path, &sb)) < 0)
        return err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
    p->bytes = sb.st_size;
    p->mtime = sb.st_mtim;
    p->fd = fd;
    return 0;
}

/* The copy at `path` is whole: from here on only we have it. */
static int add_copy(struct backup *b, const char *name, const char *path,
                    struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    unlink(path);
    int r = add_part(b, name, NULL, fd, err);
    if (r < 0)
        close(fd);
    return r;
}

/* What must not be taken over from the server that goes on. */
static int disown(struct store *copy, int64_t now_ms, struct err *err)
{
    static const enum sql_id all[] = {SQL_BACKUP_SESSIONS, SQL_BACKUP_WORKERS,
                                      SQL_BACKUP_IDS};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(copy, all[i]);
        if (all[i] == SQL_BACKUP_WORKERS)
            stmt_int(&q, ":now", now_ms);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return 0;
}

struct names { /* digests of chunks, 32 bytes each */
    struct buf sha;
    int64_t bytes; /* of all that are there */
};

static int find_chunks(struct store *copy, struct store *chunks,
                       struct names *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(copy, SQL_BACKUP_CHUNKS);
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        size_t len;
        const void *sha = col_blob(&q, 0, &len);
        CLEANUP(stmt_end) struct stmt f = stmt_use(chunks, SQL_CHUNK_FIND);
        stmt_blob(&f, ":sha", sha, len);
        r = stmt_row(&f, err);
        if (r < 0)
            return r;
        if (r > 0) /* one that was lost is missing in the copy, too */
            ret->bytes += col_int(&f, 0);
        if (r > 0 && buf_add(&ret->sha, sha, len) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a backup");
    }
    return r;
}

/* Each chunk is read by itself: the WAL waits for none of this. */
static int copy_chunk(struct store *chunks, struct store *to, const char *sha,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt from = stmt_use(chunks, SQL_CHUNK_READ);
    stmt_blob(&from, ":sha", sha, DIGEST_BYTES);
    int r = stmt_row(&from, err);
    if (r <= 0)
        return r;
    size_t len;
    const void *data = col_blob(&from, 0, &len);
    CLEANUP(stmt_end) struct stmt q = stmt_use(to, SQL_CHUNK_ADD);
    stmt_blob(&q, ":sha", sha, DIGEST_BYTES);
    stmt_int(&q, ":bytes", (int64_t)len);
    stmt_blob(&q, ":data", data, len);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int copy_chunks(struct backup *b, struct store *chunks, struct store *to,
                       const struct names *names, struct err *err)
{
    size_t n = names->sha.len / DIGEST_BYTES;
    for (size_t i = 0; i < n; i += CHUNKS_AT_ONCE) {
        CLEANUP(txn_end) struct txn txn = TXN_INIT;
        int r = go_on(b, err);
        if (r >= 0)
            r = txn_begin(&txn, to, err);
        for (size_t k = i; k < n && k < i + CHUNKS_AT_ONCE && r >= 0; k++)
            r = copy_chunk(chunks, to, names->sha.data + k * DIGEST_BYTES, err);
        if (r >= 0)
            r = txn_commit(&txn, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int make_chunks(struct backup *b, struct store *copy,
                       struct store *chunks, const char *path, struct err *err)
{
    CLEANUP(buf_release) struct buf owner = {0};
    struct names names = {0};
    struct store *to = NULL;
    int r = find_chunks(copy, chunks, &names, err);
    owner = names.sha;
    /* a chunk of 1 MiB takes 17 pages of 64 KiB */
    if (r >= 0)
        r = room(chunks, names.bytes + names.bytes / 8 + (1 << 20),
                 "checkpoints.db", err);
    if (r >= 0)
        r = store_copy_chunks(chunks, path, &to, err);
    if (r >= 0)
        r = copy_chunks(b, chunks, to, &names, err);
    store_close(to);
    return r;
}

/* Was a shard of that name removed and another put since the copy was made? */
static int check_shard(struct store *st, const char *dataset, const char *shard,
                       const char *sha256, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_BACKUP_SHARD_NOW);
    stmt_text(&q, ":dataset", dataset);
    stmt_text(&q, ":shard", shard);
    int r = stmt_row(&q, err);
    if (r <= 0 || !strcmp(col_text(&q, 0), sha256))
        return r < 0 ? r : 0;
    return err_set(
        err, ERR_BUSY,
        "shard '%s' of dataset '%s' was replaced just now: try again", shard,
        dataset);
}

static int link_shards(struct backup *b, struct store *st, struct store *copy,
                       struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(copy, SQL_BACKUP_SHARDS);
    int r;
    for (int64_t n = 0; (r = stmt_row(&q, err)) > 0; n++) {
        AUTO_FREE char *name = NULL, *from = NULL, *to = NULL;
        if (asprintf(&name, "datasets/%s/%s", col_text(&q, 0),
                     col_text(&q, 1)) < 0 ||
            asprintf(&from, "%s/%s", b->all->server->dir, name) < 0 ||
            asprintf(&to, "%s/%" PRId64, b->folder, n) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a backup");
        if (link(from, to) < 0) {
            if (errno == ENOENT) /* lost here, too */
                continue;
            return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                           "%s: no second link to it: %s", from,
                           strerror(errno));
        }
        r = add_part(b, name, to, -1, err);
        if (r >= 0) /* with the link it can no longer be replaced */
            r = check_shard(st, col_text(&q, 0), col_text(&q, 1),
                            col_text(&q, 2), err);
        if (r >= 0)
            r = go_on(b, err);
        if (r < 0)
            return r;
    }
    return r;
}

/* Copies of files below a root, for cycles that have not ended: the file itself
 * may be another one by then. */
static int link_copies(struct backup *b, struct store *copy, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(copy, SQL_BACKUP_COPIES);
    int r;
    for (int64_t n = 0; (r = stmt_row(&q, err)) > 0; n++) {
        AUTO_FREE char *from = NULL, *to = NULL;
        if (asprintf(&from, "%s/%s", b->all->server->dir, col_text(&q, 0)) <
                0 ||
            asprintf(&to, "%s/copy-%" PRId64, b->folder, n) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a backup");
        if (link(from, to) < 0) {
            if (errno == ENOENT) /* lost here, too */
                continue;
            return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                           "%s: no second link to it: %s", from,
                           strerror(errno));
        }
        r = add_part(b, col_text(&q, 0), to, -1, err);
        if (r >= 0)
            r = go_on(b, err);
        if (r < 0)
            return r;
    }
    return r;
}

static int copy_all(struct backup *b, struct err *err)
{
    struct store *st = NULL, *chunks = NULL, *copy = NULL;
    AUTO_FREE char *db = NULL, *chunk_db = NULL;
    if (asprintf(&db, "%s/pawl.db", b->folder) < 0 ||
        asprintf(&chunk_db, "%s/checkpoints.db", b->folder) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a backup");
    if (mkdir(b->folder, 0700) < 0)
        return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO, "%s: %s",
                       b->folder, strerror(errno));
    struct store_sizes sizes;
    int r = store_open_reader(b->all->server->dir, false, &st, err);
    if (r >= 0)
        r = store_open_reader(b->all->server->dir, true, &chunks, err);
    if (r >= 0) {
        store_sizes(st, &sizes);
        r = room(st, sizes.db_bytes + sizes.wal_bytes, "pawl.db", err);
    }
    if (r >= 0)
        r = store_copy(st, db, stopped, b, &copy, err);
    if (r >= 0)
        r = disown(copy, b->taken_ms, err);
    if (r >= 0)
        r = link_shards(b, st, copy, err);
    if (r >= 0)
        r = link_copies(b, copy, err);
    if (r >= 0)
        r = make_chunks(b, copy, chunks, chunk_db, err);
    store_close(copy);
    store_close(chunks);
    store_close(st);
    if (r >= 0)
        r = add_copy(b, "checkpoints.db", chunk_db, err);
    if (r >= 0)
        r = add_copy(b, "pawl.db", db, err);
    unlink(chunk_db);
    unlink(db);
    return r;
}

static void release(struct backup *b)
{
    if (b->tar) /* what it still wants to write is refused */
        archive_write_free(b->tar);
    if (b->fd >= 0)
        close(b->fd);
    for (size_t i = 0; i < b->n_parts; i++) {
        if (b->parts[i].fd >= 0)
            close(b->parts[i].fd);
        if (b->parts[i].path)
            unlink(b->parts[i].path);
        free(b->parts[i].path);
        free(b->parts[i].name);
    }
    free(b->parts);
    if (b->folder)
        rmdir(b->folder);
    free(b->folder);
    free(b);
}

/* The last of the two that have it lets go. */
static void drop(struct backup *b)
{
    struct backups *all = b->all;
    pthread_mutex_lock(&all->mutex);
    bool last = --b->refs == 0;
    pthread_mutex_unlock(&all->mutex);
    if (!last)
        return;
    release(b);
    pthread_mutex_lock(&all->mutex);
    all->open--;
    pthread_cond_broadcast(&all->less);
    pthread_mutex_unlock(&all->mutex);
}

static void copied(struct backup *b, int r, const struct err *err)
{
    struct backups *all = b->all;
    pthread_mutex_lock(&all->mutex);
    all->copying--;
    b->over = true;
    b->result = r;
    b->err = *err;
    pthread_mutex_unlock(&all->mutex);
}

static void *copy_main(void *arg)
{
    struct backup *b = arg;
    struct err err = {0};
    int r = copy_all(b, &err);
    copied(b, r, &err);
    if (b->all->server->httpd) /* none in a unit */
        httpd_notice(b->all->server->httpd, NOTIFY_BACKUP);
    drop(b);
    return NULL;
}

int backup_new(struct backups *all, struct backup **ret, struct err *err)
{
    struct backup *b = calloc(1, sizeof(*b));
    if (!b)
        return err_set(err, ERR_NOMEM, "no memory for a backup");
    b->all = all;
    b->fd = -1;
    b->refs = 2;
    b->taken_ms = server_wall_ms();
    pthread_mutex_lock(&all->mutex);
    bool full = all->open >= BACKUPS_MAX;
    if (!full) {
        all->open++;
        all->copying++;
        all->turn++;
    }
    int64_t n = ++all->made;
    pthread_mutex_unlock(&all->mutex);
    if (full) {
        free(b);
        return err_set(err, ERR_BUSY,
                       "%d backups are under way: try again once one is done",
                       BACKUPS_MAX);
    }
    if (asprintf(&b->folder, "%s/backup-%" PRId64, all->server->tmp_dir, n) < 0)
        b->folder = NULL;
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    bool started =
        b->folder && pthread_create(&thread, &attr, copy_main, b) == 0;
    pthread_attr_destroy(&attr);
    if (!started) {
        int r = err_set(err, ERR_NOMEM, "cannot start a backup's thread");
        copied(b, r, &(struct err){0});
        drop(b);
        drop(b);
        return r;
    }
    *ret = b;
    return 0;
}

int backup_ready(struct backup *b, struct err *err)
{
    pthread_mutex_lock(&b->all->mutex);
    bool over = b->over;
    pthread_mutex_unlock(&b->all->mutex);
    if (over && b->result < 0 && err)
        *err = b->err;
    return !over ? 0 : b->result < 0 ? b->result : 1;
}

void backup_free(void *arg)
{
    struct backup *b = arg;
    if (!b)
        return;
    atomic_store(&b->stop, true);
    drop(b);
}

/* ---- the tar ---- */

static la_ssize_t on_tar(struct archive *tar, void *arg, const void *data,
                         size_t len)
{
    struct backup *b = arg;
    if (!b->out || buf_add(b->out, data, len) < 0) {
        archive_set_error(tar, ENOMEM, "no memory for a backup");
        return -1;
    }
    return (la_ssize_t)len;
}

static int tar_error(struct backup *b, struct err *err)
{
    return err_set(err, ERR_IO, "the backup's tar: %s",
                   archive_error_string(b->tar));
}

static int tar_begin(struct backup *b, struct err *err)
{
    b->tar = archive_write_new();
    if (!b->tar)
        return err_set(err, ERR_NOMEM, "no memory for a backup");
    if (archive_write_set_format_pax_restricted(b->tar) != ARCHIVE_OK ||
        archive_write_set_bytes_per_block(b->tar, 0) != ARCHIVE_OK ||
        archive_write_open(b->tar, b, NULL, on_tar, NULL) != ARCHIVE_OK)
        return tar_error(b, err);
    return 0;
}

static int tar_header(struct backup *b, const struct part *p, struct err *err)
{
    struct archive_entry *e = archive_entry_new();
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for a backup");
    archive_entry_set_pathname(e, p->name);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0600);
    archive_entry_set_size(e, p->bytes);
    archive_entry_set_uid(e, geteuid());
    archive_entry_set_gid(e, getegid());
    archive_entry_set_mtime(e, p->mtime.tv_sec, p->mtime.tv_nsec);
    int rc = archive_write_header(b->tar, e);
    archive_entry_free(e);
    return rc == ARCHIVE_OK ? 0 : tar_error(b, err);
}

/* Open the next file; 0: there is none. */
static int next_part(struct backup *b, struct err *err)
{
    if (b->next == b->n_parts)
        return 0;
    struct part *p = &b->parts[b->next++];
    b->fd = p->fd >= 0 ? p->fd : open(p->path, O_RDONLY | O_CLOEXEC);
    p->fd = -1;
    if (b->fd < 0)
        return err_set(err, ERR_IO, "%s: %s", p->path, strerror(errno));
    b->left = p->bytes;
    int r = tar_header(b, p, err);
    return r < 0 ? r : 1;
}

static int some_data(struct backup *b, struct err *err)
{
    size_t want = b->left < (int64_t)PART ? (size_t)b->left : PART;
    ssize_t n = read(b->fd, b->data, want);
    const char *name = b->parts[b->next - 1].name;
    if (n < 0)
        return err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
    if (n == 0)
        return err_set(err, ERR_IO, "%s became shorter", name);
    if (archive_write_data(b->tar, b->data, (size_t)n) != n)
        return tar_error(b, err);
    b->left -= n;
    return 0;
}

static int part_over(struct backup *b, struct err *err)
{
    struct part *p = &b->parts[b->next - 1];
    close(b->fd);
    b->fd = -1;
    if (p->path) {
        unlink(p->path);
        free(p->path);
        p->path = NULL;
    }
    return archive_write_finish_entry(b->tar) == ARCHIVE_OK ? 0
                                                            : tar_error(b, err);
}

static int tar_end(struct backup *b, struct err *err)
{
    b->ended = true;
    return archive_write_close(b->tar) == ARCHIVE_OK ? 0 : tar_error(b, err);
}

int backup_next(struct backup *b, struct buf *out, struct err *err)
{
    int r = 0;
    b->out = out;
    if (!b->tar)
        r = tar_begin(b, err);
    size_t before = out->len;
    while (r >= 0 && !b->ended && out->len - before < PART) {
        if (b->fd < 0)
            r = next_part(b, err);
        if (b->fd < 0 && r == 0)
            r = tar_end(b, err);
        else if (r >= 0 && b->left > 0)
            r = some_data(b, err);
        if (r >= 0 && b->fd >= 0 && b->left == 0)
            r = part_over(b, err);
    }
    b->out = NULL;
    return r < 0 ? r : !b->ended;
}
