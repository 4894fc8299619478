#include "worker/claim.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/wire.h"
#include "worker/memory.h"
#include "worker/torch_shim.h"

#define CLAIM_WAIT_S 30
/* A server that was not there yet, or restarts, is tried for so long. A local
 * worker's server is its parent: once that is gone there is nobody to wait
 * for. */
#define PATIENCE_S 10.0

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void read_text(const char *path, char *out, size_t cap)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, cap - 1);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

/* Start time in clock ticks since boot: field 22 of /proc/self/stat. The
 * program's name, field 2, may hold spaces and brackets. */
static int64_t process_started(void)
{
    char text[1024];
    read_text("/proc/self/stat", text, sizeof text);
    const char *p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoll(p + 1, NULL, 10) : 0;
}

static int cpus(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

static int uuid(char out[37], struct err *err)
{
    uint8_t b[16];
    if (getentropy(b, sizeof b) < 0)
        return err_set(err, ERR_IO, "no random bytes: %s", strerror(errno));
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    int at = 0;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[at++] = '-';
        at += snprintf(out + at, 3, "%02x", b[i]);
    }
    return 0;
}

json_t *claim_body(const struct worker_options *o, struct err *err)
{
    char host[256] = "", boot[64], id[37];
    gethostname(host, sizeof host - 1);
    read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (uuid(id, err) < 0)
        return NULL;
    json_t *devices = torch_devices(), *library = torch_describe();
    json_t *body = json_pack(
        "{s:{s:s, s:s, s:I, s:I, s:s, s:b, s:o, s:i, s:I, s:O*, s:s, s:o},"
        " s:s, s:i}",
        "worker", "name", o->name ? o->name : host, "host", host, "pid",
        (json_int_t)getpid(), "started", (json_int_t)process_started(), "boot",
        boot, "local", o->supervised, "devices", devices, "cpus", cpus(),
        "memory_bytes", (json_int_t)memory_total(), "labels", o->labels,
        "version", PAWL_VERSION, "library", library, "claim", id, "wait",
        o->once ? 0 : CLAIM_WAIT_S);
    if (!body)
        err_set(err, ERR_NOMEM, "cannot describe this worker");
    return body;
}

int claim_wait(struct client *c, const struct worker_options *o, json_t **ret,
               struct err *err)
{
    AUTO_JSON json_t *body = claim_body(o, err);
    if (!body)
        return err ? err->code : ERR_NOMEM;
    struct request rq = {.method = "POST",
                         .path = "/v1/leases",
                         .json = body,
                         .timeout_s = CLAIM_WAIT_S + 15};
    double answered = seconds();
    bool ever = false; /* has the server answered at all? */
    while (!atomic_load(o->drain)) {
        if (o->supervised && getppid() != o->parent)
            return 0; /* a restarted server starts workers of its own */
        CLEANUP(answer_release) struct answer a = {0};
        int r = client_try(c, &rq, &a, err);
        if (r == 0 && a.status == 204) {
            answered = seconds();
            ever = true;
            if (o->once)
                return 0;
            continue;
        }
        if (r == 0 && json_is_object(a.json)) {
            *ret = json_incref(a.json);
            return 1;
        }
        if (r == 0)
            return err_set(err, ERR_INVALID, "the claim's answer is not JSON");
        if (atomic_load(o->drain))
            return 0;
        if (r == ERR_STALE) /* this process is drained, or had its lease */
            return 0;
        if (!client_retriable(r))
            return r;
        if (seconds() - answered > PATIENCE_S)
            return r == ERR_NET && ever ? 0 : r;
        struct timespec pause = {0, 250 * 1000000};
        nanosleep(&pause, NULL);
    }
    return 0;
}
