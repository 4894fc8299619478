/* What Linux tells of processes: /proc, the kernel's log, cgroups of both
 * versions. */
#ifdef __linux__
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "server/death.h"

#define OOM_LINES 16
#define WATCH_MS 3000

struct death_log {
    int fd;
    /* the newest lines of processes killed; several may die at once */
    char lines[OOM_LINES][400];
    unsigned n;
};

static int read_text(const char *path, char *out, size_t cap)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, out, cap - 1);
    if (n < 0)
        return -1;
    out[n] = '\0';
    return (int)n;
}

int64_t process_started(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (read_text(path, text, sizeof(text)) < 0)
        return -1;
    /* field 22; the name may hold spaces and brackets: fields count from the
     * last one */
    char *s = strrchr(text, ')');
    for (int field = 2; s && field < 22; field++)
        s = strchr(s + 1, ' ');
    return s ? strtoll(s + 1, NULL, 10) : -1;
}

bool process_is_zombie(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (read_text(path, text, sizeof(text)) < 0)
        return false;
    char *s = strrchr(text, ')');
    return s && s[1] == ' ' && (s[2] == 'Z' || s[2] == 'X');
}

/* The file in which the process's cgroup counts its kills: of the unified
 * hierarchy, or of the memory controller where that is still apart. */
static void find_cgroup(pid_t pid, char *out, size_t cap)
{
    char path[64], text[4096];
    *out = '\0';
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    if (read_text(path, text, sizeof(text)) < 0)
        return;
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *at;
        if (!strncmp(line, "0::/", 4))
            snprintf(out, cap, "/sys/fs/cgroup%.400s/memory.events",
                     line[4] ? line + 3 : "");
        else if ((at = strstr(line, ":memory:/")))
            snprintf(out, cap, "/sys/fs/cgroup/memory%.400s/memory.oom_control",
                     at[9] ? at + 8 : "");
        if (*out && access(out, R_OK) == 0)
            return;
        *out = '\0';
    }
}

static int64_t read_oom_kills(const char *path)
{
    char text[1024];
    if (!*path || read_text(path, text, sizeof(text)) < 0)
        return -1;
    for (char *s = text; s && *s; s = strchr(s, '\n'), s = s ? s + 1 : NULL)
        if (!strncmp(s, "oom_kill ", 9))
            return strtoll(s + 9, NULL, 10);
    return -1;
}

/* Note the counter, so that it can be seen to grow about when the process dies.
 * Tearing down a large one takes a while, so the figure compared with is some
 * seconds old. Whoever moves a worker to another cgroup is followed. */
void death_watch(struct death_watch *w, pid_t pid, int64_t now)
{
    char path[sizeof(w->counter)];
    if (w->read_ms && now - w->read_ms < WATCH_MS)
        return;
    w->read_ms = now;
    find_cgroup(pid, path, sizeof(path));
    int64_t kills = read_oom_kills(path);
    if (strcmp(path, w->counter)) {
        strcpy(w->counter, path);
        w->kills_next = kills;
    }
    w->kills = w->kills_next;
    w->kills_next = kills;
}

struct death_log *death_log_open(void)
{
    struct death_log *log = calloc(1, sizeof(*log));
    if (!log)
        return NULL;
    log->fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (log->fd < 0) {
        free(log);
        return NULL;
    }
    lseek(log->fd, 0, SEEK_END);
    return log;
}

void death_log_close(struct death_log *log)
{
    if (!log)
        return;
    close(log->fd);
    free(log);
}

/* What the kernel logged since the last look. */
static void read_kmsg(struct death_log *log)
{
    char line[8192];
    for (int i = 0; i < 100000; i++) {
        ssize_t n = read(log->fd, line, sizeof(line) - 1);
        if (n < 0 && (errno == EPIPE || errno == EINTR))
            continue; /* lines were overwritten */
        if (n <= 0)
            return;
        line[n] = '\0';
        line[strcspn(line, "\n")] = '\0';
        char *text = strchr(line, ';');
        if (text && strstr(text, "illed process ") &&
            (strstr(text, "emory") || strstr(text, "OOM") ||
             strstr(text, "oom")))
            snprintf(log->lines[log->n++ % OOM_LINES], sizeof(log->lines[0]),
                     "%s", text + 1);
    }
}

/* A line that names the pid as killed for memory is the best evidence. */
static char *find_oom_line(struct death_log *log, pid_t pid)
{
    char needle[64];
    snprintf(needle, sizeof(needle), "illed process %d ", (int)pid);
    read_kmsg(log);
    for (int i = 0; i < OOM_LINES; i++)
        if (strstr(log->lines[i], needle))
            return log->lines[i];
    return NULL;
}

void death_evidence(struct death *d, const struct death_watch *w,
                    struct death_log *log)
{
    char *line = log ? find_oom_line(log, (pid_t)d->pid) : NULL;
    if (d->kind == DEATH_EXIT ||
        (d->kind == DEATH_SIGNAL && d->signal != SIGKILL))
        return;
    if (line) {
        d->oom_confirmed = true;
        snprintf(d->evidence, sizeof(d->evidence), "kernel: %s", line);
        *line = '\0'; /* the pid may come again */
        return;
    }
    int64_t now = read_oom_kills(w->counter);
    if (w->kills >= 0 && now > w->kills) {
        d->oom_confirmed = true;
        snprintf(d->evidence, sizeof(d->evidence),
                 "oom_kill in %.300s went from %" PRId64 " to %" PRId64,
                 w->counter, w->kills, now);
    }
}
#endif
