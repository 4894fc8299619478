#include "server/frozen.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "schema/cleanup.h"
#include "schema/line_index.h"
#include "server/errand.h"
#include "server/root_part.h"
#include "server/shard_text.h"
#include "server/survey.h"

#define KEPT 64

void frozen_release(struct frozen *f)
{
    free(f->name);
    free(f->path);
    free(f->root);
    *f = (struct frozen){0};
}

static int copy(const struct frozen *f, struct frozen *ret, struct err *err)
{
    *ret = *f;
    ret->name = strdup(f->name);
    ret->path = strdup(f->path);
    ret->root = f->root ? strdup(f->root) : NULL;
    if (ret->name && ret->path && (!f->root || ret->root))
        return 0;
    frozen_release(ret);
    return err_set(err, ERR_NOMEM, "no memory for a shard");
}

/* ---- those asked for last ---- */

/* A snapshot is one text, however many blocks its shards have: to look for a
 * shard in it costs as much as to send some blocks. */
static struct {
    pthread_mutex_t mutex;
    struct {
        int64_t lease, n, used; /* lease 0: none */
        struct frozen f;
    } v[KEPT];
    int64_t turn;
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int kept_find(int64_t lease, int64_t n, struct frozen *ret,
                     struct err *err)
{
    int r = 0;
    pthread_mutex_lock(&kept.mutex);
    for (int i = 0; i < KEPT; i++)
        if (kept.v[i].lease == lease && kept.v[i].n == n) {
            kept.v[i].used = ++kept.turn;
            r = copy(&kept.v[i].f, ret, err);
            r = r < 0 ? r : 1;
            break;
        }
    pthread_mutex_unlock(&kept.mutex);
    return r;
}

static void kept_add(int64_t lease, int64_t n, const struct frozen *f)
{
    struct frozen mine;
    struct err err;
    int oldest = 0;
    if (copy(f, &mine, &err) < 0)
        return;
    pthread_mutex_lock(&kept.mutex);
    for (int i = 1; i < KEPT; i++)
        if (kept.v[i].used < kept.v[oldest].used)
            oldest = i;
    frozen_release(&kept.v[oldest].f);
    kept.v[oldest].lease = lease;
    kept.v[oldest].n = n;
    kept.v[oldest].used = ++kept.turn;
    kept.v[oldest].f = mine;
    pthread_mutex_unlock(&kept.mutex);
}

static char *text_of(const json_t *shard, const char *name)
{
    const char *s = json_string_value(json_object_get(shard, name));
    return s ? strdup(s) : NULL;
}

static int parse(const json_t *shard, struct frozen *ret, struct err *err)
{
    const char *form = json_string_value(json_object_get(shard, "form"));
    const char *sha256 = json_string_value(json_object_get(shard, "sha256"));
    *ret = (struct frozen){
        .name = text_of(shard, "name"),
        .path = text_of(shard, "path"),
        .root = text_of(shard, "root"),
        .bytes = json_integer_value(json_object_get(shard, "bytes")),
        .records = json_integer_value(json_object_get(shard, "records")),
        .indexed = json_object_get(shard, "index") != NULL,
    };
    /* one that was frozen before there was another form */
    snprintf(ret->form, sizeof(ret->form), "%s", form ? form : "plain");
    snprintf(ret->sha256, sizeof(ret->sha256), "%s", sha256 ? sha256 : "");
    if (ret->name && ret->path)
        return 0;
    frozen_release(ret);
    return err_set(err, ERR_DB, "a shard of a snapshot has no name");
}

int frozen_find(struct store *st, int64_t lease, int64_t n, struct frozen *ret,
                struct err *err)
{
    int r = kept_find(lease, n, ret, err);
    if (r)
        return r < 0 ? r : 0;
    AUTO_JSON json_t *shard = NULL;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SNAPSHOT_SHARD);
        stmt_int(&q, ":lease", lease);
        stmt_int(&q, ":n", n);
        r = stmt_row(&q, err);
        if (r < 0)
            return r;
        shard = r > 0 ? col_json(&q, 0) : NULL;
    }
    if (!shard)
        return err_set(err, ERR_NOT_FOUND,
                       "lease %" PRId64 " has no shard %" PRId64, lease, n);
    r = parse(shard, ret, err);
    if (r >= 0)
        kept_add(lease, n, ret);
    return r;
}

/* ---- open ---- */

static bool is_copy(const struct frozen *f)
{
    return !f->root && !strncmp(f->path, "copies/", strlen("copies/"));
}

static int open_below(const char *dir, const struct frozen *f, struct stat *ret,
                      struct err *err)
{
    AUTO_FREE char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, f->path) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT && is_copy(f))
        return root_blame(err, f->name, 0,
                          "cannot be read: the copy of it that pawld made is "
                          "gone; retry the job, and it is made again");
    if (fd < 0)
        return root_not_open(f->name, path, err);
    if (fstat(fd, ret) < 0 || !S_ISREG(ret->st_mode)) {
        close(fd);
        return root_blame(err, f->name, 0, "is not a regular file any more");
    }
    return fd;
}

int frozen_open(const char *dir, const struct frozen *f,
                struct shard_text **ret, struct err *err)
{
    struct stat st;
    struct err why = {0};
    int fd = f->root ? root_open(f->root, f->path, &st, err)
                     : open_below(dir, f, &st, err);
    if (fd < 0)
        return fd;
    if (!strcmp(f->form, "plain") && st.st_size < f->bytes) {
        close(fd);
        return root_blame(err, f->name, st.st_size,
                          "has shrunk: it ends at offset %" PRId64
                          ", but held %" PRId64
                          " bytes when the cycle's data was frozen",
                          (int64_t)st.st_size, f->bytes);
    }
    int r = shard_text_of(fd, f->name, f->form, f->bytes, ret, &why);
    if (r == ERR_CORRUPT || r == ERR_TOO_LARGE)
        return root_blame(err, f->name, 0,
                          "was edited after the cycle's data was frozen: "
                          "%.300s",
                          why.text);
    if (r < 0)
        *err = why;
    return r;
}

/* ---- the index ---- */

struct making {
    char *dir, *path;
    struct frozen f;
};

static void making_free(void *p)
{
    struct making *m = p;
    free(m->dir);
    free(m->path);
    frozen_release(&m->f);
    free(m);
}

static bool stopped(void *arg)
{
    return errand_stopped(arg);
}

static int make(struct errand *e, void *arg, struct err *err)
{
    struct making *m = arg;
    int r = survey_index(m->dir, m->path, m->f.form, m->f.bytes, m->f.sha256,
                         stopped, e, err);
    if (r == ERR_DATA && is_copy(&m->f)) /* by the name that people know */
        return root_blame(err, m->f.name, 0,
                          "cannot be read: the copy of it that pawld made is "
                          "damaged; retry the job, and it is made again");
    return r;
}

static int begin_making(const char *dir, const struct frozen *f,
                        const char *key, struct errands *es, struct err *err)
{
    const char *above = f->root ? root_path(f->root) : dir;
    struct making *m = calloc(1, sizeof(*m));
    int r = m ? copy(f, &m->f, err) : ERR_NOMEM;
    if (r >= 0 &&
        (!(m->dir = strdup(dir)) ||
         asprintf(&m->path, "%s/%s", above ? above : "", f->path) < 0))
        r = ERR_NOMEM;
    if (r < 0) {
        if (m)
            making_free(m);
        return err_set(err, ERR_NOMEM, "no memory to make an index");
    }
    return errands_begin(es, ERRAND_FREEZE, key, make, m, making_free, err);
}

static int await_index(const char *dir, const struct frozen *f,
                       struct errands *es, struct err *err)
{
    char key[ERRAND_KEY];
    struct errand_view view;
    snprintf(key, sizeof(key), "index/%s", f->sha256);
    if (errands_look(es, key, &view) == ERRAND_FAILED &&
        view.err.code == ERR_DATA) {
        struct err why = view.err;
        errands_cancel(es, key);
        *err = why;
        snprintf(err->shard, sizeof(err->shard), "%s", f->name);
        return ERR_DATA;
    }
    int r = begin_making(dir, f, key, es, err);
    return r < 0
               ? r
               : err_set(err, ERR_BUSY,
                         "the index of shard '%.400s' is being made", f->name);
}

/* Those that were looked through as a whole, so that not every piece of one that
 * is sent costs that. */
static struct {
    pthread_mutex_t mutex;
    struct sound {
        char sha256[DIGEST_HEX];
        struct stat at;
    } v[KEPT];
    int next;
} sound = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool is_sound(const char *sha256, const struct stat *at)
{
    bool found = false;
    pthread_mutex_lock(&sound.mutex);
    for (int i = 0; i < KEPT && !found; i++) {
        const struct sound *s = &sound.v[i];
        found = !strcmp(s->sha256, sha256) && s->at.st_ino == at->st_ino &&
                root_mtime_ns(&s->at) == root_mtime_ns(at);
    }
    pthread_mutex_unlock(&sound.mutex);
    return found;
}

static void note_sound(const char *sha256, const struct stat *at)
{
    pthread_mutex_lock(&sound.mutex);
    struct sound *s = &sound.v[sound.next++ % KEPT];
    snprintf(s->sha256, sizeof(s->sha256), "%s", sha256);
    s->at = *at;
    pthread_mutex_unlock(&sound.mutex);
}

/* The file's descriptor, if it is what was written. */
static int open_index(const char *path, const struct frozen *f,
                      const uint8_t sha256[DIGEST_BYTES], int64_t *ret_bytes,
                      struct err *err)
{
    struct line_index index;
    struct stat at;
    int r = line_index_open(path, sha256, f->records, &index, err);
    if (r < 0)
        return r;
    *ret_bytes = (int64_t)index.map_len;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &at) < 0)
        r = err_set(err, ERR_IO, "cannot open %s: %s", path, strerror(errno));
    else if (!is_sound(f->sha256, &at)) {
        r = line_index_check(&index, 0, index.n, NULL, err);
        if (r >= 0)
            note_sound(f->sha256, &at);
    }
    line_index_close(&index);
    if (r < 0 && fd >= 0)
        close(fd);
    return r < 0 ? r : fd;
}

int frozen_index(const char *dir, const struct frozen *f, struct errands *es,
                 int64_t *ret_bytes, struct err *err)
{
    AUTO_FREE char *path = NULL;
    uint8_t sum[DIGEST_BYTES];
    if (!f->indexed || digest_parse(f->sha256, sum) < 0)
        return err_set(err, ERR_NOT_FOUND,
                       "the claim gives shard '%.400s' no index of its lines",
                       f->name);
    if (asprintf(&path, "%s/index/%s", dir, f->sha256) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    int r = open_index(path, f, sum, ret_bytes, err);
    return r == ERR_NOT_FOUND || r == ERR_CORRUPT ? await_index(dir, f, es, err)
                                                  : r;
}
