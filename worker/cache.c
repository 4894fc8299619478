#include "worker/cache.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/line_hash.h"

#define HALF_DONE_S 600 /* an older file that is not in its place is nobody's */
#define FULL_S 30       /* a full disk is left alone for so long */
#define TOUCH_S 1       /* a use is noted when the last one is older */

struct cache {
    char *dir;
    int64_t max;
    atomic_llong bytes_read, full_until, named;
    atomic_bool counted; /* by this process, at least once */
};

#define PATH_CAP(c) (strlen((c)->dir) + 128)

static int64_t now_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec;
}

/* ---- opening ---- */

static int make_folders(const char *dir)
{
    AUTO_FREE char *path = strdup(dir);
    if (!path)
        return -1;
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return -1;
        *p = '/';
    }
    return mkdir(path, 0700) < 0 && errno != EEXIST ? -1 : 0;
}

static bool is_of_use(const char *dir)
{
    struct stat st;
    if (make_folders(dir) < 0 || stat(dir, &st) < 0)
        return false;
    if (!S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        return false;
    }
    return access(dir, R_OK | W_OK | X_OK) == 0;
}

/* So that programs that make backups leave it out (bford.info/cachedir). */
static void tag(const struct cache *c)
{
    static const char text[] = "Signature: 8a477f597d28d172789f06886806bc55\n"
                               "# Blocks of training data, fetched by "
                               "pawl-worker. May be removed at any time.\n";
    CLEANUP(buf_release) struct buf path = {0};
    if (buf_addf(&path, "%s/CACHEDIR.TAG", c->dir) < 0)
        return;
    AUTO_FD int fd =
        open(path.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 && write(fd, text, sizeof text - 1) < 0)
        unlink(path.data);
}

int cache_open(const char *dir, int64_t max_bytes, struct cache **ret,
               struct err *err)
{
    struct cache *c = calloc(1, sizeof *c);
    if (c)
        c->dir = strdup(dir);
    if (!c || !c->dir) {
        cache_close(c);
        return err_set(err, ERR_NOMEM, "no memory for a cache");
    }
    c->max = max_bytes;
    if (max_bytes > 0 && !is_of_use(dir)) {
        int e = errno;
        cache_close(c);
        return err_set(err, ERR_IO, "no cache of blocks can be kept in %s: %s",
                       dir, strerror(e));
    }
    if (max_bytes > 0)
        tag(c);
    *ret = c;
    return 0;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    free(c->dir);
    free(c);
}

int64_t cache_max(const struct cache *c)
{
    return c->max;
}

int64_t cache_bytes_read(struct cache *c)
{
    return atomic_load(&c->bytes_read);
}

/* DIR/ab/abcd…; with a suffix: beside it. */
static void path_of(const struct cache *c, const uint8_t sum[DIGEST_BYTES],
                    char *out, size_t cap)
{
    char hex[DIGEST_HEX];
    digest_hex(sum, hex);
    snprintf(out, cap, "%s/%.2s/%s", c->dir, hex, hex);
}

/* ---- how much is kept ---- */

struct kept {
    int64_t used_ns, bytes;
    char name[DIGEST_HEX];
};

struct listing {
    struct kept *v;
    size_t n, cap;
    int64_t bytes;
};

static int64_t mtime_ns(const struct stat *st)
{
#ifdef __APPLE__
    struct timespec t = st->st_mtimespec;
#else
    struct timespec t = st->st_mtim;
#endif
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void list_file(struct listing *l, int folder, const char *name)
{
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(st.st_mode))
        return;
    if (strlen(name) != DIGEST_HEX - 1) {
        if (now_s(CLOCK_REALTIME) - (int64_t)st.st_mtime > HALF_DONE_S &&
            unlinkat(folder, name, 0) == 0)
            return;
        l->bytes += (int64_t)st.st_size;
        return;
    }
    l->bytes += (int64_t)st.st_size;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        struct kept *v = realloc(l->v, cap * sizeof *v);
        if (!v)
            return; /* counted, if not to be removed this time */
        l->v = v;
        l->cap = cap;
    }
    struct kept *k = &l->v[l->n++];
    k->used_ns = mtime_ns(&st);
    k->bytes = (int64_t)st.st_size;
    memcpy(k->name, name, DIGEST_HEX);
}

static void list_folder(struct listing *l, int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            list_file(l, fd, e->d_name);
    closedir(d);
}

static void list_all(const struct cache *c, struct listing *l)
{
    static const char digits[] = "0123456789abcdef";
    AUTO_FD int dir = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return;
    for (int i = 0; i < 256; i++) {
        char name[3] = {digits[i / 16], digits[i % 16], 0};
        list_folder(l, dir, name);
    }
}

static int by_use(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

/* Remove what was used longest ago until no more than `most` is left. Returns
 * what there is then. */
static int64_t evict(const struct cache *c, int64_t most)
{
    struct listing l = {0};
    list_all(c, &l);
    if (l.bytes > most && l.n)
        qsort(l.v, l.n, sizeof *l.v, by_use);
    AUTO_FREE char *path = malloc(PATH_CAP(c));
    for (size_t i = 0; path && i < l.n && l.bytes > most; i++) {
        snprintf(path, PATH_CAP(c), "%s/%.2s/%s", c->dir, l.v[i].name,
                 l.v[i].name);
        if (unlink(path) == 0 || errno == ENOENT)
            l.bytes -= l.v[i].bytes;
    }
    free(l.v);
    return l.bytes;
}

/* The file `size`, locked: its descriptor, or −1. */
static int lock_size(const struct cache *c)
{
    AUTO_FREE char *path = malloc(PATH_CAP(c));
    if (!path)
        return -1;
    snprintf(path, PATH_CAP(c), "%s/size", c->dir);
    for (int tries = 0; tries < 8; tries++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 && errno == ENOENT && make_folders(c->dir) == 0)
            continue;
        if (fd < 0)
            return -1;
        int r;
        while ((r = flock(fd, LOCK_EX)) < 0 && errno == EINTR)
            ;
        struct stat st;
        if (r == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0)
            return fd;
        close(fd); /* removed while it was waited for */
    }
    return -1;
}

static int64_t read_size(int fd)
{
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    char *end = text;
    long long size = n > 0 ? strtoll(text, &end, 10) : -1;
    return end != text && *end == '\n' && size >= 0 ? size : -1;
}

static bool write_size(int fd, int64_t size)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%-20" PRId64 "\n", size);
    /* strtoll stops at the first space */
    for (int i = 0; i < n - 1; i++)
        if (text[i] == ' ')
            text[i] = '\n';
    return pwrite(fd, text, (size_t)n, 0) == n;
}

/* Room for so many bytes, which are counted from now on. */
static bool reserve(struct cache *c, int64_t bytes)
{
    if (bytes > c->max)
        return false;
    AUTO_FD int fd = lock_size(c);
    if (fd < 0)
        return false;
    int64_t size = read_size(fd);
    bool counted = atomic_exchange(&c->counted, true);
    if (!counted && size >= 0)
        size = evict(c, INT64_MAX);
    if (size < 0 || size + bytes > c->max) {
        /* a little more than needed: a look at all of it has its price */
        int64_t most = c->max - bytes - c->max / 32;
        size = evict(c, most > 0 ? most : 0);
    }
    return size + bytes <= c->max && write_size(fd, size + bytes);
}

static void give_back(struct cache *c, int64_t bytes)
{
    AUTO_FD int fd = lock_size(c);
    int64_t size = fd < 0 ? -1 : read_size(fd);
    if (size >= 0)
        write_size(fd, size > bytes ? size - bytes : 0);
}

/* ---- reading ---- */

/* Open a block of just so many bytes (any number for −1), and note its use. */
static int open_block(struct cache *c, const uint8_t sum[DIGEST_BYTES],
                      int64_t bytes)
{
    AUTO_FREE char *path = malloc(PATH_CAP(c));
    if (!path || c->max <= 0)
        return -1;
    path_of(c, sum, path, PATH_CAP(c));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd < 0) {
        if (errno == ELOOP || errno == EMLINK)
            cache_drop(c, sum);
        return -1;
    }
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
        (bytes >= 0 && (int64_t)st.st_size != bytes)) {
        close(fd);
        cache_drop(c, sum);
        return -1;
    }
    if (now_s(CLOCK_REALTIME) - (int64_t)st.st_mtime > TOUCH_S)
        futimens(fd, NULL);
    return fd;
}

static bool read_all(struct cache *c, int fd, int64_t offset, char *out,
                     size_t len)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n =
            pread(fd, out + have, len - have, (off_t)(offset + (int64_t)have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        have += (size_t)n;
    }
    atomic_fetch_add(&c->bytes_read, (long long)len);
    return true;
}

bool cache_get(struct cache *c, const uint8_t sum[DIGEST_BYTES], void *out,
               size_t len)
{
    AUTO_FD int fd = open_block(c, sum, (int64_t)len);
    if (fd < 0)
        return false;
    uint8_t have[DIGEST_BYTES];
    bool whole = read_all(c, fd, 0, out, len);
    if (whole)
        digest_of(out, len, have);
    if (whole && !memcmp(have, sum, sizeof have))
        return true;
    cache_drop(c, sum);
    return false;
}

bool cache_peek(struct cache *c, const uint8_t sum[DIGEST_BYTES],
                int64_t offset, void *out, size_t len)
{
    AUTO_FD int fd = open_block(c, sum, -1);
    return fd >= 0 && read_all(c, fd, offset, out, len);
}

bool cache_has(struct cache *c, const uint8_t sum[DIGEST_BYTES])
{
    AUTO_FREE char *path = malloc(PATH_CAP(c));
    if (!path || c->max <= 0)
        return false;
    path_of(c, sum, path, PATH_CAP(c));
    return access(path, R_OK) == 0;
}

void cache_drop(struct cache *c, const uint8_t sum[DIGEST_BYTES])
{
    AUTO_FREE char *path = malloc(PATH_CAP(c));
    struct stat st;
    if (!path)
        return;
    path_of(c, sum, path, PATH_CAP(c));
    if (lstat(path, &st) == 0 && unlink(path) == 0)
        give_back(c, (int64_t)st.st_size);
}

/* ---- keeping ---- */

/* A new file beside the place of `path`, its name in `half`. */
static int open_half(struct cache *c, const char *path, char *half, size_t cap)
{
    const char *base = strrchr(path, '/');
    int folder = (int)(base - path);
    snprintf(half, cap, "%.*s/new-%ld-%lld", folder, path, (long)getpid(),
             (long long)atomic_fetch_add(&c->named, 1));
    for (int tries = 0; tries < 2; tries++) {
        int fd = open(half, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != ENOENT)
            return fd;
        char saved = half[folder];
        half[folder] = 0;
        int r = make_folders(half);
        half[folder] = saved;
        if (r < 0)
            return -1;
    }
    return -1;
}

static bool write_all(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

/* Two pieces, one file. */
static void put(struct cache *c, const uint8_t sum[DIGEST_BYTES],
                const void *data, size_t len, const void *tail, size_t tail_len)
{
    if (c->max <= 0 ||
        now_s(CLOCK_MONOTONIC) < (int64_t)atomic_load(&c->full_until) ||
        cache_has(c, sum) || !reserve(c, (int64_t)(len + tail_len)))
        return;
    AUTO_FREE char *path = malloc(PATH_CAP(c));
    AUTO_FREE char *half = malloc(PATH_CAP(c));
    int fd = -1;
    bool made = false;
    if (path && half) {
        path_of(c, sum, path, PATH_CAP(c));
        fd = open_half(c, path, half, PATH_CAP(c));
        made = fd >= 0 && write_all(fd, data, len) &&
               write_all(fd, tail, tail_len);
    }
    if (fd >= 0)
        made = close(fd) == 0 && made;
    if (made && rename(half, path) == 0)
        return;
    /* full, read-only, whatever it is: one does without. Unless somebody has
     * just emptied the folder. */
    if (errno != ENOENT)
        atomic_store(&c->full_until, now_s(CLOCK_MONOTONIC) + FULL_S);
    if (fd >= 0)
        unlink(half);
    give_back(c, (int64_t)(len + tail_len));
}

void cache_put(struct cache *c, const uint8_t sum[DIGEST_BYTES],
               const void *data, size_t len)
{
    put(c, sum, data, len, NULL, 0);
}

/* ---- under a name ---- */

static void sum_of_name(const char *name, uint8_t ret[DIGEST_BYTES])
{
    CLEANUP(buf_release) struct buf text = {0};
    memset(ret, 0, DIGEST_BYTES);
    if (buf_addf(&text, "pawl %s", name) == 0)
        digest_of(text.data, text.len, ret);
}

bool cache_get_named(struct cache *c, const char *name, void *out, size_t len)
{
    uint8_t sum[DIGEST_BYTES];
    uint64_t hash = 0;
    sum_of_name(name, sum);
    AUTO_FD int fd = open_block(c, sum, (int64_t)(len + sizeof hash));
    if (fd < 0)
        return false;
    if (read_all(c, fd, 0, out, len) &&
        read_all(c, fd, (int64_t)len, (char *)&hash, sizeof hash) &&
        hash == line_hash(out, len))
        return true;
    cache_drop(c, sum);
    return false;
}

void cache_put_named(struct cache *c, const char *name, const void *data,
                     size_t len)
{
    uint8_t sum[DIGEST_BYTES];
    sum_of_name(name, sum);
    uint64_t hash = line_hash(data, len);
    put(c, sum, data, len, &hash, sizeof hash);
}
