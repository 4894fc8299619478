/* The host's memory on Linux: /proc, cgroups of both versions, rlimits. */
#ifdef __linux__
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "worker/memory.h"

static int read_small(const char *path, char *out, size_t cap)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, out, cap - 1);
    if (n < 0)
        return -1;
    out[n] = 0;
    return 0;
}

/* A line "Name:   123 kB" in bytes, or -1. */
static int64_t line_kb(const char *text, const char *name)
{
    const char *p = strstr(text, name);
    return p ? strtoll(p + strlen(name), NULL, 10) * 1024 : -1;
}

void memory_host(struct memory_sample *ret)
{
    char text[4096];
    ret->rss = ret->available = ret->swap = -1;
    if (read_small("/proc/self/statm", text, sizeof text) == 0) {
        long long size, resident;
        if (sscanf(text, "%lld %lld", &size, &resident) == 2)
            ret->rss = resident * (int64_t)sysconf(_SC_PAGESIZE);
    }
    if (read_small("/proc/meminfo", text, sizeof text) == 0) {
        ret->available = line_kb(text, "MemAvailable:");
        int64_t total = line_kb(text, "SwapTotal:");
        int64_t left = line_kb(text, "SwapFree:");
        if (total >= 0 && left >= 0)
            ret->swap = total - left;
    }
}
/* ---- what limits leave ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A file that holds a number, or "max": -1. */
static int64_t read_number(const char *folder, const char *name)
{
    char path[1200], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (read_small(path, text, sizeof text) < 0 || !strncmp(text, "max", 3))
        return -1;
    return strtoll(text, NULL, 10);
}

struct names {
    const char *limit, *usage, *cache;
};

/* Of one cgroup; without a name for the usage, its limit. Cached pages of files count as used, but give way. */
static int64_t group_left(const char *folder, const struct names *n)
{
    int64_t limit = read_number(folder, n->limit);
    int64_t usage = n->usage ? read_number(folder, n->usage) : 0;
    if (limit < 0 || usage < 0)
        return INT64_MAX;
    if (!n->usage)
        return limit;
    char path[1200], text[8192];
    int64_t cache = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (read_small(path, text, sizeof text) == 0) {
        const char *p = strstr(text, n->cache);
        cache = p ? strtoll(p + strlen(n->cache), NULL, 10) : 0;
    }
    int64_t left = limit - usage + cache;
    return left > 0 ? left : 0;
}

/* A group's limit holds for all below it, so look at each up to the root. What
 * a container sees as the root may lie deeper: then only that is seen. */
static int64_t groups_left(const char *base, const char *group,
                           const struct names *n)
{
    char folder[1024];
    int64_t left = INT64_MAX;
    snprintf(folder, sizeof folder, "%s%s", base,
             strcmp(group, "/") ? group : "");
    for (;;) {
        left = least(left, group_left(folder, n));
        char *slash = strrchr(folder, '/');
        if (!slash || strlen(folder) <= strlen(base))
            return left;
        *slash = 0;
    }
}

static int64_t cgroup_least(const struct names *v1, const struct names *v2)
{
    char text[4096], *rest = NULL;
    int64_t left = INT64_MAX;
    if (read_small("/proc/self/cgroup", text, sizeof text) < 0)
        return left;
    for (char *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        char *names = strchr(line, ':');
        char *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (!strcmp(names, ":"))
            left = least(left, groups_left("/sys/fs/cgroup", group, v2));
        else if (strstr(names, "memory"))
            left =
                least(left, groups_left("/sys/fs/cgroup/memory", group, v1));
    }
    return left;
}

static int64_t cgroup_left(void)
{
    static const struct names v1 = {"memory.limit_in_bytes",
                                    "memory.usage_in_bytes",
                                    "total_inactive_file "};
    static const struct names v2 = {"memory.max", "memory.current",
                                    "inactive_file "};
    return cgroup_least(&v1, &v2);
}

int64_t memory_total(void)
{
    static const struct names v1 = {.limit = "memory.limit_in_bytes"};
    static const struct names v2 = {.limit = "memory.max"};
    char text[4096];
    int64_t total = -1, limit = cgroup_least(&v1, &v2);
    if (read_small("/proc/meminfo", text, sizeof text) == 0)
        total = line_kb(text, "MemTotal:");
    return total < 0 ? (limit < INT64_MAX ? limit : 0) : least(total, limit);
}

static int64_t rlimit_left(int what, int64_t used)
{
    struct rlimit limit;
    if (getrlimit(what, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return INT64_MAX;
    int64_t left = (int64_t)limit.rlim_cur - used;
    return left > 0 ? left : 0;
}

int64_t memory_limits_left(void)
{
    char text[256];
    int64_t left = cgroup_left();
    long long size, skip, data;
    if (read_small("/proc/self/statm", text, sizeof text) < 0 ||
        sscanf(text, "%lld %lld %lld %lld %lld %lld", &size, &skip, &skip,
               &skip, &skip, &data) != 6)
        return left;
    int64_t page = sysconf(_SC_PAGESIZE);
    left = least(left, rlimit_left(RLIMIT_AS, size * page));
    return least(left, rlimit_left(RLIMIT_DATA, data * page));
}
#else
typedef int memory_linux_is_empty;
#endif
