#include "server/supervisor.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "server/lane.h"
#include "server/lease.h"
#include "server/server.h"
#include "server/unfit.h"
#include "server/worker.h"

/* A process that ends sooner than this and did nothing is a sign that the next
 * one will, too. */
#define QUICK_MS 10000
#define BACKOFF_MIN_MS 250
#define BACKOFF_MAX_MS 30000
#define LOGS_KEPT 20
/* Threads that wait for each other sleep, see worker/main.c: a worker that
 * finds neither this nor the caller's own choice would have to start again. */
#define WAIT_POLICY "OMP_WAIT_POLICY=passive"
#define LOOK_MS 1000
#define COME_BACK_MS 15000 /* for one that hangs, after its lease was lost */
#define DRAIN_MS 30000     /* for one that has nothing to save */

enum role_now { WORKER_ACTIVE, WORKER_STANDBY };

struct proc {
    struct proc *next;
    pid_t pid;
    int64_t start_ticks;
    int pidfd;
    int go_fd; /* the stand-by waits at its other end; -1 */
    enum role_now role;
    bool adopted;
    int64_t started_ms;
    struct death_watch watch;
    int64_t silent_ms;    /* since when its lease is lost by silence; 0 */
    int64_t idle_ms;      /* since when it holds none while the server stops */
    const char *given_up; /* why it was killed: "hung"; NULL: it was not */
};

struct supervisor {
    struct server *server;
    char *program; /* <folder of pawld>/pawl-worker */
    char **env;    /* the workers': ours, and perhaps WAIT_POLICY */
    int wake_fd;
    pthread_t thread;
    bool started;
    struct death_log *kernel; /* or NULL */

    pthread_mutex_t mutex; /* for what others read: procs, drained */
    pthread_cond_t gone;
    struct proc *procs;
    bool draining, stop;

    /* the thread's own */
    int quick_deaths;
    int64_t not_before_ms; /* no start sooner */
    int64_t looked_ms;
    int64_t drained_ms; /* when they were asked to save and end */
    bool look_failed;
};

/* ---- processes ---- */

static int64_t mono_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void log_path(struct supervisor *sup, pid_t pid, char *out, size_t cap)
{
    snprintf(out, cap, "%s/worker-%d.log", sup->server->logs_dir, (int)pid);
}

/* Logs of workers that are gone: those that say nothing go, and of the others
 * all but the newest. */
static void prune_logs(struct supervisor *sup)
{
    const char *dir = sup->server->logs_dir;
    for (;;) {
        DIR *d = opendir(dir);
        struct dirent *e;
        char oldest[300] = "";
        struct timespec at = {0};
        int n = 0;
        while (d && (e = readdir(d))) {
            struct stat st;
            if (strncmp(e->d_name, "worker-", 7) ||
                fstatat(dirfd(d), e->d_name, &st, 0) < 0)
                continue;
            pid_t pid = atoi(e->d_name + 7);
            bool live = false;
            for (struct proc *p = sup->procs; p; p = p->next)
                live |= p->pid == pid;
            if (live)
                continue;
            if (!st.st_size) {
                unlinkat(dirfd(d), e->d_name, 0);
                continue;
            }
            n++;
            if (!oldest[0] || st.st_mtim.tv_sec < at.tv_sec ||
                (st.st_mtim.tv_sec == at.tv_sec &&
                 st.st_mtim.tv_nsec < at.tv_nsec)) {
                snprintf(oldest, sizeof(oldest), "%s", e->d_name);
                at = st.st_mtim;
            }
        }
        if (d && n > LOGS_KEPT)
            unlinkat(dirfd(d), oldest, 0);
        if (d)
            closedir(d);
        if (!d || n <= LOGS_KEPT + 1)
            return;
    }
}

/* In the child: only what is safe between fork and exec. */
static void child_log(const char *dir)
{
    char path[4200], digits[16];
    size_t n = strlen(dir), k = 0;
    unsigned pid = (unsigned)getpid();
    memcpy(path, dir, n);
    memcpy(path + n, "/worker-", 8);
    n += 8;
    do
        digits[k++] = (char)('0' + pid % 10);
    while (pid /= 10);
    while (k)
        path[n++] = digits[--k];
    memcpy(path + n, ".log", 5);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    if (fd >= 0) {
        dup2(fd, 2);
        dup2(fd, 1);
    }
}

static _Noreturn void child_exec(struct supervisor *sup, char **argv,
                                 int stdin_fd)
{
    sigset_t none;
    sigemptyset(&none);
    for (int sig = 1; sig < 32; sig++)
        signal(sig, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid(); /* a terminal's ^C is for pawld, which lets its workers save */
    if (stdin_fd >= 0) {
        dup2(stdin_fd, 0);
    } else {
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0)
            dup2(null, 0);
    }
    child_log(sup->server->logs_dir);
    close_range(3, ~0u, 0);
    execve(argv[0], argv, sup->env);
    static const char text[] = "cannot run pawl-worker\n";
    ssize_t n = write(2, text, sizeof(text) - 1);
    _exit(n > 0 ? 127 : 126);
}

static int proc_start(struct supervisor *sup, enum role_now role)
{
    char supervised[40]; /* whose child it is, whenever it gets to look */
    snprintf(supervised, sizeof(supervised), "--supervised=%d", (int)getpid());
    char *argv[] = {
        sup->program, (char *)"--state", sup->server->dir, supervised, NULL,
        NULL};
    int pipe_fds[2] = {-1, -1};
    struct proc *p = calloc(1, sizeof(*p));
    if (!p)
        return -1;
    if (role == WORKER_STANDBY) {
        argv[4] = (char *)"--standby";
        if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
            free(p);
            return -1;
        }
    }
    pid_t pid = fork();
    if (pid == 0)
        child_exec(sup, argv, pipe_fds[0]);
    if (pipe_fds[0] >= 0)
        close(pipe_fds[0]);
    if (pid < 0) {
        fprintf(stderr, "pawld: cannot start a worker: %s\n", strerror(errno));
        if (pipe_fds[1] >= 0)
            close(pipe_fds[1]);
        free(p);
        return -1;
    }
    p->pid = pid;
    p->pidfd = pidfd_open(pid, 0);
    p->start_ticks = process_started(pid);
    p->go_fd = pipe_fds[1];
    p->role = role;
    p->started_ms = mono_ms();
    p->watch = (struct death_watch)DEATH_WATCH_INIT;
    death_watch(&p->watch, p->pid, p->started_ms);
    pthread_mutex_lock(&sup->mutex);
    p->next = sup->procs;
    sup->procs = p;
    pthread_mutex_unlock(&sup->mutex);
    return 0;
}

/* ---- adoption ---- */

/* What the worker table says of this host's processes. */
struct look {
    struct supervisor *sup;
    struct local {
        int64_t pid, started;
        enum worker_hold hold;
    } * all;
    size_t n;
};

static void look_release(struct look *l)
{
    free(l->all);
}

static int look_one(void *arg, int64_t pid, int64_t started,
                    enum worker_hold hold, struct err *err)
{
    struct look *l = arg;
    void *more = realloc(l->all, (l->n + 1) * sizeof(*l->all));
    if (!more)
        return err_set(err, ERR_NOMEM, "no memory for a worker");
    l->all = more;
    l->all[l->n++] = (struct local){pid, started, hold};
    return 0;
}

static int look_up(void *arg, struct ctx *ctx, struct err *err)
{
    struct look *l = arg;
    return worker_each_local(ctx->st, l->sup->server->boot, look_one, l, err);
}

static struct proc *proc_find(struct supervisor *sup, const struct local *w)
{
    for (struct proc *p = sup->procs; p; p = p->next)
        if (p->pid == w->pid && p->start_ticks == w->started)
            return p;
    return NULL;
}

/* A worker of an earlier run of the server, or NULL: it is gone. */
static struct proc *adopt(struct supervisor *sup, const struct local *w)
{
    int fd = pidfd_open((pid_t)w->pid, 0);
    struct proc *p = NULL;
    /* the pid may be another process by now: its start time tells */
    if (fd >= 0 && process_started((pid_t)w->pid) == w->started &&
        !process_is_zombie((pid_t)w->pid))
        p = calloc(1, sizeof(*p));
    if (!p) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    p->pid = (pid_t)w->pid;
    p->start_ticks = w->started;
    p->pidfd = fd;
    p->go_fd = -1;
    p->adopted = true;
    p->started_ms = mono_ms();
    p->watch = (struct death_watch)DEATH_WATCH_INIT;
    death_watch(&p->watch, p->pid, p->started_ms);
    pthread_mutex_lock(&sup->mutex);
    p->next = sup->procs;
    sup->procs = p;
    pthread_mutex_unlock(&sup->mutex);
    return p;
}

/* Workers that died while nobody looked. */
static int report_dead(void *arg, struct ctx *ctx, struct err *err)
{
    struct look *l = arg;
    int r = 0;
    for (size_t i = 0; i < l->n && r >= 0; i++)
        if (!proc_find(l->sup, &l->all[i]))
            r = lease_worker_died(
                ctx->st, l->all[i].pid, l->all[i].started, l->sup->server->boot,
                "ended while the server was away", NULL, ctx->now_ms, err);
    return r < 0 ? r : 0;
}

static void give_up(struct proc *p, const char *what, const char *why)
{
    if (p->given_up)
        return;
    fprintf(stderr, "pawld: worker %d %s: killed\n", (int)p->pid, why);
    p->given_up = what;
    pidfd_send_signal(p->pidfd, SIGKILL, NULL, 0);
}

/* A worker that hangs (in a driver, say) is not waited for: its lease was lost
 * by silence, it had time to come back, and nobody else may use the device
 * while it lives. When the server stops there is nothing to come back to. */
static void judge_silence(struct proc *p, enum worker_hold hold, bool draining)
{
    int64_t now = mono_ms();
    if (hold != LOST_BY_SILENCE)
        p->silent_ms = 0;
    else if (!p->silent_ms)
        p->silent_ms = now;
    if (p->silent_ms && (draining || now - p->silent_ms >= COME_BACK_MS))
        give_up(p, "hung", "hangs, and its lease is lost");
    if (!draining || hold != HOLDS_NOTHING)
        p->idle_ms = 0;
    else if (!p->idle_ms)
        p->idle_ms = now;
    if (p->idle_ms && now - p->idle_ms >= DRAIN_MS)
        give_up(p, "did not end", "has nothing to save and does not end");
}

/* Those that were asked to save and did not, for whatever reason: it has to end
 * some time. Their leases are lost, as with any death. */
static void judge_drain(struct supervisor *sup)
{
    int64_t limit = sup->server->options.drain_timeout_s;
    if (mono_ms() - sup->drained_ms < limit * 1000)
        return;
    for (struct proc *p = sup->procs; p; p = p->next)
        give_up(p, "did not save in time when the server stopped",
                "has not saved within the drain timeout");
}

/* Once a second: adopt local workers that nobody knew (they were loading when
 * their server was killed), and look for those that hang. */
static int look_around(struct supervisor *sup, bool draining, struct err *err)
{
    CLEANUP(look_release) struct look l = {.sup = sup};
    int r = lanes_call(sup->server->lanes, LANE_READ, look_up, &l, err);
    if (r < 0)
        return r;
    bool dead = false;
    for (size_t i = 0; i < l.n; i++) {
        struct proc *p = proc_find(sup, &l.all[i]);
        if (!p && (p = adopt(sup, &l.all[i])) && draining)
            pidfd_send_signal(p->pidfd, SIGTERM, NULL, 0);
        dead |= !p;
    }
    for (struct proc *p = sup->procs; p; p = p->next) {
        enum worker_hold hold = HOLDS_NOTHING;
        for (size_t i = 0; i < l.n; i++)
            if (l.all[i].pid == p->pid && l.all[i].started == p->start_ticks)
                hold = l.all[i].hold;
        judge_silence(p, hold, draining);
    }
    return dead ? lanes_call(sup->server->lanes, LANE_WRITE, report_dead, &l,
                             err)
                : 0;
}

/* ---- deaths ---- */

struct death_report {
    struct supervisor *sup;
    const struct death *death;
    bool quick; /* it ended soon after its start */
    bool known; /* it had reached the server */
};

static int report_death(void *arg, struct ctx *ctx, struct err *err)
{
    struct death_report *r = arg;
    const struct death *d = r->death;
    const char *boot = r->sup->server->boot;
    int64_t id;
    struct err ignored;

    r->known =
        worker_find(ctx->st, d->pid, d->start_ticks, boot, &id, &ignored) >= 0;
    int lost = lease_died(ctx->st, d, boot, ctx->now_ms, err);
    if (lost != 0 || !r->quick || r->known)
        return lost;
    /* those that wait for a worker want to know why none comes */
    char why[900];
    snprintf(why, sizeof(why),
             "the server's workers end at once: the last one %s%s%s",
             d->verdict, d->last_lines[0] ? ": " : "", d->last_lines);
    for (char *s = why; (s = strchr(s, '\n'));)
        *s = ' ';
    int told = unfit_workers(ctx->st, why, err);
    if (told >= 0)
        told = unfit_tell(ctx->st, ctx->now_ms, err);
    return told < 0 ? told : lost;
}

static void proc_free(struct proc *p)
{
    if (p->pidfd >= 0)
        close(p->pidfd);
    if (p->go_fd >= 0)
        close(p->go_fd);
    free(p);
}

static void proc_unlink(struct supervisor *sup, struct proc *p)
{
    pthread_mutex_lock(&sup->mutex);
    for (struct proc **at = &sup->procs; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    pthread_cond_broadcast(&sup->gone);
    pthread_mutex_unlock(&sup->mutex);
}

static void back_off(struct supervisor *sup)
{
    int64_t wait = BACKOFF_MIN_MS;
    for (int i = 0; i < sup->quick_deaths && wait < BACKOFF_MAX_MS; i++)
        wait *= 2;
    if (wait > BACKOFF_MAX_MS)
        wait = BACKOFF_MAX_MS;
    sup->quick_deaths++;
    sup->not_before_ms = mono_ms() + wait;
}

static void proc_died(struct supervisor *sup, struct proc *p)
{
    struct death d = {.pid = p->pid,
                      .start_ticks = p->start_ticks,
                      .kind = DEATH_UNKNOWN,
                      .code = -1,
                      .signal = -1};
    struct death_report report = {.sup = sup, .death = &d};
    struct err err;

    if (!p->adopted) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)p->pid, &info, WEXITED) == 0 &&
            info.si_pid == p->pid) {
            d.kind = info.si_code == CLD_EXITED ? DEATH_EXIT : DEATH_SIGNAL;
            if (d.kind == DEATH_EXIT)
                d.code = info.si_status;
            else
                d.signal = info.si_status;
        }
    }
    death_evidence(&d, &p->watch, sup->kernel);
    death_judge(&d);
    if (p->given_up && !d.oom_confirmed && !death_is_clean(&d))
        snprintf(d.verdict, sizeof(d.verdict),
                 "%s, and was killed by the server", p->given_up);
    if (!death_is_clean(&d)) {
        char path[4200];
        log_path(sup, p->pid, path, sizeof(path));
        death_read_log(&d, path);
    }

    int r = 0;
    report.quick = mono_ms() - p->started_ms < QUICK_MS;
    if (p->role == WORKER_ACTIVE)
        r = lanes_call(sup->server->lanes, LANE_WRITE, report_death, &report,
                       &err);
    if (r < 0)
        fprintf(stderr, "pawld: the end of worker %d is not on record: %s\n",
                (int)p->pid, err.text);
    if (!death_is_clean(&d) && !sup->draining && d.kind != DEATH_UNKNOWN)
        fprintf(stderr, "pawld: worker %d %s%s%s%s%s\n", (int)p->pid, d.verdict,
                d.evidence[0] ? "\n  " : "", d.evidence,
                d.last_lines[0] ? "\n  " : "", d.last_lines);
    /* one that lost a lease has its budget there; a clean end after work or
     * waiting is the normal one */
    bool useless = death_is_clean(&d) ? !report.known : r == 0;
    if (useless && report.quick)
        back_off(sup);
    else
        sup->quick_deaths = 0;
    proc_unlink(sup, p);
    proc_free(p);
    prune_logs(sup);
}

/* ---- the thread ---- */

static void promote(struct supervisor *sup, struct proc *p)
{
    ssize_t n = write(p->go_fd, "go\n", 3);
    close(p->go_fd);
    pthread_mutex_lock(&sup->mutex);
    p->go_fd = -1;
    p->role = WORKER_ACTIVE;
    pthread_mutex_unlock(&sup->mutex);
    if (n != 3)
        kill(p->pid, SIGKILL); /* its death is seen like any other */
}

static int count(struct supervisor *sup, enum role_now role, struct proc **ret)
{
    int n = 0;
    for (struct proc *p = sup->procs; p; p = p->next)
        if (p->role == role) {
            n++;
            if (ret)
                *ret = p;
        }
    return n;
}

/* Bring the number of workers to what it should be. */
static void restore(struct supervisor *sup)
{
    int wanted = sup->server->options.workers;
    struct proc *standby = NULL;
    int standbys = count(sup, WORKER_STANDBY, &standby);
    for (int n = count(sup, WORKER_ACTIVE, NULL); n < wanted; n++) {
        if (standbys) {
            promote(sup, standby);
            standbys = count(sup, WORKER_STANDBY, &standby);
            continue;
        }
        if (mono_ms() < sup->not_before_ms ||
            proc_start(sup, WORKER_ACTIVE) < 0)
            return;
    }
    if (wanted && !standbys && mono_ms() >= sup->not_before_ms)
        proc_start(sup, WORKER_STANDBY);
}

static void drain_all(struct supervisor *sup)
{
    for (struct proc *p = sup->procs; p; p = p->next) {
        if (p->go_fd >= 0) {
            close(p->go_fd); /* the stand-by has nothing to save */
            p->go_fd = -1;
        }
        pidfd_send_signal(p->pidfd, SIGTERM, NULL, 0);
    }
}

static void *supervisor_main(void *arg)
{
    struct supervisor *sup = arg;
    bool drained = false;
    for (;;) {
        pthread_mutex_lock(&sup->mutex);
        bool draining = sup->draining, stop = sup->stop;
        pthread_mutex_unlock(&sup->mutex);
        if (stop)
            return NULL;
        if (draining && !drained) {
            drain_all(sup);
            sup->drained_ms = mono_ms();
            drained = true;
        }
        if (drained)
            judge_drain(sup);
        if (mono_ms() - sup->looked_ms >= LOOK_MS) {
            struct err err;
            sup->looked_ms = mono_ms();
            int r = look_around(sup, draining, &err);
            if (r < 0 && !sup->look_failed)
                fprintf(stderr, "pawld: cannot look for workers: %s\n",
                        err.text);
            sup->look_failed = r < 0;
        }
        if (!draining)
            restore(sup);

        size_t n = 1;
        for (struct proc *p = sup->procs; p; p = p->next)
            n++;
        AUTO_FREE struct pollfd *fds = calloc(n, sizeof(*fds));
        AUTO_FREE struct proc **procs = calloc(n, sizeof(struct proc *));
        if (!fds || !procs)
            return NULL;
        fds[0].fd = sup->wake_fd;
        fds[0].events = POLLIN;
        size_t i = 1;
        for (struct proc *p = sup->procs; p; p = p->next, i++) {
            fds[i].fd = p->pidfd;
            fds[i].events = POLLIN;
            procs[i] = p;
        }
        int64_t wait = sup->not_before_ms - mono_ms();
        for (struct proc *p = sup->procs; p; p = p->next)
            death_watch(&p->watch, p->pid, mono_ms());
        int timeout = draining || wait < 0 ? 1000
                      : wait > 1000        ? 1000
                                           : (int)wait + 1;
        if (poll(fds, n, timeout) < 0 && errno != EINTR)
            return NULL;
        if (fds[0].revents) {
            uint64_t bits;
            if (read(sup->wake_fd, &bits, sizeof(bits)) < 0)
                continue;
        }
        for (i = 1; i < n; i++)
            if (fds[i].revents)
                proc_died(sup, procs[i]);
    }
}

static int find_program(struct supervisor *sup, struct err *err)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n < 0)
        return err_set(err, ERR_IO, "cannot tell where pawld lies: %s",
                       strerror(errno));
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash)
        return err_set(err, ERR_IO, "cannot tell where pawld lies");
    *slash = '\0';
    if (asprintf(&sup->program, "%s/pawl-worker", self) < 0) {
        sup->program = NULL;
        return err_set(err, ERR_NOMEM, "no memory for the supervisor");
    }
    if (sup->server->options.workers && access(sup->program, X_OK) < 0)
        return err_set(err, ERR_IO, "%s: %s; put it there, or say --workers 0",
                       sup->program, strerror(errno));
    return 0;
}

static int make_env(struct supervisor *sup, struct err *err)
{
    extern char **environ;
    static char policy[] = WAIT_POLICY;
    size_t n = 0;
    bool chosen = getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT");
    while (environ[n])
        n++;
    sup->env = calloc(n + 2, sizeof(*sup->env));
    if (!sup->env)
        return err_set(err, ERR_NOMEM, "no memory for the supervisor");
    memcpy(sup->env, environ, n * sizeof(*sup->env));
    if (!chosen)
        sup->env[n] = policy;
    return 0;
}

int supervisor_new(struct server *s, struct supervisor **ret, struct err *err)
{
    struct supervisor *sup = calloc(1, sizeof(*sup));
    if (!sup)
        return err_set(err, ERR_NOMEM, "no memory for the supervisor");
    sup->server = s;
    pthread_mutex_init(&sup->mutex, NULL);
    pthread_cond_init(&sup->gone, NULL);
    sup->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sup->kernel = death_log_open();
    int r = find_program(sup, err);
    if (r >= 0)
        r = make_env(sup, err);
    if (r >= 0)
        r = look_around(sup, false, err);
    if (r < 0) {
        supervisor_free(sup);
        return r;
    }
    prune_logs(sup);
    *ret = sup;
    return 0;
}

int supervisor_start(struct supervisor *sup, struct err *err)
{
    if (pthread_create(&sup->thread, NULL, supervisor_main, sup))
        return err_set(err, ERR_NOMEM, "cannot start the supervisor's thread");
    sup->started = true;
    return 0;
}

static void wake(struct supervisor *sup)
{
    uint64_t one = 1;
    if (write(sup->wake_fd, &one, sizeof(one)) < 0)
        return; /* full: it is awake already */
}

void supervisor_drain(struct supervisor *sup)
{
    pthread_mutex_lock(&sup->mutex);
    sup->draining = true;
    pthread_mutex_unlock(&sup->mutex);
    wake(sup);
}

bool supervisor_wait(struct supervisor *sup, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (int64_t)timeout_ms * 1000000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&sup->mutex);
    int r = 0;
    while (sup->procs && r == 0)
        r = pthread_cond_timedwait(&sup->gone, &sup->mutex, &until);
    bool all = !sup->procs;
    pthread_mutex_unlock(&sup->mutex);
    return all;
}

int supervisor_alive(struct supervisor *sup)
{
    pthread_mutex_lock(&sup->mutex);
    int n = count(sup, WORKER_ACTIVE, NULL);
    pthread_mutex_unlock(&sup->mutex);
    return n;
}

void supervisor_free(struct supervisor *sup)
{
    if (!sup)
        return;
    if (sup->started) {
        pthread_mutex_lock(&sup->mutex);
        sup->stop = true;
        pthread_mutex_unlock(&sup->mutex);
        wake(sup);
        pthread_join(sup->thread, NULL);
    }
    while (sup->procs) {
        struct proc *p = sup->procs;
        sup->procs = p->next;
        proc_free(p);
    }
    if (sup->wake_fd >= 0)
        close(sup->wake_fd);
    death_log_close(sup->kernel);
    pthread_mutex_destroy(&sup->mutex);
    pthread_cond_destroy(&sup->gone);
    free(sup->program);
    free(sup->env);
    free(sup);
}
