/* The host's memory on Linux: /proc. */
#ifdef __linux__
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
#else
typedef int memory_linux_is_empty;
#endif
