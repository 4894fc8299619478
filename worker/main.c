/* main.c - pawl-worker: options, what must be set before libtorch is used, the
 * stand-by's wait. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <link.h>
#endif
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "worker/cache.h"
#include "worker/loop.h"
#include "worker/memory.h"
#include "worker/predict.h"
#include "worker/torch_shim.h"

static const char help[] =
    "usage: pawl-worker --state DIR [OPTION…]\n"
    "       pawl-worker --server URL [OPTION…]\n"
    "       pawl-worker predict --model FILE [RECORDS]\n"
    "\n"
    "Claim one lease from pawld, train until it is done or a threshold is\n"
    "reached, save, exit. Whatever keeps processes alive starts the next one.\n"
    "\n"
    "  --state DIR        state folder of a pawld on this machine: where it\n"
    "                     listens and its token are read from there\n"
    "  --server URL       pawld's address: http://HOST:PORT or unix:PATH\n"
    "  --token-file FILE  the token's file (with --server; or PAWL_TOKEN)\n"
    "  --name NAME        what this worker is called (default: the host's "
    "name)\n"
    "  --label KEY=VALUE  a label that jobs can ask for in "
    "runtime.resources;\n"
    "                     may be repeated\n"
    "  --cache DIR        with --server: keep blocks of shards here, which "
    "workers\n"
    "                     may share and anybody may empty (default:\n"
    "                     $XDG_CACHE_HOME/pawl, ~/.cache/pawl or\n"
    "                     $TMPDIR/pawl-cache)\n"
    "  --cache-mb N       and no more than so many MB of them (default 4096; "
    "0:\n"
    "                     none)\n"
    "  --once             exit when there is nothing to do now\n"
    "  --supervised[=PID] pawld (of that process id) started this worker: end\n"
    "                     when it is gone and no lease is held\n"
    "  --standby          load libtorch, then wait for a line `go` on "
    "standard\n"
    "                     input; end at its end\n"
    "  --version, --help\n"
    "\n"
    "predict prints {\"policy\", \"value\"} for each record (one JSON line "
    "each,\n"
    "- for standard input) by a model file that GET /v1/jobs/{id}/model gave.\n"
    "\n"
    "SIGTERM: finish the step, save, release the lease, exit 0.\n"
    "\n"
    "Environment:\n"
    "  PAWL_TOKEN         the token, with --server\n"
    "  PAWL_CACHE, PAWL_CACHE_MB\n"
    "                     the same as --cache and --cache-mb, which win\n"
    "  PAWL_WORKER_LABELS KEY=VALUE,KEY=VALUE: the same as --label, which "
    "wins;\n"
    "                     a pawld's own workers have these\n"
    "  PAWL_MEMORY_PROBE  fake:start_mb=900,per_shape_mb=64,per_step_mb=0,\n"
    "                     recommended_mb=25559,cache_mb=0: act as a device "
    "whose\n"
    "                     memory grows so, to try thresholds on any machine\n"
    "  PAWL_TRACE         a file that gets a line of JSON for each optimizer\n"
    "                     step: {\"step\", \"epoch\", \"records\": [[shard, "
    "offset],\n"
    "                     …]}, to see what was trained in which order\n"
    "  ONEDNN_PRIMITIVE_CACHE_CAPACITY\n"
    "                     16 unless set: bounds what oneDNN keeps per shape\n";

static atomic_bool drain;

static void on_signal(int sig)
{
    atomic_store(&drain, true);
}

static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask); /* no SA_RESTART: waits end at once */
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
    a.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &a, NULL);
}

/* ---- threads ---- */

/* Threads that wait for each other's part of a loop spin by default. Where
 * anything else wants the cores that is 20 times slower (two threads on a busy
 * machine of two cores), and never more than an eighth faster. The OpenMP
 * library reads this when it loads, so start again, once, unless the caller has
 * chosen. */
static void wait_without_spinning(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
#ifdef __linux__
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        execv(self, argv);
    }
#else
    execv(argv[0], argv);
#endif
}

/* ---- BLAS ---- */

#ifdef __linux__
#ifndef PAWL_OPENBLAS_OMP
#define PAWL_OPENBLAS_OMP ""
#endif

/* 1: an OpenMP OpenBLAS, or no BLAS library of its own, is loaded; 0: another
 * one. *arg gets its file's name. */
static int look_at_library(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *base = strrchr(info->dlpi_name, '/');
    const char **wrong = arg;
    bool blas = base && (!strncmp(base, "/libblas.so", 11) ||
                         !strncmp(base, "/libopenblas", 12));
    if (blas && !strstr(info->dlpi_name, "openblas-openmp"))
        *wrong = info->dlpi_name;
    return 0;
}

/* Debian's alternatives may hand libtorch the reference BLAS (ten times
 * slower) or the pthread OpenBLAS (ignores the thread count). The program's
 * run path names the OpenMP build's folder; where that did not help, say, for
 * an LD_LIBRARY_PATH in front of it, start again with the folder in front. */
static void insist_on_openmp_blas(char **argv)
{
    const char *wrong = NULL;
    dl_iterate_phdr(look_at_library, &wrong);
    if (!wrong || !*PAWL_OPENBLAS_OMP || access(PAWL_OPENBLAS_OMP, X_OK) < 0)
        return;
    if (!getenv("PAWL_REEXEC")) {
        const char *old = getenv("LD_LIBRARY_PATH");
        CLEANUP(free_ptr) char *path = NULL;
        if (asprintf(&path, "%s%s%s", PAWL_OPENBLAS_OMP, old ? ":" : "",
                     old ? old : "") < 0)
            return;
        setenv("LD_LIBRARY_PATH", path, 1);
        setenv("PAWL_REEXEC", "1", 1);
        char self[4096];
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        if (n > 0) {
            self[n] = 0;
            execv(self, argv);
        }
    }
    fprintf(stderr,
            "pawl-worker: warning: the BLAS in use is %s, not the OpenMP build "
            "of OpenBLAS in %s: training may be slow\n",
            wrong, PAWL_OPENBLAS_OMP);
}
#else
static void insist_on_openmp_blas(char **argv)
{
}
#endif

/* ---- files ---- */

#define FILES_WANTED 65536

/* Each shard is a file that stays open. The limit that a shell hands down is for
 * programs that use select(). */
static void allow_many_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    rlim_t want = FILES_WANTED;
#ifdef __APPLE__
    want = OPEN_MAX;
#endif
    if (limit.rlim_max != RLIM_INFINITY && want > limit.rlim_max)
        want = limit.rlim_max;
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < want) {
        limit.rlim_cur = want;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* ---- stand-by ---- */

/* 1: go; 0: not needed any more. */
static int stand_by(void)
{
    json_decref(torch_describe()); /* has the library look at the machine */
    char line[16];
    size_t len = 0;
    while (!atomic_load(&drain)) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            return 0;
        if (!p.revents)
            continue;
        ssize_t n = read(STDIN_FILENO, line + len, sizeof line - 1 - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        len += (size_t)n;
        line[len] = 0;
        if (strchr(line, '\n') || len == sizeof line - 1)
            return !strncmp(line, "go\n", 3) || !strncmp(line, "go\r\n", 4);
    }
    return 0;
}

static int fail(const struct err *err)
{
    fprintf(stderr, "pawl-worker: %s\n", err->text);
    return 1;
}

static int usage_error(const char *what, const char *arg)
{
    fprintf(stderr, "pawl-worker: %s%s%s; see pawl-worker --help\n", what,
            arg ? ": " : "", arg ? arg : "");
    return 2;
}

/* ---- labels ---- */

/* KEY=VALUE, within the bounds of JSON_LABELS_MAX and its fellows. */
static int label_add(json_t *labels, const char *text)
{
    const char *eq = strchr(text, '=');
    size_t len = eq ? (size_t)(eq - text) : 0;
    if (!len || len > 64 || !eq[1] || strlen(eq + 1) > 256)
        return -1;
    char key[65];
    memcpy(key, text, len);
    key[len] = 0;
    return json_object_set_new(labels, key, json_string(eq + 1));
}

static int labels_of_variable(json_t *labels)
{
    const char *text = getenv("PAWL_WORKER_LABELS");
    CLEANUP(free_ptr) char *copy = text ? strdup(text) : NULL;
    char *rest = NULL;
    for (char *one = copy ? strtok_r(copy, ",", &rest) : NULL; one;
         one = strtok_r(NULL, ",", &rest))
        if (label_add(labels, one) < 0) {
            usage_error("PAWL_WORKER_LABELS is not KEY=VALUE,…", one);
            return -1;
        }
    return 0;
}

static int main_predict(int argc, char **argv)
{
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    const char *model = NULL;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'm') {
            model = optarg;
        } else if (c == 'h') {
            fputs(help, stdout);
            return 0;
        } else {
            return 2;
        }
    }
    if (!model && optind < argc)
        model = argv[optind++];
    const char *records = optind < argc ? argv[optind++] : "-";
    if (!model || optind < argc)
        return usage_error("predict needs a model file and records", NULL);
    struct err err = {0};
    int r = predict_file(model, records, stdout, &err);
    if (r == 0 && fflush(stdout) < 0)
        r = err_set(&err, ERR_IO, "cannot write: %s", strerror(errno));
    return r < 0 ? fail(&err) : 0;
}

/* ---- the cache ---- */

#define CACHE_MB 4096
#define CACHE_MB_MAX (1 << 30)

struct cache_choice {
    const char *dir, *mb; /* as given; NULL: not at all */
};

static int default_folder(struct buf *ret)
{
    static const struct {
        const char *name, *below;
    } homes[] = {{"XDG_CACHE_HOME", "/pawl"},
                 {"HOME", "/.cache/pawl"},
                 {"TMPDIR", "/pawl-cache"}};
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        const char *home = getenv(homes[i].name);
        if (home && *home == '/')
            return buf_addf(ret, "%s%s", home, homes[i].below);
    }
    return buf_addf(ret, "/tmp/pawl-cache-%ld", (long)getuid());
}

/* The folder that was asked for must be of use; without the default one a
 * worker fetches again what it needs again. */
static int open_cache(const struct cache_choice *in, struct cache **ret)
{
    const char *dir = in->dir ? in->dir : getenv("PAWL_CACHE");
    const char *mb = in->mb ? in->mb : getenv("PAWL_CACHE_MB");
    char *end = NULL;
    errno = 0;
    long n = mb ? strtol(mb, &end, 10) : CACHE_MB;
    if (mb && (end == mb || *end || errno || n < 0 || n > CACHE_MB_MAX)) {
        usage_error("--cache-mb is not a number of MB", mb);
        return -1;
    }
    CLEANUP(buf_release) struct buf fallback = {0};
    if (!dir && default_folder(&fallback) < 0)
        return 0;
    struct err err = {0};
    if (cache_open(dir ? dir : fallback.data, (int64_t)n << 20, ret, &err) == 0)
        return 0;
    if (dir) {
        usage_error("--cache", err.text);
        return -1;
    }
    fprintf(stderr, "pawl-worker: warning: %s\n", err.text);
    return 0;
}

/* What no waiting will mend is said at once. */
static int check_net(const struct client_options *net)
{
    struct stat st;
    if (net->state && (stat(net->state, &st) < 0 || !S_ISDIR(st.st_mode))) {
        usage_error("--state is not a folder", net->state);
        return -1;
    }
    static const char *const schemes[] = {"http://", "https://",
                                          "unix:", "http+unix://"};
    bool known = !net->server;
    for (size_t i = 0; !known && i < sizeof schemes / sizeof *schemes; i++)
        known = !strncmp(net->server, schemes[i], strlen(schemes[i]));
    if (!known) {
        usage_error("--server is neither http://HOST:PORT nor unix:PATH",
                    net->server);
        return -1;
    }
    if (net->token_file && access(net->token_file, R_OK) < 0) {
        usage_error("--token-file cannot be read", net->token_file);
        return -1;
    }
    if (net->server && !net->token_file && !net->token) {
        usage_error("--server needs --token-file or PAWL_TOKEN", NULL);
        return -1;
    }
    return 0;
}

static int main_worker(int argc, char **argv)
{
    enum {
        STATE = 1,
        SERVER,
        TOKEN_FILE,
        NAME,
        LABEL,
        CACHE,
        CACHE_SIZE,
        ONCE,
        SUPERVISED,
        STANDBY
    };
    static const struct option options[] = {
        {"state", required_argument, NULL, STATE},
        {"server", required_argument, NULL, SERVER},
        {"token-file", required_argument, NULL, TOKEN_FILE},
        {"name", required_argument, NULL, NAME},
        {"label", required_argument, NULL, LABEL},
        {"cache", required_argument, NULL, CACHE},
        {"cache-mb", required_argument, NULL, CACHE_SIZE},
        {"once", no_argument, NULL, ONCE},
        {"supervised", optional_argument, NULL, SUPERVISED},
        {"standby", no_argument, NULL, STANDBY},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct worker_options o = {.drain = &drain, .parent = getppid()};
    bool standby = false;
    struct cache_choice cache = {0};
    AUTO_JSON json_t *labels = json_object();
    o.labels = labels;
    if (labels_of_variable(labels) < 0)
        return 2;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case STATE:
            o.net.state = optarg;
            break;
        case SERVER:
            o.net.server = optarg;
            break;
        case TOKEN_FILE:
            o.net.token_file = optarg;
            break;
        case NAME:
            o.name = optarg;
            break;
        case LABEL:
            if (label_add(labels, optarg) < 0)
                return usage_error("--label is not KEY=VALUE", optarg);
            break;
        case CACHE:
            cache.dir = optarg;
            break;
        case CACHE_SIZE:
            cache.mb = optarg;
            break;
        case ONCE:
            o.once = true;
            break;
        case SUPERVISED:
            o.supervised = true;
            if (optarg)
                o.parent = (pid_t)strtol(optarg, NULL, 10);
            break;
        case STANDBY:
            standby = true;
            break;
        case 'V':
            puts("pawl-worker " PAWL_VERSION);
            return 0;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            return 2;
        }
    }
    if (optind < argc)
        return usage_error("unexpected argument", argv[optind]);
    if (!o.net.state == !o.net.server)
        return usage_error("give either --state DIR or --server URL", NULL);
    if (o.net.server && !o.net.token_file)
        o.net.token = getenv("PAWL_TOKEN");
    if (check_net(&o.net) < 0)
        return 2;
    struct err err = {0};
    struct memory_fake probe;
    if (memory_fake_parse(getenv("PAWL_MEMORY_PROBE"), &probe, &err) < 0) {
        fail(&err);
        return 2;
    }
    o.remote = o.net.server != NULL;
    if (o.remote && open_cache(&cache, &o.cache) < 0)
        return 2;
    int r = standby && !stand_by() ? 0 : worker_run(&o, &err);
    cache_close(o.cache);
    return r < 0 ? fail(&err) : 0;
}

int main(int argc, char **argv)
{
    /* read when oneDNN is first used; unbounded it keeps a plan per shape */
    setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16", 0);
    wait_without_spinning(argv);
    allow_many_files();
    catch_signals();
    insist_on_openmp_blas(argv);
    if (argc > 1 && !strcmp(argv[1], "predict"))
        return main_predict(argc - 1, argv + 1);
    return main_worker(argc, argv);
}
