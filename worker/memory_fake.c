/* The fake device of PAWL_MEMORY_PROBE; see memory.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "worker/memory.h"

#define PREFIX "fake:"

static int64_t *setting(struct memory_fake *f, const char *name, size_t len)
{
    struct {
        const char *name;
        int64_t *to;
    } all[] = {
        {"start_mb", &f->start},       {"per_shape_mb", &f->per_shape},
        {"per_step_mb", &f->per_step}, {"recommended_mb", &f->recommended},
        {"cache_mb", &f->cache},       {"available_mb", &f->available},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strlen(all[i].name) == len && !strncmp(name, all[i].name, len))
            return all[i].to;
    return NULL;
}

int memory_fake_parse(const char *text, struct memory_fake *ret,
                      struct err *err)
{
    *ret = (struct memory_fake){0};
    if (!text || !*text)
        return 0;
    if (strncmp(text, PREFIX, strlen(PREFIX)))
        return err_set(err, ERR_INVALID,
                       "PAWL_MEMORY_PROBE must begin with '" PREFIX
                       "', but is '%.100s'",
                       text);
    struct memory_fake f = {
        .on = true, .recommended = (int64_t)(25559 * MB), .available = -1};
    for (const char *p = text + strlen(PREFIX); *p;) {
        size_t len = strcspn(p, "=,");
        int64_t *to = setting(&f, p, len);
        char *end = NULL;
        double mb = p[len] == '=' ? strtod(p + len + 1, &end) : -1;
        if (!to || !end || end == p + len + 1 || (*end && *end != ',') ||
            !(mb >= 0 && mb <= 1e9))
            return err_set(err, ERR_INVALID,
                           "PAWL_MEMORY_PROBE: '%.60s' is not one of "
                           "start_mb, per_shape_mb, per_step_mb, "
                           "recommended_mb, cache_mb, available_mb with a "
                           "number of MB",
                           p);
        *to = (int64_t)llround(mb * MB);
        p = *end ? end + 1 : end;
    }
    f.level = f.start;
    *ret = f;
    return 0;
}

void memory_fake_shape(struct memory_fake *f)
{
    f->level += f->per_shape;
}

void memory_fake_step(struct memory_fake *f)
{
    f->level += f->per_step;
}

void memory_fake_empty_cache(struct memory_fake *f)
{
    int64_t grown = f->level - f->start;
    f->level -= f->cache < grown ? f->cache : grown;
}
