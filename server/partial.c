#include "server/partial.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "server/upload.h"

struct partial {
    char dataset[132], shard[132];
    struct upload *upload; /* NULL: this place is free */
    int64_t since_ms;
};

struct partials {
    pthread_mutex_t mutex;
    struct partial v[PARTIALS_MAX];
};

int partials_new(struct partials **ret, struct err *err)
{
    struct partials *p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(err, ERR_NOMEM, "no memory for uploads");
    pthread_mutex_init(&p->mutex, NULL);
    *ret = p;
    return 0;
}

void partials_free(struct partials *p)
{
    if (!p)
        return;
    for (int i = 0; i < PARTIALS_MAX; i++)
        upload_free(p->v[i].upload);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

static bool is_old(const struct partial *x, int64_t mono_ms)
{
    return mono_ms - x->since_ms >= PARTIAL_KEEP_MS;
}

/* The one of that name, or NULL; with the mutex. */
static struct partial *find(struct partials *p, const char *dataset,
                            const char *shard)
{
    for (int i = 0; i < PARTIALS_MAX; i++) {
        struct partial *x = &p->v[i];
        if (x->upload && !strcmp(x->dataset, dataset) &&
            !strcmp(x->shard, shard))
            return x;
    }
    return NULL;
}

static struct partial *room(struct partials *p)
{
    struct partial *oldest = &p->v[0];
    for (int i = 0; i < PARTIALS_MAX; i++) {
        if (!p->v[i].upload)
            return &p->v[i];
        if (p->v[i].since_ms < oldest->since_ms)
            oldest = &p->v[i];
    }
    return oldest;
}

void partials_keep(struct partials *p, const char *dataset, const char *shard,
                   struct upload *u, int64_t mono_ms)
{
    struct upload *drop = u;
    if (u && u->received && !u->failed && !u->ended &&
        strlen(dataset) < sizeof(p->v[0].dataset) &&
        strlen(shard) < sizeof(p->v[0].shard)) {
        pthread_mutex_lock(&p->mutex);
        struct partial *x = find(p, dataset, shard);
        if (!x)
            x = room(p);
        drop = x->upload;
        strcpy(x->dataset, dataset);
        strcpy(x->shard, shard);
        x->upload = u;
        x->since_ms = mono_ms;
        pthread_mutex_unlock(&p->mutex);
    }
    upload_free(drop);
}

int64_t partials_offset(struct partials *p, const char *dataset,
                        const char *shard, int64_t mono_ms)
{
    pthread_mutex_lock(&p->mutex);
    const struct partial *x = find(p, dataset, shard);
    int64_t n = x && !is_old(x, mono_ms) ? x->upload->received : 0;
    pthread_mutex_unlock(&p->mutex);
    return n;
}

struct upload *partials_take(struct partials *p, const char *dataset,
                             const char *shard, int64_t mono_ms)
{
    struct upload *u = NULL, *drop = NULL;
    pthread_mutex_lock(&p->mutex);
    struct partial *x = find(p, dataset, shard);
    if (x && is_old(x, mono_ms))
        drop = x->upload;
    else if (x)
        u = x->upload;
    if (x)
        x->upload = NULL;
    pthread_mutex_unlock(&p->mutex);
    upload_free(drop);
    return u;
}

void partials_expire(struct partials *p, int64_t mono_ms)
{
    struct upload *drop[PARTIALS_MAX];
    int n = 0;
    pthread_mutex_lock(&p->mutex);
    for (int i = 0; i < PARTIALS_MAX; i++)
        if (p->v[i].upload && is_old(&p->v[i], mono_ms)) {
            drop[n++] = p->v[i].upload;
            p->v[i].upload = NULL;
        }
    pthread_mutex_unlock(&p->mutex);
    while (n)
        upload_free(drop[--n]);
}
