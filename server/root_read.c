/* root_read.c - a file below a root is read through, and what is known of those
 * that were (root.h). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/seekable.h"
#include "schema/unpack.h"
#include "server/intake.h"
#include "server/root.h"
#include "server/root_part.h"

#define PIECE ((size_t)1 << 20)
#define SETTLED_NS 2000000000LL /* no file system's clock is coarser */

/* A file's text, from any place in it. */
struct text {
    int fd;
    struct seekable *frames; /* NULL: plain */
    int64_t bytes;
    const char *name;
};

static void text_release(struct text *t)
{
    seekable_close(t->frames);
    t->frames = NULL;
}

static int64_t text_read(struct text *t, int64_t offset, char *out, size_t len,
                         struct err *err)
{
    if (offset >= t->bytes)
        return 0;
    if ((int64_t)len > t->bytes - offset)
        len = (size_t)(t->bytes - offset);
    if (t->frames) {
        int64_t n = seekable_read(t->frames, offset, out, len, err);
        if (n < 0 && n != ERR_NOMEM) {
            struct err why = *err;
            return root_blame(err, t->name, offset, "is damaged: %.300s",
                              why.text);
        }
        return n;
    }
    ssize_t n;
    while ((n = pread(t->fd, out, len, (off_t)offset)) < 0 && errno == EINTR)
        ;
    if (n < 0)
        return err_set(err, ERR_IO, "shard '%.400s': %s", t->name,
                       strerror(errno));
    if (n == 0)
        return root_blame(err, t->name, offset,
                          "became shorter while it was read: it ends at offset "
                          "%" PRId64,
                          offset);
    return n;
}

/* Where the last line ends that has an end. */
static int find_end(struct text *t, char *piece, int64_t *ret, struct err *err)
{
    int64_t end = t->bytes;
    while (end > 0) {
        int64_t begin = end > (int64_t)PIECE ? end - (int64_t)PIECE : 0;
        for (int64_t at = begin; at < end;) {
            int64_t n =
                text_read(t, at, piece + (at - begin), (size_t)(end - at), err);
            if (n < 0)
                return (int)n;
            at += n;
        }
        for (int64_t i = end - begin; i > 0; i--)
            if (piece[i - 1] == '\n') {
                *ret = begin + i;
                return 0;
            }
        end = begin;
    }
    *ret = 0;
    return 0;
}

struct reading {
    const char *dir, *root, *name;
    root_stop_fn *stop;
    root_progress_fn *progress;
    void *arg;
    char *piece; /* PIECE bytes */
};

static int stopped(struct err *err)
{
    return err_set(err, ERR_BUSY, "stopped");
}

/* What is derived of data leaves the disk's last to what must still be written. */
static int room(const char *dir, struct err *err)
{
    struct statvfs fs;
    if (store_statvfs(dir, &fs) < 0)
        return 0; /* not known: writing will show */
    int64_t left = (int64_t)((uint64_t)fs.f_bavail * fs.f_frsize) - store_spare;
    return left > 0 ? 0
                    : err_set(err, ERR_NOSPACE,
                              "no room for what is derived of it: the last %d "
                              "MiB of the disk of %s are kept for what must "
                              "still be written",
                              (int)(store_spare >> 20), dir);
}

/* ---- a copy, of what cannot be read from the middle ---- */

struct copying {
    struct seekable_writer *writer;
    struct unpack *unpack;
};

static void copying_release(struct copying *c)
{
    seekable_writer_free(c->writer);
    unpack_free(c->unpack);
}

static int copy_text(void *arg, const char *text, size_t len, struct err *err)
{
    struct copying *c = arg;
    return seekable_write(c->writer, text, len, err);
}

/* What a packed file holds becomes frames in `to`. */
static int reframe(const struct reading *in, int from, int to,
                   enum packing packing, struct err *err)
{
    CLEANUP(copying_release) struct copying c = {0};
    int64_t at = 0, stored;
    int r = unpack_new(packing, &c.unpack, err);
    if (r >= 0)
        r = seekable_writer_new(to, &c.writer, err);
    while (r >= 0) {
        ssize_t n = pread(from, in->piece, PIECE, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "shard '%.400s': %s", in->name,
                           strerror(errno));
        if (n == 0)
            break;
        if (in->stop && in->stop(in->arg))
            return stopped(err);
        r = room(in->dir, err);
        if (r < 0)
            return r;
        r = unpack_add(c.unpack, in->piece, (size_t)n, copy_text, &c, err);
        at += n;
        if (in->progress)
            in->progress(in->arg, at / 2); /* it is read once more */
    }
    if (r >= 0)
        r = unpack_end(c.unpack, err);
    if (r == ERR_DATA) {
        struct err why = *err;
        return root_blame(err, in->name, why.offset,
                          "is damaged, or was not complete yet: %.300s. Write "
                          "it under another name and rename it when it is "
                          "whole",
                          why.text);
    }
    if (r >= 0)
        r = seekable_writer_end(c.writer, &stored, err);
    if (r >= 0 && fsync(to) < 0)
        r = err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                    "cannot store a copy of shard '%.400s': %s", in->name,
                    strerror(errno));
    return r;
}

static int make_copy(const struct reading *in, int from, enum packing packing,
                     char **ret_path, int *ret_fd, struct err *err)
{
    char *path = NULL;
    if (asprintf(&path, "%s/tmp/copy-XXXXXX", in->dir) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        int r = err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                        "cannot make %s: %s", path, strerror(errno));
        free(path);
        return r;
    }
    *ret_path = path;
    *ret_fd = fd;
    return reframe(in, from, fd, packing, err);
}

/* ---- one file ---- */

void root_read_release(struct root_read *r)
{
    if (r->copy)
        unlink(r->copy);
    free(r->copy);
    intake_free(r->intake);
    *r = (struct root_read){0};
}

/* The file as it is, or a copy of its text: *text can be read anywhere. `copy`:
 * its table of frames is not to be trusted. */
static int open_text(const struct reading *in, int fd, const struct stat *st,
                     bool copy, int *copy_fd, struct text *text,
                     struct root_read *ret, struct err *err)
{
    char head[4];
    ssize_t n = pread(fd, head, sizeof(head), 0);
    if (n < 0)
        return err_set(err, ERR_IO, "shard '%.400s': %s", in->name,
                       strerror(errno));
    enum packing packing = packing_of(head, (size_t)n);
    enum packing says = packing_of_name(in->name);
    *text = (struct text){.fd = fd, .bytes = st->st_size, .name = in->name};
    if (n > 0 && says != PACKING_NONE && packing != says)
        return root_blame(err, in->name, 0, "is named %s, but is not",
                          says == PACKING_GZIP ? ".gz" : ".zst");
    ret->form = packing == PACKING_NONE ? "plain" : "zstd";
    if (packing == PACKING_NONE)
        return 0;
    struct err why = {0};
    int r = packing == PACKING_ZSTD && !copy
                ? seekable_open(fd, &text->frames, &why)
                : ERR_CORRUPT;
    if (r < 0 && r != ERR_CORRUPT && r != ERR_TOO_LARGE) {
        *err = why;
        return r;
    }
    if (r < 0) {
        r = make_copy(in, fd, packing, &ret->copy, copy_fd, err);
        if (r >= 0)
            r = seekable_open(*copy_fd, &text->frames, err);
    }
    if (r >= 0)
        text->bytes = seekable_bytes(text->frames);
    return r;
}

static int take_in(const struct reading *in, struct text *text, int64_t end,
                   int64_t file_bytes, bool again, struct intake *to,
                   struct err *err)
{
    int64_t at = 0;
    while (at < end) {
        size_t want = end - at < (int64_t)PIECE ? (size_t)(end - at) : PIECE;
        if (in->stop && in->stop(in->arg))
            return stopped(err);
        int r = room(in->dir, err);
        int64_t n = r < 0 ? r : text_read(text, at, in->piece, want, err);
        if (n < 0)
            return (int)n;
        r = intake_add(to, in->piece, (size_t)n, err);
        if (r < 0)
            return r;
        at += n;
        double part = (double)at / (double)end;
        if (in->progress)
            in->progress(in->arg, (int64_t)((double)file_bytes *
                                            (again ? (1 + part) / 2 : part)));
    }
    return intake_end(to, err);
}

int root_intake(const char *dir, struct intake **ret, struct err *err)
{
    AUTO_FREE char *path = NULL;
    if (asprintf(&path, "%s/tmp/index-XXXXXX", dir) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    int fd = mkostemp(path, O_CLOEXEC); /* its name is ours from now on */
    if (fd < 0)
        return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                       "cannot make %s: %s", path, strerror(errno));
    close(fd);
    return intake_new(path, NULL, ret, err);
}

/* What is to be known of a text, up to its last newline. */
static int read_text(const struct reading *in, const struct stat *st,
                     struct text *text, struct root_read *ret, struct err *err)
{
    int64_t end = 0;
    int r = find_end(text, in->piece, &end, err);
    if (r >= 0)
        r = root_intake(in->dir, &ret->intake, err);
    if (r >= 0)
        r = take_in(in, text, end, st->st_size, ret->copy != NULL, ret->intake,
                    err);
    return r;
}

int root_read_file(const char *dir, const char *root, const char *name,
                   root_stop_fn *stop, root_progress_fn *progress, void *arg,
                   struct root_read *ret, struct err *err)
{
    AUTO_FREE char *piece = malloc(PIECE);
    CLEANUP(root_read_release) struct root_read read = {0};
    CLEANUP(text_release) struct text text = {0};
    AUTO_FD int copy_fd = -1;
    struct reading in = {dir, root, name, stop, progress, arg, piece};
    struct stat st;
    if (!piece)
        return err_set(err, ERR_NOMEM, "no memory to read a shard");
    AUTO_FD int fd = root_open(root, name, &st, err);
    if (fd < 0)
        return fd;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    read.file_bytes = st.st_size;
    read.mtime_ns = root_mtime_ns(&st);
    read.inode = (int64_t)st.st_ino;
    read.settled =
        (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - read.mtime_ns >
        SETTLED_NS;
    struct err why = {0};
    int r = open_text(&in, fd, &st, false, &copy_fd, &text, &read, &why);
    if (r >= 0)
        r = read_text(&in, &st, &text, &read, &why);
    if (r == ERR_DATA && text.frames && !read.copy) {
        /* its table may be wrong, and the stream whole */
        text_release(&text);
        intake_free(read.intake);
        read.intake = NULL;
        r = open_text(&in, fd, &st, true, &copy_fd, &text, &read, err);
        if (r >= 0)
            r = read_text(&in, &st, &text, &read, err);
    } else if (r < 0) {
        *err = why;
    }
    if (r < 0)
        return r;
    int64_t records = read.intake->records;
    *ret = read;
    read = (struct root_read){0};
    return records > 0;
}

/* ---- what is known ---- */

static int sync_folder(const char *path, struct err *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                       "cannot sync %s: %s", path, strerror(errno));
    return 0;
}

/* DIR/copies/<sha256>.zst, in place of one that is there: that may be damaged. */
static int publish_copy(struct store *st, struct root_read *read, char *rel,
                        size_t cap, struct err *err)
{
    AUTO_FREE char *folder = NULL, *path = NULL;
    snprintf(rel, cap, "copies/%s.zst", read->intake->sha256);
    if (asprintf(&folder, "%s/copies", store_dir(st)) < 0 ||
        asprintf(&path, "%s/%s", store_dir(st), rel) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                       "cannot make %s: %s", folder, strerror(errno));
    if (rename(read->copy, path) < 0)
        return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                       "cannot publish %s: %s", path, strerror(errno));
    free(read->copy);
    read->copy = NULL;
    /* a row must not name a file that a power cut takes away */
    int r = sync_folder(folder, err);
    return r < 0 ? r : sync_folder(store_dir(st), err);
}

static int undoom(struct store *st, const char *path, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DOOMED_DROP);
    stmt_text(&q, ":path", path);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* The index and the copy of a row that goes are let go of, unless another one
 * has them. */
static int let_go(struct store *st, const char *root, const char *name,
                  struct err *err)
{
    for (int i = 0; i < 2; i++) {
        CLEANUP(stmt_end)
        struct stmt q =
            stmt_use(st, i ? SQL_ROOT_DOOM_COPY : SQL_ROOT_DOOM_INDEX);
        stmt_text(&q, ":root", root);
        stmt_text(&q, ":name", name);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return 0;
}

int root_keep(struct store *st, const char *root, const char *name,
              struct root_read *read, struct err *err)
{
    char copy[96] = "", index[80];
    struct intake *t = read->intake;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = let_go(st, root, name, err);
    if (r >= 0)
        r = intake_publish(t, store_dir(st), err);
    if (r >= 0 && read->copy)
        r = publish_copy(st, read, copy, sizeof(copy), err);
    snprintf(index, sizeof(index), "index/%s", t->sha256);
    if (r >= 0)
        r = undoom(st, index, err);
    if (r >= 0 && copy[0])
        r = undoom(st, copy, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *blocks = json_array();
    for (size_t i = 0; i < t->n_blocks; i++)
        json_array_append_new(blocks, json_string(t->blocks[i]));
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ROOT_FILE_PUT);
    stmt_text(&q, ":root", root);
    stmt_text(&q, ":name", name);
    stmt_int(&q, ":file_bytes", read->file_bytes);
    stmt_int(&q, ":mtime_ns", read->mtime_ns);
    stmt_int(&q, ":inode", read->inode);
    stmt_int(&q, ":settled", read->settled);
    stmt_text(&q, ":form", read->form);
    stmt_text(&q, ":copy", copy[0] ? copy : NULL);
    stmt_int(&q, ":bytes", t->bytes);
    stmt_int(&q, ":lines", t->lines);
    stmt_int(&q, ":records", t->records);
    stmt_text(&q, ":sha256", t->sha256);
    stmt_json(&q, ":blocks", blocks);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : txn_commit(&txn, err);
}

int root_is_known(struct store *st, const char *root, const struct root_file *f,
                  bool sure, bool *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ROOT_FILE_KNOWN);
    stmt_text(&q, ":root", root);
    stmt_text(&q, ":name", f->name);
    stmt_int(&q, ":file_bytes", f->bytes);
    stmt_int(&q, ":mtime_ns", f->mtime_ns);
    stmt_int(&q, ":inode", f->inode);
    stmt_int(&q, ":settled", sure);
    int r = stmt_row(&q, err);
    *ret = r > 0;
    if (r > 0 && !col_null(&q, 0)) {
        AUTO_FREE char *path = NULL;
        struct stat sb;
        if (asprintf(&path, "%s/%s", store_dir(st), col_text(&q, 0)) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a path");
        *ret = stat(path, &sb) == 0 && S_ISREG(sb.st_mode);
    }
    return r < 0 ? r : 0;
}

static int by_name(const void *key, const void *file)
{
    return strcmp(key, ((const struct root_file *)file)->name);
}

int root_forget(struct store *st, const char *root,
                const struct root_files *there, struct err *err)
{
    AUTO_JSON json_t *gone = json_array();
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ROOT_FILE_NAMES);
        stmt_text(&q, ":root", root);
        int r;
        while ((r = stmt_row(&q, err)) > 0)
            if (root_matches(NULL, col_text(&q, 0)) &&
                !bsearch(col_text(&q, 0), there->v, there->n, sizeof(*there->v),
                         by_name))
                json_array_append_new(gone, json_string(col_text(&q, 0)));
        if (r < 0)
            return r;
    }
    size_t i;
    json_t *name;
    json_array_foreach(gone, i, name)
    {
        int r = let_go(st, root, json_string_value(name), err);
        if (r < 0)
            return r;
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ROOT_FILE_DROP);
        stmt_text(&q, ":root", root);
        stmt_text(&q, ":name", json_string_value(name));
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return 0;
}

/* ---- copies that nothing names ---- */

static void dir_close(DIR **d)
{
    if (*d)
        closedir(*d);
}

int root_sweep_copies(struct store *st, struct err *err)
{
    AUTO_FREE char *folder = NULL;
    if (asprintf(&folder, "%s/copies", store_dir(st)) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    CLEANUP(dir_close) DIR *dir = opendir(folder);
    const struct dirent *e;
    int n = 0;
    while (dir && (e = readdir(dir))) {
        if (e->d_name[0] == '.')
            continue;
        char rel[300];
        snprintf(rel, sizeof(rel), "copies/%s", e->d_name);
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ROOT_COPY_USED);
        stmt_text(&q, ":copy", rel);
        int r = stmt_row(&q, err);
        if (r < 0)
            return r;
        if (r == 0 && unlinkat(dirfd(dir), e->d_name, 0) == 0)
            n++;
    }
    return n;
}
