#include "worker/shard.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/line_hash.h"
#include "schema/lines.h"

struct verifier {
    struct shards *shards;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t done_cond;
    bool done;
    int result;
    struct err err;
};

static int data_err(struct err *err, const struct shard *s, int64_t offset,
                    const char *what)
{
    err_set(err, ERR_DATA, "shard '%s' %s", s->name, what);
    if (err) {
        snprintf(err->shard, sizeof err->shard, "%s", s->name);
        err->offset = offset;
    }
    return ERR_DATA;
}

static int shard_shrunk(struct err *err, const struct shard *s, int64_t now)
{
    char what[160];
    snprintf(what, sizeof what,
             "has shrunk: it ends at offset %" PRId64 ", but held %" PRId64
             " bytes when the cycle's data was frozen",
             now, s->bytes);
    return data_err(err, s, now, what);
}

/* ---- opening ---- */

static int shard_parse(const json_t *in, struct shard *ret, struct err *err)
{
    const char *name = json_string_value(json_object_get(in, "name"));
    const char *path = json_string_value(json_object_get(in, "path"));
    const json_t *blocks = json_object_get(in, "blocks");
    ret->fd = -1;
    if (!name || !path || !json_is_array(blocks))
        return err_set(err, ERR_INVALID,
                       "the claim names a shard without name, path or blocks");
    ret->name = strdup(name);
    ret->path = strdup(path);
    ret->bytes = json_integer_value(json_object_get(in, "bytes"));
    ret->records = json_integer_value(json_object_get(in, "records"));
    ret->mtime_ns = json_integer_value(json_object_get(in, "mtime_ns"));
    ret->inode = json_integer_value(json_object_get(in, "inode"));
    ret->block_bytes = json_integer_value(json_object_get(in, "block_bytes"));
    ret->n_blocks = (int64_t)json_array_size(blocks);
    if (!ret->name || !ret->path)
        return err_set(err, ERR_NOMEM, "no memory for the list of shards");
    if (ret->bytes < 0 || ret->block_bytes < 4096 ||
        ret->block_bytes > 64 * 1024 * 1024 ||
        ret->n_blocks != (ret->bytes + ret->block_bytes - 1) / ret->block_bytes)
        return err_set(err, ERR_INVALID,
                       "the claim's block digests of shard '%s' do not cover "
                       "its %" PRId64 " bytes",
                       name, ret->bytes);
    ret->blocks = calloc((size_t)ret->n_blocks + 1, sizeof *ret->blocks);
    if (!ret->blocks)
        return err_set(err, ERR_NOMEM, "no memory for block digests");
    for (int64_t i = 0; i < ret->n_blocks; i++) {
        const char *hex = json_string_value(json_array_get(blocks, (size_t)i));
        if (!hex || digest_parse(hex, ret->blocks[i]) < 0)
            return err_set(err, ERR_INVALID,
                           "block digest %" PRId64 " of shard '%s' is not one",
                           i, name);
    }
    return 0;
}

static int shard_open(struct shard *s, struct err *err)
{
    /* O_NONBLOCK: a pipe in its place must not hold us up */
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (s->fd < 0) {
        char what[256];
        switch (errno) {
        case ELOOP:
        case EMLINK:
            return data_err(err, s, 0,
                            "is a symbolic link now; links are not followed");
        case ENOENT:
        case ENOTDIR:
            snprintf(what, sizeof what, "is missing: there is no file %.180s",
                     s->path);
            return data_err(err, s, 0, what);
        default:
            snprintf(what, sizeof what, "cannot be opened: %s",
                     strerror(errno));
            return data_err(err, s, 0, what);
        }
    }
    struct stat st;
    if (fstat(s->fd, &st) < 0)
        return err_set(err, ERR_IO, "cannot stat %s: %s", s->path,
                       strerror(errno));
    if (!S_ISREG(st.st_mode))
        return data_err(err, s, 0, "is not a regular file any more");
    if (st.st_size < s->bytes)
        return shard_shrunk(err, s, (int64_t)st.st_size);
#ifdef __APPLE__
    struct timespec mtime = st.st_mtimespec;
#else
    struct timespec mtime = st.st_mtim;
#endif
    int64_t mtime_ns = (int64_t)mtime.tv_sec * 1000000000 + mtime.tv_nsec;
    s->replaced = (int64_t)st.st_ino != s->inode;
    s->changed = s->replaced || mtime_ns != s->mtime_ns ||
                 (int64_t)st.st_size != s->bytes;
    return 0;
}

/* ---- reading ---- */

/* All `len` bytes at `offset`, which lie below the frozen size. */
static int read_at(const struct shard *s, int64_t offset, char *out, size_t len,
                   struct err *err)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = pread(s->fd, out + have, len - have,
                          (off_t)(offset + (int64_t)have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO,
                           "cannot read shard '%s' at %" PRId64 ": %s", s->name,
                           offset + (int64_t)have, strerror(errno));
        if (n == 0)
            return shard_shrunk(err, s, offset + (int64_t)have);
        have += (size_t)n;
    }
    return 0;
}

static int block_check(const struct shard *s, int64_t block, const char *data,
                       size_t len, struct err *err)
{
    uint8_t sum[DIGEST_BYTES];
    digest_of(data, len, sum);
    if (!memcmp(sum, s->blocks[block], sizeof sum))
        return 0;
    int64_t offset = block * s->block_bytes;
    char what[200];
    snprintf(what, sizeof what,
             "%s after the cycle's data was frozen: the first block that "
             "differs begins at offset %" PRId64,
             s->replaced ? "was replaced by another file" : "was edited",
             offset);
    return data_err(err, s, offset, what);
}

static size_t block_len(const struct shard *s, int64_t block)
{
    int64_t left = s->bytes - block * s->block_bytes;
    return (size_t)(left < s->block_bytes ? left : s->block_bytes);
}

int shards_block(struct shards *set, int shard, int64_t block, char *out,
                 size_t *ret_len, struct err *err)
{
    const struct shard *s = &set->v[shard];
    size_t len = block_len(s, block);
    int r = read_at(s, block * s->block_bytes, out, len, err);
    if (r == 0)
        r = block_check(s, block, out, len, err);
    if (r == 0)
        *ret_len = len;
    return r;
}

int shards_line(struct shards *set, const struct ref *ref, struct buf *out,
                struct err *err)
{
    const struct shard *s = &set->v[ref->shard];
    buf_clear(out);
    if (buf_reserve(out, (size_t)ref->length + 1) < 0)
        return err_set(err, ERR_NOMEM,
                       "no memory for a record of %" PRId64 " bytes",
                       ref->length);
    int r = read_at(s, ref->offset, out->data, (size_t)ref->length, err);
    if (r < 0)
        return r;
    out->len = (size_t)ref->length;
    out->data[out->len] = 0;
    if ((int64_t)line_hash(out->data, out->len) == ref->hash)
        return 0;
    char what[200];
    snprintf(what, sizeof what,
             "%s after the cycle's data was frozen: the record at offset "
             "%" PRId64 " is not the one that was there",
             s->replaced ? "was replaced by another file" : "was edited",
             ref->offset);
    r = data_err(err, s, ref->offset, what);
    if (err)
        err->line = shards_line_number(set, (int)ref->shard, ref->offset);
    return r;
}

int64_t shards_line_number(struct shards *set, int shard, int64_t offset)
{
    const struct shard *s = &set->v[shard];
    size_t cap = 256 * 1024;
    AUTO_FREE char *data = malloc(cap);
    if (!data)
        return 0;
    int64_t line = 1;
    for (int64_t at = 0; at < offset;) {
        size_t want = (size_t)(offset - at) < cap ? (size_t)(offset - at) : cap;
        if (read_at(s, at, data, want, NULL) < 0)
            return 0;
        for (const char *p = data, *end = data + want;
             (p = memchr(p, '\n', (size_t)(end - p))); p++)
            line++;
        at += (int64_t)want;
    }
    return line;
}

/* ---- the verifying thread ---- */

static int verify_all(struct verifier *v, struct err *err)
{
    int64_t cap = 0;
    for (int i = 0; i < v->shards->n; i++)
        if (v->shards->v[i].block_bytes > cap)
            cap = v->shards->v[i].block_bytes;
    AUTO_FREE char *data = malloc((size_t)cap + 1);
    if (!data)
        return err_set(err, ERR_NOMEM, "no memory to verify shards");
    for (int i = 0; i < v->shards->n; i++) {
        const struct shard *s = &v->shards->v[i];
        if (!s->changed)
            continue;
        for (int64_t b = 0; b < s->n_blocks && !atomic_load(&v->stop); b++) {
            size_t len;
            int r = shards_block(v->shards, i, b, data, &len, err);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

static void *verifier_main(void *arg)
{
    struct verifier *v = arg;
    struct err err = {0};
    int r = verify_all(v, &err);
    pthread_mutex_lock(&v->lock);
    v->result = r;
    v->err = err;
    v->done = true;
    pthread_cond_broadcast(&v->done_cond);
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

static int verifier_start(struct shards *s, struct err *err)
{
    struct verifier *v = calloc(1, sizeof *v);
    if (!v)
        return err_set(err, ERR_NOMEM, "no memory to verify shards");
    v->shards = s;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->done_cond, NULL);
    s->verifier = v;
    int e = pthread_create(&v->thread, NULL, verifier_main, v);
    if (e)
        return err_set(err, ERR_NOMEM, "cannot start a thread: %s",
                       strerror(e));
    v->started = true;
    return 0;
}

int shards_check(struct shards *s, bool wait, struct err *err)
{
    struct verifier *v = s->verifier;
    if (!v)
        return 0;
    pthread_mutex_lock(&v->lock);
    while (wait && !v->done)
        pthread_cond_wait(&v->done_cond, &v->lock);
    int r = v->result;
    if (r < 0 && err)
        *err = v->err;
    pthread_mutex_unlock(&v->lock);
    return r;
}

int shards_open(const json_t *data, struct shards **ret, struct err *err)
{
    const json_t *list = json_object_get(data, "shards");
    if (!json_is_array(list))
        return err_set(err, ERR_INVALID, "the claim names no shards");
    struct shards *s = calloc(1, sizeof *s);
    if (s)
        s->v = calloc(json_array_size(list) + 1, sizeof *s->v);
    if (!s || !s->v) {
        free(s);
        return err_set(err, ERR_NOMEM, "no memory for the list of shards");
    }
    bool changed = false;
    int r = 0;
    for (size_t i = 0; i < json_array_size(list) && r == 0; i++) {
        struct shard *one = &s->v[s->n++];
        r = shard_parse(json_array_get(list, i), one, err);
        if (r == 0)
            r = shard_open(one, err);
        changed |= one->changed;
        s->records += one->records;
        s->bytes += one->bytes;
    }
    if (r == 0 && changed)
        r = verifier_start(s, err);
    if (r < 0) {
        shards_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

void shards_close(struct shards *s)
{
    if (!s)
        return;
    struct verifier *v = s->verifier;
    if (v) {
        atomic_store(&v->stop, true);
        if (v->started)
            pthread_join(v->thread, NULL);
        pthread_cond_destroy(&v->done_cond);
        pthread_mutex_destroy(&v->lock);
        free(v);
    }
    for (int i = 0; i < s->n; i++) {
        free(s->v[i].name);
        free(s->v[i].path);
        free(s->v[i].blocks);
        if (s->v[i].fd >= 0)
            close(s->v[i].fd);
    }
    free(s->v);
    free(s);
}

/* ---- scanning ---- */

int scanner_init(struct scanner *s, struct shards *shards, struct err *err)
{
    *s = (struct scanner){.shards = shards, .block_shard = -1};
    for (int i = 0; i < shards->n; i++)
        if (shards->v[i].block_bytes > s->block_bytes)
            s->block_bytes = shards->v[i].block_bytes;
    s->block = malloc((size_t)s->block_bytes + 1);
    if (!s->block)
        return err_set(err, ERR_NOMEM, "no memory for a block");
    return 0;
}

void scanner_seek(struct scanner *s, int shard, int64_t offset)
{
    s->shard = shard;
    s->offset = offset;
}

void scanner_release(struct scanner *s)
{
    free(s->block);
    s->block = NULL;
}

/* The bytes of the current block from `offset` on. */
static int scanner_load(struct scanner *s, int64_t offset, const char **ret,
                        size_t *ret_len, struct err *err)
{
    const struct shard *sh = &s->shards->v[s->shard];
    int64_t no = offset / sh->block_bytes;
    if (s->block_shard != s->shard || s->block_no != no) {
        s->block_shard = -1;
        int r =
            shards_block(s->shards, s->shard, no, s->block, &s->block_len, err);
        if (r < 0)
            return r;
        s->block_shard = s->shard;
        s->block_no = no;
        s->bytes_read += (int64_t)s->block_len;
    }
    size_t at = (size_t)(offset - no * sh->block_bytes);
    *ret = s->block + at;
    *ret_len = s->block_len - at;
    return 0;
}

/* One line from s->offset on, which lies within the shard: moves the offset
 * behind it. 1, or 0 when it was blank. */
static int scanner_line(struct scanner *s, struct ref *ret, struct err *err)
{
    const struct shard *sh = &s->shards->v[s->shard];
    CLEANUP(buf_release) struct buf carry = {0}; /* a line over a block's end */
    int64_t begin = s->offset, at = begin, length = 0;
    bool end = false, carried = false;
    const char *line = NULL;
    while (!end && at < sh->bytes) {
        const char *p;
        size_t len;
        int r = scanner_load(s, at, &p, &len, err);
        if (r < 0)
            return r;
        if (at == 0) {
            if (len >= 2 &&
                (!memcmp(p, "\xff\xfe", 2) || !memcmp(p, "\xfe\xff", 2)))
                return data_err(err, sh, 0,
                                "begins with a UTF-16 mark; records are UTF-8");
            size_t bom = line_bom(p, len);
            begin = at = (int64_t)bom;
            p += bom;
            len -= bom;
            if (!len)
                break;
        }
        const char *nl = memchr(p, '\n', len);
        end = nl != NULL;
        size_t n = nl ? (size_t)(nl - p) : len;
        length += (int64_t)n;
        at += (int64_t)n + end;
        if (!carried && (end || at >= sh->bytes)) {
            line = p;
        } else if (length <= LINE_MAX_BYTES) {
            carried = true;
            if (buf_add(&carry, p, n) < 0)
                return err_set(err, ERR_NOMEM, "no memory for a long line");
        } else {
            carried = true;
        }
    }
    s->offset = at;
    if (length > LINE_MAX_BYTES) {
        *ret = (struct ref){s->shard, begin, length, 0};
        return 1;
    }
    if (carried)
        line = carry.data;
    if (!line || line_is_blank(line, (size_t)length))
        return 0;
    *ret = (struct ref){s->shard, begin, length,
                        (int64_t)line_hash(line, (size_t)length)};
    return 1;
}

int scanner_next(struct scanner *s, struct ref *ret, struct err *err)
{
    while (s->shard < s->shards->n) {
        if (s->offset >= s->shards->v[s->shard].bytes) {
            s->shard++;
            s->offset = 0;
            continue;
        }
        int r = scanner_line(s, ret, err);
        if (r != 0)
            return r;
    }
    return 0;
}
