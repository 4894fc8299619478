/* pawld: see server.h for what lies where, httpd.h for a request's way. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "server/backup.h"
#include "server/dataset.h"
#include "server/errand.h"
#include "server/housekeep.h"
#include "server/lease.h"
#include "server/owner.h"
#include "server/partial.h"
#include "server/room.h"
#include "server/server.h"
#include "server/session.h"
#include "server/supervisor.h"
#include "server/root.h"
#include "server/survey.h"

#define READERS 3
#define EXIT_USAGE 2
#define SAY_MS 10000
#define UNKILLABLE_S 30 /* a killed one may hang in a driver */

struct keeper {
    struct server *server;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool stop;
};

/* What has to happen about once a second, whether anyone asks or not. */
static void *keeper_main(void *arg)
{
    struct keeper *k = arg;
    struct housekeep state = {0};
    char said[sizeof(((struct err *)0)->text)] = "";
    pthread_mutex_lock(&k->mutex);
    while (!k->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&k->wake, &k->mutex, &until);
        if (k->stop)
            break;
        pthread_mutex_unlock(&k->mutex);
        struct err err = {0};
        server_clock_beat();
        if (!server_state_is_there(k->server)) {
            /* what is accepted now goes into a file without a name */
            fprintf(stderr,
                    "pawld: %s/pawl.db was removed or replaced: stopping at "
                    "once\n",
                    k->server->dir);
            _exit(1);
        }
        if (housekeep_tick(&state, k->server->lanes, &err) < 0 &&
            strcmp(said, err.text)) {
            fprintf(stderr, "pawld: housekeeping: %s\n", err.text);
            snprintf(said, sizeof(said), "%s", err.text);
        }
        pthread_mutex_lock(&k->mutex);
    }
    pthread_mutex_unlock(&k->mutex);
    return NULL;
}

static int keeper_start(struct keeper *k, struct server *s, struct err *err)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&k->mutex, NULL);
    pthread_cond_init(&k->wake, &attr);
    pthread_condattr_destroy(&attr);
    k->server = s;
    server_clock_beat();
    if (pthread_create(&k->thread, NULL, keeper_main, k))
        return err_set(err, ERR_NOMEM, "cannot start housekeeping");
    k->started = true;
    return 0;
}

static void keeper_stop(struct keeper *k)
{
    if (!k->started)
        return;
    pthread_mutex_lock(&k->mutex);
    k->stop = true;
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&k->mutex);
    pthread_join(k->thread, NULL);
    k->started = false;
}

static int begin_listening(void *arg, struct ctx *ctx, struct err *err)
{
    struct server *s = arg;
    int r = lease_listening(ctx->st, atomic_load(&s->listening_mono_ms), err);
    /* what was being read when the last run ended */
    return r < 0 ? r : survey_tick(ctx->st, ctx->now_ms, err);
}

static int sweep_index(void *arg, struct ctx *ctx, struct err *err)
{
    int r = dataset_sweep_published(ctx->st, err);
    return r < 0 ? r : dataset_sweep_index(ctx->st, err);
}

static void remove_file(struct server *s, const char *name)
{
    AUTO_FREE char *path = NULL;
    if (s->dir && asprintf(&path, "%s/%s", s->dir, name) > 0)
        unlink(path);
}

/* Before and after httpd.c runs, nobody waits for one. */
static void errand_ended(void *arg)
{
    struct server *s = arg;
    if (atomic_load(&s->ready))
        httpd_notice(s->httpd, NOTIFY_ERRAND);
}

static int start(struct server *s, struct keeper *k, struct err *err)
{
    int r = server_open_state(s, err);
    if (r < 0)
        return r;
    /* a killed server's; nobody shall be sent there while we start */
    remove_file(s, "url");
    remove_file(s, "socket");
    s->started_ms = server_wall_ms();
    s->started_mono_ms = server_mono_ms();
    r = lanes_new(s->dir, s, READERS, &s->lanes, err);
    if (r >= 0)
        r = room_new(&s->room, err);
    if (r >= 0)
        r = backups_new(s, &s->backups, err);
    if (r >= 0)
        r = partials_new(&s->partials, err);
    if (r >= 0)
        r = lanes_call(s->lanes, LANE_READ, sweep_index, NULL, err);
    if (r >= 0)
        r = errands_new(s->lanes, errand_ended, s, &s->errands, err);
    if (r >= 0)
        survey_start(s->errands);
    if (r >= 0)
        r = session_table_new(s->lanes, &s->sessions, err);
    if (r >= 0)
        r = httpd_new(s, &s->httpd, err);
    if (r >= 0)
        r = supervisor_new(s, &s->supervisor, err);
    if (r < 0)
        return r;
    server_state_is_there(s);
    atomic_store(&s->listening_mono_ms, server_mono_ms());
    r = lanes_call(s->lanes, LANE_WRITE, begin_listening, s, err);
    if (r >= 0)
        r = keeper_start(k, s, err);
    if (r >= 0)
        r = httpd_start(s->httpd, err);
    if (r < 0)
        return r;
    snprintf(s->url, sizeof(s->url), "%s", httpd_url(s->httpd));
    atomic_store(&s->ready, true);
    const char *socket = httpd_socket(s->httpd);
    if (socket) {
        AUTO_FREE char *path = realpath(socket, NULL);
        r = server_write_file(s, "socket", path ? path : socket, 0600, err);
        if (r < 0)
            return r;
    }
    r = server_write_file(s, "url", s->url, 0600, err);
    return r < 0 ? r : supervisor_start(s->supervisor, err);
}

/* Both lines at once, so that a reader of the pipe gets them together. */
static void greet(struct server *s)
{
    const char *name;
    for (size_t i = 0; (name = httpd_listening(s->httpd, i)); i++)
        printf("listening on %s\n", name);
    printf("open %s/#login=%s\n", s->url, session_code(s->sessions));
    fflush(stdout);
}

/* Until a signal asks to stop: workers save first, while they are answered. A
 * second signal stops at once; the workers train on. */
static void run(struct server *s, int signals)
{
    struct signalfd_siginfo info;
    struct pollfd fd = {.fd = signals, .events = POLLIN};
    while (read(signals, &info, sizeof(info)) < 0 && errno == EINTR)
        ;
    atomic_store(&s->shutting_down, true);
    httpd_notice(s->httpd, ~0u);
    supervisor_drain(s->supervisor);
    int waited = 0, most = (s->options.drain_timeout_s + UNKILLABLE_S) * 1000;
    while (!supervisor_wait(s->supervisor, 100)) {
        waited += 100;
        if (poll(&fd, 1, 0) > 0) {
            fprintf(stderr,
                    "pawld: stopping at once; workers that still "
                    "train go on, and the next pawld takes them over\n");
            return;
        }
        if (waited >= most) {
            fprintf(stderr, "pawld: %d workers cannot be killed: left alone\n",
                    supervisor_alive(s->supervisor));
            return;
        }
        if (waited % SAY_MS == 0)
            fprintf(stderr, "pawld: waiting for %d workers to save\n",
                    supervisor_alive(s->supervisor));
    }
}

static void stop(struct server *s, struct keeper *k)
{
    if (s->httpd)
        httpd_stop(s->httpd);
    if (s->lock_fd >= 0) { /* else they are another's */
        remove_file(s, "url");
        remove_file(s, "socket");
    }
    keeper_stop(k);
    supervisor_free(s->supervisor);
    backups_free(s->backups);
    partials_free(s->partials);
    survey_start(NULL);
    errands_free(s->errands);
    lanes_stop(s->lanes);
    httpd_free(s->httpd);
    session_table_free(s->sessions);
    room_free(s->room);
    options_release(&s->options);
    free(s->datasets_dir);
    free(s->tmp_dir);
    free(s->logs_dir);
    free(s->dir);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
}

int main(int argc, char **argv)
{
    static struct server s = {.lock_fd = -1};
    struct keeper keeper = {0};
    CLEANUP(buf_release) struct buf warnings = {0};
    struct err err = {0};
    extern char **environ;

    if (options_parse(argc, argv, environ, &s.options, &warnings, &err) < 0) {
        fprintf(stderr, "pawld: %s\n", err.text);
        return EXIT_USAGE;
    }
    if (s.options.what == OPTIONS_VERSION) {
        puts("pawld " PAWL_VERSION);
        return 0;
    }
    if (s.options.what == OPTIONS_HELP) {
        fputs(options_help(), stdout);
        return 0;
    }
    for (char *line = warnings.data; line && *line;) {
        char *end = strchr(line, '\n');
        fprintf(stderr, "pawld: %.*s\n", (int)(end - line), line);
        line = end + 1;
    }

    owner_policy = (struct owner_policy){
        .age_ms = s.options.age_s * (int64_t)1000,
        .shares = s.options.shares,
        .n_shares = s.options.n_shares,
    };
    root_list =
        (struct root_list){s.options.data_roots, s.options.n_data_roots};
    root_warn();
    lease_timing.expiry_ms = s.options.lease_s * (int64_t)1000;
    if (lease_timing.heartbeat_ms > lease_timing.expiry_ms / 5)
        lease_timing.heartbeat_ms = lease_timing.expiry_ms / 5;
    umask(077);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP); /* the terminal went away, and no nohup */
    sigprocmask(SIG_BLOCK, &set, NULL); /* before any thread is made */
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (signals < 0) {
        fprintf(stderr, "pawld: no signals: %s\n", strerror(errno));
        return 1;
    }
    if (start(&s, &keeper, &err) < 0) {
        fprintf(stderr, "pawld: %s\n", err.text);
        stop(&s, &keeper);
        return 1;
    }
    greet(&s);
    run(&s, signals);
    stop(&s, &keeper);
    return 0;
}
