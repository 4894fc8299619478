#include "worker/snapshot.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DIMS_MAX 8

/* All pages in one go, for each fault costs more than the copy of its page. Not
 * huge pages: to make room for them may stop a process for seconds. */
#ifdef MAP_POPULATE
#define AT_ONCE MAP_POPULATE
#else
#define AT_ONCE 0
#endif

struct copied {
    char *name;
    char dtype[8];
    int64_t shape[DIMS_MAX];
    int dims;
    size_t at, bytes;
};

struct snapshot {
    char *bytes;
    size_t cap, used;
    struct copied *tensors;
    size_t n, tensors_cap;
    json_t *position;
    int64_t *buffer, buffer_n;
};

void snapshot_free(struct snapshot *s)
{
    if (!s)
        return;
    if (s->bytes)
        munmap(s->bytes, s->cap);
    for (size_t i = 0; i < s->n; i++)
        free(s->tensors[i].name);
    free(s->tensors);
    json_decref(s->position);
    free(s->buffer);
    free(s);
}

static int copy_put(void *ctx, const char *name, const char *dtype,
                    const int64_t *shape, int dims, const void *data,
                    size_t bytes, struct err *err)
{
    struct snapshot *s = ctx;
    if (dims > DIMS_MAX || strlen(dtype) >= sizeof s->tensors->dtype ||
        s->cap - s->used < bytes)
        return err_set(err, ERR_CONFLICT,
                       "tensor %s does not fit the copy of the state", name);
    if (s->n == s->tensors_cap) {
        size_t cap = s->tensors_cap ? 2 * s->tensors_cap : 64;
        void *p = realloc(s->tensors, cap * sizeof *s->tensors);
        if (!p)
            return err_set(err, ERR_NOMEM, "no memory to copy the state");
        s->tensors = p;
        s->tensors_cap = cap;
    }
    struct copied *c = &s->tensors[s->n];
    *c = (struct copied){
        .name = strdup(name), .dims = dims, .at = s->used, .bytes = bytes};
    if (!c->name)
        return err_set(err, ERR_NOMEM, "no memory to copy the state");
    strcpy(c->dtype, dtype);
    if (dims)
        memcpy(c->shape, shape, (size_t)dims * sizeof *shape);
    memcpy(s->bytes + s->used, data, bytes);
    s->used += bytes;
    s->n++;
    return 0;
}

int snapshot_take(struct trainer *t, struct feed *f, int64_t bytes,
                  struct snapshot **ret, struct err *err)
{
    struct snapshot *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory to copy the state");
    s->cap = (size_t)bytes;
    void *p = mmap(NULL, s->cap, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | AT_ONCE, -1, 0);
    int r = 0;
    if (p == MAP_FAILED) {
        r = err_set(err, ERR_NOMEM,
                    "no memory for a copy of the state, %" PRId64 " bytes",
                    bytes);
    } else {
        s->bytes = p;
        r = trainer_save(t, copy_put, s, err);
    }
    if (r == 0)
        r = feed_save(f, &s->position, &s->buffer, &s->buffer_n, err);
    if (r < 0) {
        snapshot_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

static int put_copied(void *from, trainer_put_fn *put, void *ctx,
                      struct err *err)
{
    const struct snapshot *s = from;
    int r = 0;
    for (size_t i = 0; i < s->n && r >= 0; i++) {
        const struct copied *c = &s->tensors[i];
        r = put(ctx, c->name, c->dtype, c->shape, c->dims, s->bytes + c->at,
                c->bytes, err);
    }
    return r < 0 ? r : 0;
}

struct state_out snapshot_state(struct snapshot *s)
{
    return (struct state_out){.tensors = put_copied,
                              .from = s,
                              .feed = s->position,
                              .buffer = s->buffer,
                              .n = s->buffer_n};
}
