#include "server/upload.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/seekable.h"
#include "schema/wire.h"
#include "server/belt.h"

#define HEAD 6
#define SHORT (1 << 20) /* of such a text no other thread is worth it */
/* Dirty pages are handed to the disk as they come, not all at the end. */
#define WRITE_BACK (8 << 20)

struct upload_way {
    char *tmp_dir;
    unsigned char head[HEAD]; /* the first bytes of all */
    size_t n_head;
    struct unpack *unpack;
    struct digest *bytes, *part;
    struct belt *belt;              /* takes the text, once there is much */
    int64_t text_bytes;             /* so far, taken or not */
    struct seekable_writer *writer; /* frames are made; NULL: not (yet) */
    char *framed_path;              /* where, while fd holds bytes as sent */
    int framed_fd;
    int64_t replay;          /* bytes of text that frames are still made of */
    int64_t written, pushed; /* to fd */
};

static int io_error(struct err *err, const char *what)
{
    int e = errno;
    if (e == ENOSPC || e == EDQUOT)
        return err_set(err, ERR_NOSPACE, "no space left to store the upload");
    return err_set(err, ERR_IO, "cannot %s the upload: %s", what, strerror(e));
}

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for an upload");
}

static int begin_file(const char *tmp_dir, char **ret_path, int *ret_fd,
                      struct err *err)
{
    char *path = NULL;
    if (asprintf(&path, "%s/upload-XXXXXX", tmp_dir) < 0)
        return no_memory(err);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && mkdir(tmp_dir, 0700) == 0) {
        /* some cleaner took the folder */
        memcpy(path + strlen(path) - 6, "XXXXXX", 6);
        fd = mkostemp(path, O_CLOEXEC);
    }
    if (fd < 0) {
        int r = io_error(err, "begin");
        free(path);
        return r;
    }
    *ret_path = path;
    *ret_fd = fd;
    return 0;
}

int upload_new(const char *tmp_dir, const struct upload_plan *plan,
               struct upload **ret, struct err *err)
{
    struct upload *u = calloc(1, sizeof(*u));
    struct upload_way *way = calloc(1, sizeof(*way));
    AUTO_FREE char *index = NULL;
    if (!u || !way) {
        intake_rules_free(plan->rules);
        free(u);
        free(way);
        return no_memory(err);
    }
    u->fd = way->framed_fd = -1;
    u->total = -1;
    u->way = way;
    u->plan = *plan;
    u->framed = plan->packing != PACKING_NONE;
    u->plan.shard = plan->shard ? strdup(plan->shard) : NULL;
    way->tmp_dir = strdup(tmp_dir);
    int r = 0;
    if (!way->tmp_dir || (plan->shard && !u->plan.shard))
        r = no_memory(err);
    if (r >= 0)
        r = begin_file(tmp_dir, &u->path, &u->fd, err);
    if (r >= 0 && asprintf(&index, "%s.index", u->path) < 0)
        r = no_memory(err);
    if (r >= 0)
        r = intake_new(index, plan->rules, &u->text, err);
    if (r >= 0 && !(way->bytes = digest_new()))
        r = no_memory(err);
    if (r >= 0 && u->framed)
        r = unpack_new(plan->packing, &way->unpack, err);
    else if (r >= 0)
        intake_digest_elsewhere(u->text); /* that of the bytes is that of it */
    if (r >= 0 && plan->packing == PACKING_GZIP)
        r = seekable_writer_new(u->fd, &way->writer, err);
    if (r < 0) {
        upload_free(u);
        return r;
    }
    *ret = u;
    return 0;
}

int upload_part(struct upload *u, struct err *err)
{
    digest_free(u->way->part);
    u->way->part = digest_new();
    u->in_parts = true;
    return u->way->part ? 0 : no_memory(err);
}

size_t upload_rest(struct upload *u)
{
    struct upload_way *way = u->way;
    struct err err;
    if (way->belt && belt_wait(way->belt, &err) < 0)
        u->failed = true;
    belt_free(way->belt); /* another is begun when it goes on */
    way->belt = NULL;
    return sizeof(*u) + (way->unpack ? unpack_memory(way->unpack) : 0) +
           (way->writer ? seekable_writer_memory(way->writer) : 0) +
           intake_memory(u->text);
}

/* ---- the first bytes ---- */

static const struct {
    const char *name, *magic;
} compressed[] = {
    {"gzip", "\x1f\x8b"},
    {"zstd", "\x28\xb5\x2f\xfd"},
    {"bzip2", "BZh"},
    {"xz", "\xfd"
           "7zXZ"},
    {"zip", "PK\x03\x04"},
    {"lz4", "\x04\x22\x4d\x18"},
};

/* No JSON begins with any of these, so a few bytes are enough to tell. */
static int check_plain(const unsigned char *head, size_t n, struct err *err)
{
    for (size_t i = 0; i < sizeof(compressed) / sizeof(compressed[0]); i++) {
        const char *name = compressed[i].name;
        size_t m = strlen(compressed[i].magic);
        if (n < m || memcmp(head, compressed[i].magic, m))
            continue;
        if (i < 2)
            return err_set(err, ERR_MEDIA,
                           "the bytes are %s-compressed: name the shard "
                           "….jsonl%s, or send 'Content-Encoding: %s'",
                           name, i ? ".zst" : ".gz", name);
        return err_set(err, ERR_MEDIA,
                       "the bytes are %s-compressed: send plain JSON lines, or "
                       "gzip, or zstd",
                       name);
    }
    return 0;
}

static bool begins_as(enum packing packing, const unsigned char *head, size_t n)
{
    if (packing == PACKING_GZIP)
        return !memcmp(head, "\x1f\x8b", n < 2 ? n : 2);
    if (!memcmp(head, "\x28\xb5\x2f\xfd", n < 4 ? n : 4))
        return true;
    return n && (head[0] & 0xf0) == 0x50 &&
           !memcmp(head + 1, "\x2a\x4d\x18", n - 1 < 3 ? n - 1 : 3);
}

static int check_head(struct upload *u, const void *data, size_t len,
                      struct err *err)
{
    struct upload_way *way = u->way;
    size_t n = HEAD - way->n_head;
    if (!n)
        return 0;
    n = n < len ? n : len;
    memcpy(way->head + way->n_head, data, n);
    way->n_head += n;
    if (u->plan.packing == PACKING_NONE)
        return check_plain(way->head, way->n_head, err);
    if (begins_as(u->plan.packing, way->head, way->n_head))
        return 0;
    const char *kind = u->plan.packing == PACKING_GZIP ? "gzip" : "zstd";
    if (u->plan.by_name)
        return err_set(err, ERR_INVALID,
                       "the shard's name says that it is %s-compressed, and "
                       "its bytes are not",
                       kind);
    return err_set(err, ERR_INVALID,
                   "Content-Encoding says %s, and the bytes are not", kind);
}

/* ---- bytes and text ---- */

static int store(struct upload *u, const char *s, size_t len, struct err *err)
{
    struct upload_way *way = u->way;
    for (size_t done = 0; done < len;) {
        ssize_t n = write(u->fd, s + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(err, "write");
        done += (size_t)n;
    }
    way->written += (int64_t)len;
#ifdef __linux__
    if (way->written - way->pushed >= WRITE_BACK) {
        sync_file_range(u->fd, way->pushed, way->written - way->pushed,
                        SYNC_FILE_RANGE_WRITE);
        way->pushed = way->written;
    }
#endif
    return 0;
}

/* Text that came before frames were made. */
static int replay_text(void *arg, const char *text, size_t len, struct err *err)
{
    struct upload_way *way = arg;
    if ((int64_t)len > way->replay)
        len = (size_t)way->replay;
    way->replay -= (int64_t)len;
    return len ? seekable_write(way->writer, text, len, err) : 0;
}

/* From now on frames are made, of the text so far first. The bytes as sent are
 * no longer needed. */
static int begin_frames(struct upload *u, struct err *err)
{
    struct upload_way *way = u->way;
    CLEANUP(free_ptr) char *piece = malloc(WIRE_BLOCK_BYTES);
    struct unpack *again = NULL;
    int r = piece ? 0 : no_memory(err);
    if (r >= 0)
        r = begin_file(way->tmp_dir, &way->framed_path, &way->framed_fd, err);
    if (r >= 0)
        r = seekable_writer_new(way->framed_fd, &way->writer, err);
    if (r >= 0)
        r = unpack_new(PACKING_ZSTD, &again, err);
    way->replay = way->text_bytes;
    for (int64_t at = 0; r >= 0 && way->replay > 0;) {
        ssize_t n = pread(u->fd, piece, WIRE_BLOCK_BYTES, at);
        if (n < 0)
            r = io_error(err, "read");
        if (n <= 0)
            break;
        r = unpack_add(again, piece, (size_t)n, replay_text, way, err);
        at += n;
    }
    unpack_free(again);
    if (r >= 0 && way->replay > 0)
        r = err_set(err, ERR_IO, "cannot read the upload: it has shrunk");
    if (r < 0)
        return r;
    close(u->fd);
    unlink(u->path);
    free(u->path);
    u->fd = way->framed_fd;
    u->path = way->framed_path;
    way->framed_fd = -1;
    way->framed_path = NULL;
    return 0;
}

static int take(void *arg, const char *text, size_t len, struct err *err)
{
    return intake_add(arg, text, len, err);
}

/* What is known of the text is taken from it here, or beside. */
static int add_known(struct upload *u, const char *text, size_t len,
                     struct err *err)
{
    struct upload_way *way = u->way;
    int r = 0;
    if (!way->belt && way->text_bytes >= SHORT)
        r = belt_new(take, u->text, &way->belt, err);
    if (r >= 0)
        r = way->belt ? belt_add(way->belt, text, len, err)
                      : intake_add(u->text, text, len, err);
    way->text_bytes += (int64_t)len;
    return r;
}

static int add_text(void *arg, const char *text, size_t len, struct err *err)
{
    struct upload *u = arg;
    struct upload_way *way = u->way;
    if (!way->text_bytes && check_plain((const unsigned char *)text, len, err))
        return err_set(err, ERR_MEDIA, "the shard is compressed twice");
    int r = add_known(u, text, len, err);
    if (r >= 0 && way->writer)
        return seekable_write(way->writer, text, len, err);
    if (r >= 0 && way->text_bytes > SEEKABLE_FRAME_MAX &&
        !unpack_members(way->unpack))
        return begin_frames(u, err); /* its first frame is too long already */
    return r;
}

static int add(struct upload *u, const void *data, size_t len, struct err *err)
{
    struct upload_way *way = u->way;
    int r = check_head(u, data, len, err);
    if (r < 0)
        return r;
    if (!u->framed) { /* first, for it goes on beside */
        r = add_known(u, data, len, err);
        if (r < 0)
            return r;
    }
    digest_add(way->bytes, data, len);
    if (way->part)
        digest_add(way->part, data, len);
    if (!way->writer) {
        r = store(u, data, len, err);
        if (r < 0)
            return r;
    }
    return u->framed ? unpack_add(way->unpack, data, len, add_text, u, err) : 0;
}

/* Whose data it is that does not fit. */
static int name_shard(const struct upload *u, int r, struct err *err)
{
    if (r != ERR_DATA || !u->plan.shard)
        return r;
    struct err why = *err;
    err_set(err, r, "shard '%s'%s %.600s", u->plan.shard,
            why.line > 0 ? "," : ":", why.text);
    memcpy(err->field, why.field, sizeof(err->field));
    err->line = why.line;
    err->offset = why.offset;
    snprintf(err->shard, sizeof(err->shard), "%s", u->plan.shard);
    return r;
}

int upload_add(struct upload *u, const void *data, size_t len, struct err *err)
{
    int r = add(u, data, len, err);
    if (r < 0)
        u->failed = true;
    u->received += (int64_t)len;
    return name_shard(u, r, err);
}

/* ---- the end ---- */

/* Does the text that is read by the table have the digests of the text that
 * streamed by? */
static int frames_fit(const struct upload *u, struct seekable *s,
                      struct err *err)
{
    AUTO_FREE char *block = malloc(WIRE_BLOCK_BYTES);
    if (!block)
        return no_memory(err);
    if (seekable_bytes(s) != u->text->bytes)
        return 0;
    int64_t at = 0;
    for (size_t i = 0; i < u->text->n_blocks; i++) {
        uint8_t sum[DIGEST_BYTES];
        char hex[DIGEST_HEX];
        int64_t n = seekable_read(s, at, block, WIRE_BLOCK_BYTES, err);
        if (n == ERR_CORRUPT)
            return 0;
        if (n < 0)
            return (int)n;
        digest_of(block, (size_t)n, sum);
        digest_hex(sum, hex);
        if (strcmp(hex, u->text->blocks[i]))
            return 0;
        at += n;
    }
    return 1;
}

/* 1: the bytes as they were sent can be read anywhere. */
static int is_seekable(const struct upload *u, struct err *err)
{
    struct seekable *s = NULL;
    int r = seekable_open(u->fd, &s, err);
    if (r == ERR_CORRUPT || r == ERR_TOO_LARGE)
        return 0;
    if (r >= 0)
        r = frames_fit(u, s, err);
    seekable_close(s);
    return r;
}

static int end(struct upload *u, struct err *err)
{
    struct upload_way *way = u->way;
    struct stat sb;
    /* a bad record came before the end of a stream that is cut */
    int r = way->belt ? belt_wait(way->belt, err) : 0;
    if (r >= 0 && way->unpack)
        r = unpack_end(way->unpack, err);
    digest_end(way->bytes, u->sha256);
    if (!u->framed)
        digest_hex(u->sha256, u->text->sha256);
    if (r >= 0)
        r = intake_end(u->text, err);
    if (r >= 0 && u->framed && !way->writer) {
        r = is_seekable(u, err);
        if (r == 0)
            r = begin_frames(u, err);
    }
    if (r >= 0 && way->writer)
        r = seekable_writer_end(way->writer, &u->stored_bytes, err);
    if (r < 0)
        return r;
    if (fsync(u->fd) < 0 || fstat(u->fd, &sb) < 0)
        return io_error(err, "store");
    u->stored_bytes = sb.st_size;
    if (way->part)
        digest_end(way->part, u->part_sha256);
    seekable_writer_free(way->writer);
    way->writer = NULL;
    unpack_free(way->unpack);
    way->unpack = NULL;
    belt_free(way->belt);
    way->belt = NULL;
    return 0;
}

int upload_end(struct upload *u, struct err *err)
{
    int r = end(u, err);
    if (r < 0)
        u->failed = true;
    u->ended = true;
    return name_shard(u, r, err);
}

static int sync_folder(const char *path, struct err *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return io_error(err, "file");
    return 0;
}

/* Replaces what is there, at once, and leaves the temporary name. */
static int move(struct upload *u, const char *path, struct err *err)
{
    AUTO_FREE char *second = NULL;
    u->published = strdup(path);
    if (!u->published || asprintf(&second, "%s.out", u->path) < 0)
        return no_memory(err);
    if (link(u->path, second) == 0) {
        if (rename(second, path) == 0)
            return 0;
        int r = io_error(err, "publish");
        unlink(second);
        return r;
    }
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS)
        return io_error(err, "publish");
    /* no second names on this disk */
    if (rename(u->path, path) < 0)
        return io_error(err, "publish");
    free(u->path);
    u->path = NULL;
    return 0;
}

int upload_publish(struct upload *u, const char *dir, const char *path,
                   struct err *err)
{
    AUTO_FREE char *folder = strdup(path);
    if (!folder)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    char *slash = strrchr(folder, '/');
    if (!slash)
        return err_set(err, ERR_IO, "'%s' lies in no folder", path);
    *slash = '\0';
    /* what a shard needs before the shard */
    int r = intake_publish(u->text, dir, err);
    if (r < 0)
        return r;
    if (mkdir(folder, 0700) == 0) {
        /* a new folder's own entry must last, too */
        AUTO_FREE char *above = strdup(folder);
        char *cut = above ? strrchr(above, '/') : NULL;
        if (!cut)
            return err_set(err, ERR_NOMEM, "no memory for a path");
        *cut = '\0';
        r = sync_folder(above, err);
        if (r < 0)
            return r;
    } else if (errno != EEXIST) {
        return io_error(err, "make a folder for");
    }
    r = move(u, path, err);
    return r < 0 ? r : sync_folder(folder, err);
}

void upload_settle(struct upload *u)
{
    u->settled = true;
}

/* Nobody will ask for it: no row names it. Unless another upload has replaced
 * it already. */
static void take_back(struct upload *u)
{
    struct stat mine, there;
    if (fstat(u->fd, &mine) == 0 && lstat(u->published, &there) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
        unlink(u->published);
}

static void way_free(struct upload_way *way)
{
    belt_free(way->belt); /* while what it takes from is there */
    if (way->framed_path)
        unlink(way->framed_path);
    free(way->framed_path);
    if (way->framed_fd >= 0)
        close(way->framed_fd);
    seekable_writer_free(way->writer);
    unpack_free(way->unpack);
    digest_free(way->bytes);
    digest_free(way->part);
    free(way->tmp_dir);
    free(way);
}

void upload_free(struct upload *u)
{
    if (!u)
        return;
    if (u->published && !u->settled)
        take_back(u);
    free(u->published);
    if (u->path)
        unlink(u->path);
    free(u->path);
    if (u->fd >= 0)
        close(u->fd);
    way_free(u->way);
    intake_free(u->text);
    intake_rules_free(u->plan.rules);
    free((char *)u->plan.shard);
    free(u);
}
