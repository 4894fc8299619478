#include "server/root.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/spec.h"
#include "server/options.h"
#include "server/root_part.h"

#define DEPTH_MAX 32
#define FILES_MAX 1000000

struct root_list root_list;

const char *root_path(const char *root)
{
    for (size_t i = 0; i < root_list.n; i++)
        if (!strcmp(root_list.v[i].name, root))
            return root_list.v[i].path;
    return NULL;
}

void root_warn(void)
{
    for (size_t i = 0; i < root_list.n; i++) {
        const struct data_root *root = &root_list.v[i];
        DIR *dir = opendir(root->path);
        if (dir)
            closedir(dir);
        else
            fprintf(stderr,
                    "pawld: warning: cannot read the folder %s of data root "
                    "'%s': %s; jobs on it wait until it can be read\n",
                    root->path, root->name, strerror(errno));
    }
}

int root_check(const char *root, struct err *err)
{
    if (root_path(root))
        return 0;
    CLEANUP(buf_release) struct buf names = {0};
    for (size_t i = 0; i < root_list.n; i++) {
        buf_adds(&names, i ? ", " : "there is ");
        buf_adds(&names, root_list.v[i].name);
    }
    return err_at(err, ERR_INVALID, "/data/root",
                  "there is no data root '%s': %.300s", root,
                  root_list.n ? names.data
                              : "pawld was started without --data-root "
                                "NAME=DIR");
}

void root_files_release(struct root_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->v[i].name);
    free(f->v);
    *f = (struct root_files){0};
}

/* ---- walk ---- */

struct walk {
    const char *root, *match;
    size_t limit, seen;
    root_stop_fn *stop;
    void *arg;
    struct root_files *ret;
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && !strcmp(s + n - m, end);
}

bool root_matches(const char *match, const char *name)
{
    if (match)
        return fnmatch(match, name, 0) == 0;
    return ends_with(name, ".jsonl") || ends_with(name, ".jsonl.gz") ||
           ends_with(name, ".jsonl.zst");
}

int64_t root_mtime_ns(const struct stat *st)
{
#ifdef __APPLE__
    struct timespec t = st->st_mtimespec;
#else
    struct timespec t = st->st_mtim;
#endif
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int add_file(struct walk *w, const char *name, const struct stat *st,
                    struct err *err)
{
    AUTO_JSON json_t *utf8 = json_string(name);
    if (!utf8 || strlen(name) > ROOT_NAME_MAX)
        return err_at(err, ERR_INVALID, "/data/match",
                      "root '%s' has a file whose path is %s: %.300s", w->root,
                      utf8 ? "longer than 400 bytes" : "no UTF-8",
                      utf8 ? name : "rename it, or leave it out by match");
    struct root_files *f = w->ret;
    if (f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 64;
        void *more = realloc(f->v, cap * sizeof(*f->v));
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for a list of files");
        f->v = more;
        f->cap = cap;
    }
    if (f->n >= FILES_MAX)
        return err_at(err, ERR_INVALID, "/data/match",
                      "more than %d files of root '%s' match", FILES_MAX,
                      w->root);
    f->v[f->n] = (struct root_file){.name = strdup(name),
                                    .bytes = st->st_size,
                                    .mtime_ns = root_mtime_ns(st),
                                    .inode = (int64_t)st->st_ino};
    if (!f->v[f->n].name)
        return err_set(err, ERR_NOMEM, "no memory for a list of files");
    f->n++;
    return 0;
}

static void dir_close(DIR **d)
{
    if (*d)
        closedir(*d);
}

static int cannot_read(const struct walk *w, const char *at, struct err *err)
{
    return err_set(
        err, ERR_IO, "cannot read folder %s%s%.300s of root '%s': %s",
        root_path(w->root), *at ? "/" : "", at, w->root, strerror(errno));
}

/* Can a file below this folder match? Not where the pattern's beginning, up to
 * its first wildcard, leads elsewhere. */
static bool may_match(const char *match, const char *folder)
{
    if (!match)
        return true;
    size_t plain = strcspn(match, "*?[\\"), n = strlen(folder);
    if (plain <= n)
        return !strncmp(match, folder, plain);
    return !strncmp(match, folder, n) && match[n] == '/';
}

static int walk_folder(struct walk *w, int parent, const char *folder,
                       const char *at, int depth, struct err *err);

/* One name of a folder whose path below the root is `at`. */
static int walk_entry(struct walk *w, int dir, const char *at, const char *name,
                      int depth, struct err *err)
{
    struct stat st;
    AUTO_FREE char *path = NULL;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : cannot_read(w, at, err);
    if (asprintf(&path, "%s%s%s", at, *at ? "/" : "", name) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (S_ISDIR(st.st_mode))
        return may_match(w->match, path)
                   ? walk_folder(w, dir, name, path, depth + 1, err)
                   : 0;
    if (!S_ISREG(st.st_mode) || !root_matches(w->match, path))
        return 0;
    return add_file(w, path, &st, err);
}

static int walk_folder(struct walk *w, int parent, const char *folder,
                       const char *at, int depth, struct err *err)
{
    if (depth > DEPTH_MAX)
        return err_at(err, ERR_INVALID, "/data/match",
                      "folders of root '%s' lie more than %d deep: leave "
                      "%.200s out by match",
                      w->root, DEPTH_MAX, at);
    int fd =
        openat(parent, folder,
               O_RDONLY | O_DIRECTORY | O_CLOEXEC | (depth ? O_NOFOLLOW : 0));
    if (fd < 0 && depth &&
        (errno == ENOENT || errno == ELOOP || errno == ENOTDIR))
        return 0; /* it went, or became a link, a moment ago */
    CLEANUP(dir_close) DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int r = cannot_read(w, at, err);
        if (fd >= 0)
            close(fd);
        return r;
    }
    const struct dirent *e;
    while (errno = 0, (e = readdir(dir))) {
        if (w->limit && w->ret->n >= w->limit)
            return 0;
        if (w->stop && ++w->seen % 256 == 0 && w->stop(w->arg))
            return err_set(err, ERR_BUSY, "stopped");
        if (e->d_name[0] == '.')
            continue;
        int r = walk_entry(w, dirfd(dir), at, e->d_name, depth, err);
        if (r < 0)
            return r;
    }
    return errno ? cannot_read(w, at, err) : 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct root_file *)a)->name,
                  ((const struct root_file *)b)->name);
}

int root_walk(const char *root, const char *match, size_t limit,
              root_stop_fn *stop, void *arg, struct root_files *ret,
              struct err *err)
{
    const char *path = root_path(root);
    CLEANUP(root_files_release) struct root_files files = {0};
    struct walk w = {.root = root,
                     .match = match,
                     .limit = limit,
                     .stop = stop,
                     .arg = arg,
                     .ret = &files};
    if (!path)
        return root_check(root, err);
    int r = walk_folder(&w, AT_FDCWD, path, "", 0, err);
    if (r < 0)
        return r;
    if (files.n)
        qsort(files.v, files.n, sizeof(*files.v), by_name);
    *ret = files;
    files = (struct root_files){0};
    return 0;
}

int root_none(const struct data_spec *d, struct err *err)
{
    return err_at(err, ERR_INVALID, d->match ? "/data/match" : "/data/root",
                  "root '%s' has no file that matches %s", d->root,
                  d->match ? d->match : "*.jsonl, *.jsonl.gz or *.jsonl.zst");
}

int root_has_data(const struct data_spec *d, struct err *err)
{
    CLEANUP(root_files_release) struct root_files files = {0};
    int r = root_walk(d->root, d->match, 1, NULL, NULL, &files, err);
    return r < 0 || files.n ? r : root_none(d, err);
}

/* ---- open ---- */

int root_blame(struct err *err, const char *name, int64_t offset,
               const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    err_set(err, ERR_DATA, "shard '%.400s' %s", name, what);
    snprintf(err->shard, sizeof(err->shard), "%s", name);
    err->offset = offset;
    return ERR_DATA;
}

int root_not_open(const char *name, const char *path, struct err *err)
{
    switch (errno) {
    case ELOOP:
    case EMLINK:
        return root_blame(err, name, 0,
                          "is a symbolic link now; links are not followed");
    case ENOENT:
    case ENOTDIR:
        return root_blame(err, name, 0, "is missing: there is no file %.180s",
                          path);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EIO:
        return err_set(err, ERR_IO, "cannot open shard '%.400s': %s", name,
                       strerror(errno));
    default:
        return root_blame(err, name, 0, "cannot be opened: %s",
                          strerror(errno));
    }
}

int root_open(const char *root, const char *name, struct stat *ret,
              struct err *err)
{
    const char *path = root_path(root);
    if (!path)
        return root_blame(err, name, 0,
                          "lies below the data root '%s', which pawld was not "
                          "started with",
                          root);
    AUTO_FREE char *rest = strdup(name);
    AUTO_FD int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!rest)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (dir < 0)
        return err_set(err, ERR_IO, "cannot open root '%s': %s", root,
                       strerror(errno));
    char *at = rest, *slash;
    for (; (slash = strchr(at, '/')); at = slash + 1) {
        *slash = '\0';
        int below =
            strcmp(at, "..")
                ? openat(dir, at,
                         O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                : (errno = ENOENT, -1);
        if (below < 0) {
            struct stat st;
            if (errno == ENOTDIR &&
                fstatat(dir, at, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                S_ISLNK(st.st_mode))
                errno = ELOOP;
            return root_not_open(name, name, err);
        }
        close(dir);
        dir = below;
    }
    /* O_NONBLOCK: a pipe in its place must not hold us up */
    AUTO_FD int fd =
        openat(dir, at, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return root_not_open(name, name, err);
    if (fstat(fd, ret) < 0)
        return err_set(err, ERR_IO, "cannot stat shard '%.400s': %s", name,
                       strerror(errno));
    if (!S_ISREG(ret->st_mode))
        return root_blame(err, name, 0, "is not a regular file any more");
    int out = fd;
    fd = -1;
    return out;
}
