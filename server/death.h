/* death.h - how a worker ended, and what proves it.
 *
 * Exit code and signal are kept apart, and 137 alone proves nothing: only the
 * kernel's own word makes a SIGKILL an out-of-memory kill. That is a line of
 * its log that names the pid, or else the kill counter of the process's cgroup,
 * if it grew about when the process died. Where the kernel says neither, the
 * cause is not known, and the verdict says so.
 *
 * death.c judges; death_linux.c asks the system. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum death_kind { DEATH_EXIT, DEATH_SIGNAL, DEATH_UNKNOWN };

/* How a worker ended. DEATH_UNKNOWN: it was adopted, so its status went to
 * init. */
struct death {
    int64_t pid, start_ticks;
    enum death_kind kind;
    int code, signal; /* one of them, or -1 */
    bool oom_confirmed;
    char verdict[160];    /* "was killed by signal 9, cause unknown" */
    char evidence[512];   /* the kernel's line or the counter; "" if none */
    char last_lines[600]; /* of its stderr; "" if none */
};

/* Is this exit the normal end of a worker? */
bool death_is_clean(const struct death *d);
/* Fill verdict from kind, code, signal and oom_confirmed. */
void death_judge(struct death *d);
/* Fill last_lines from the file that its stderr went to. */
void death_read_log(struct death *d, const char *path);

/* ---- the system's part ---- */

/* When a process began, in clock ticks since boot; -1: there is none. Pid and
 * start together name a process for good. */
int64_t process_started(pid_t pid);
/* A zombie holds its pid and start time, but does nothing any more. */
bool process_is_zombie(pid_t pid);

/* Kept of a live process, so that its death can be told from others'. */
struct death_watch {
    char counter[512]; /* the file where its cgroup counts kills; "": nowhere */
    int64_t kills;     /* the counter some seconds ago; -1: not known */
    int64_t kills_next, read_ms;
};
#define DEATH_WATCH_INIT                                                       \
    {                                                                          \
        .kills = -1, .kills_next = -1                                          \
    }
/* Call about once a second. */
void death_watch(struct death_watch *w, pid_t pid, int64_t mono_ms);

/* The kernel's log, from now on. NULL: not readable; the counters must do. */
struct death_log;
struct death_log *death_log_open(void);
void death_log_close(struct death_log *log);
/* Fill oom_confirmed and evidence, where a death could be for memory. */
void death_evidence(struct death *d, const struct death_watch *w,
                    struct death_log *log);
