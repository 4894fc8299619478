#include "server/server.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "server/session.h"

#define TOKEN_MIN 16
/* A beat that comes later than this was not just a busy moment. */
#define STANDSTILL_MS 3000
#define BEAT_MS 1000

static _Atomic int64_t stood_still_ms, last_beat_ms;

int64_t server_wall_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static int64_t plain_mono_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Between a standstill and the beat that notices it the clock stops at the
 * last beat, so that it need not go back then. */
int64_t server_mono_ms(void)
{
    int64_t now = plain_mono_ms(), last = atomic_load(&last_beat_ms);
    if (last && now - last > STANDSTILL_MS)
        now = last + BEAT_MS;
    return now - atomic_load(&stood_still_ms);
}

void server_clock_beat(void)
{
    int64_t now = plain_mono_ms(), last = atomic_load(&last_beat_ms);
    if (last && now - last > STANDSTILL_MS)
        atomic_fetch_add(&stood_still_ms, now - last - BEAT_MS);
    atomic_store(&last_beat_ms, now);
}

static int make_folder(const char *path, struct err *err)
{
    struct stat st;
    if (mkdir(path, 0700) == 0)
        return 0;
    if (errno != EEXIST)
        return err_set(err, ERR_IO, "cannot make the folder %s: %s", path,
                       strerror(errno));
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return err_set(err, ERR_IO, "%s is not a folder", path);
    if ((st.st_mode & 077) && chmod(path, 0700) < 0)
        return err_set(err, ERR_IO,
                       "others can look into %s, and it cannot be closed to "
                       "them: %s",
                       path, strerror(errno));
    return 0;
}

static int make_sub(const char *dir, const char *name, char **ret,
                    struct err *err)
{
    if (asprintf(ret, "%s/%s", dir, name) < 0) {
        *ret = NULL;
        return err_set(err, ERR_NOMEM, "no memory for a path");
    }
    return make_folder(*ret, err);
}

/* Uploads and backups that a killed server left. */
static void empty_folder(int above, const char *path)
{
    int fd = openat(above, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        struct stat sb; /* perhaps published, perhaps not: dataset.h */
        if (!strncmp(e->d_name, "upload-", 7) &&
            fstatat(fd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(sb.st_mode) && sb.st_nlink > 1)
            continue;
        if (unlinkat(fd, e->d_name, 0) == 0 || above != AT_FDCWD)
            continue;
        empty_folder(fd, e->d_name); /* a backup's */
        unlinkat(fd, e->d_name, AT_REMOVEDIR);
    }
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
}

static int take_lock(struct server *s, struct err *err)
{
    AUTO_FREE char *path = NULL;
    if (asprintf(&path, "%s/lock", s->dir) < 0) {
        path = NULL;
        return err_set(err, ERR_NOMEM, "no memory for a path");
    }
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return err_set(err, ERR_IO, "cannot open %s: %s", path,
                       strerror(errno));
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        char pid[32] = "";
        ssize_t n = read(s->lock_fd, pid, sizeof(pid) - 1);
        if (n > 0)
            pid[strcspn(pid, "\n")] = '\0';
        close(s->lock_fd);
        s->lock_fd = -1;
        return err_set(err, ERR_CONFLICT,
                       "another pawld (process %s) runs on %s: stop it or use "
                       "another folder",
                       n > 0 ? pid : "unknown", s->dir);
    }
    if (ftruncate(s->lock_fd, 0) < 0 ||
        dprintf(s->lock_fd, "%d\n", getpid()) < 0)
        return err_set(err, ERR_IO, "cannot write %s: %s", path,
                       strerror(errno));
    return 0;
}

bool server_state_is_there(struct server *s)
{
    AUTO_FREE char *path = NULL;
    struct stat st;
    if (asprintf(&path, "%s/pawl.db", s->dir) < 0)
        return true; /* not known to be gone */
    if (stat(path, &st) < 0)
        return errno != ENOENT && errno != ENOTDIR;
    if (!s->db_inode) {
        s->db_device = st.st_dev;
        s->db_inode = st.st_ino;
    }
    return st.st_dev == s->db_device && st.st_ino == s->db_inode;
}

int server_write_file(struct server *s, const char *name, const char *text,
                      int mode, struct err *err)
{
    AUTO_FREE char *path = NULL, *part = NULL;
    if (asprintf(&path, "%s/%s", s->dir, name) < 0 ||
        asprintf(&part, "%s/.%s.new", s->dir, name) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    unlink(part);
    AUTO_FD int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 || dprintf(fd, "%s\n", text) < 0 || fsync(fd) < 0 ||
        rename(part, path) < 0)
        return err_set(err, ERR_IO, "cannot write %s: %s", path,
                       strerror(errno));
    AUTO_FD int dir = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fsync(dir) < 0)
        return err_set(err, ERR_IO, "cannot write to %s: %s", s->dir,
                       strerror(errno));
    return 0;
}

static int read_line(const char *path, char *out, size_t cap)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, out, cap - 1);
    if (n < 0)
        return -1;
    out[n] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
    return (int)strlen(out);
}

static int load_token(struct server *s, struct err *err)
{
    AUTO_FREE char *path = NULL;
    struct stat st;
    if (asprintf(&path, "%s/token", s->dir) < 0) {
        path = NULL;
        return err_set(err, ERR_NOMEM, "no memory for a path");
    }
    if (stat(path, &st) < 0) {
        if (errno != ENOENT)
            return err_set(err, ERR_IO, "cannot read %s: %s", path,
                           strerror(errno));
        random_hex(s->token, 32);
        return server_write_file(s, "token", s->token, 0600, err);
    }
    if ((st.st_mode & 077) && chmod(path, 0600) < 0)
        return err_set(err, ERR_IO,
                       "others can read %s, and it cannot be closed to them: "
                       "%s",
                       path, strerror(errno));
    if (st.st_size >= (off_t)sizeof(s->token))
        return err_set(err, ERR_INVALID, "%s is longer than %zu bytes", path,
                       sizeof(s->token) - 1);
    int n = read_line(path, s->token, sizeof(s->token));
    if (n < 0)
        return err_set(err, ERR_IO, "cannot read %s: %s", path,
                       strerror(errno));
    if (n < TOKEN_MIN)
        return err_set(err, ERR_INVALID,
                       "%s holds no token of at least %d characters: remove it "
                       "to have one made",
                       path, TOKEN_MIN);
    for (const char *c = s->token; *c; c++)
        if (!isgraph((unsigned char)*c))
            return err_set(err, ERR_INVALID,
                           "%s holds a character that no header can carry",
                           path);
    return 0;
}

/* The cookie's name: cookies know no ports, so two servers on one host must not
 * share one. It lasts as long as the token does. */
static void name_instance(struct server *s)
{
    char text[sizeof(s->token) + 16], hex[DIGEST_HEX];
    uint8_t sum[DIGEST_BYTES];
    int n = snprintf(text, sizeof(text), "instance %s", s->token);
    digest_of(text, (size_t)n, sum);
    digest_hex(sum, hex);
    snprintf(s->instance, sizeof(s->instance), "%.16s", hex);
}

int server_open_state(struct server *s, struct err *err)
{
    int r = make_folder(s->options.state, err);
    if (r < 0)
        return r;
    s->dir = realpath(s->options.state, NULL);
    if (!s->dir)
        return err_set(err, ERR_IO, "cannot use %s: %s", s->options.state,
                       strerror(errno));
    r = take_lock(s, err);
    if (r >= 0)
        r = make_sub(s->dir, "datasets", &s->datasets_dir, err);
    if (r >= 0)
        r = make_sub(s->dir, "tmp", &s->tmp_dir, err);
    if (r >= 0)
        r = make_sub(s->dir, "logs", &s->logs_dir, err);
    if (r < 0)
        return r;
    empty_folder(AT_FDCWD, s->tmp_dir);
    r = load_token(s, err);
    if (r < 0)
        return r;
    name_instance(s);
    if (read_line("/proc/sys/kernel/random/boot_id", s->boot, sizeof(s->boot)) <
        0)
        strcpy(s->boot, "unknown");
    return 0;
}
