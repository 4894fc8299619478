#include "server/partial.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "server/upload.h"

struct partial {
    char dataset[132], shard[132];
    struct upload *upload; /* NULL: this place is free */
    size_t memory;         /* that it holds */
    int64_t since_ms;
};

struct under_way {
    struct under_way *next;
    char *dataset, *shard;
};

struct partials {
    pthread_mutex_t mutex;
    struct under_way *under_way;
    struct partial v[PARTIALS_MAX];
};

static void under_way_free(struct under_way *w)
{
    if (!w)
        return;
    free(w->dataset);
    free(w->shard);
    free(w);
}

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
    while (p->under_way) {
        struct under_way *w = p->under_way;
        p->under_way = w->next;
        under_way_free(w);
    }
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

/* The link to one of that name, or to the end; with the mutex. */
static struct under_way **under_way_find(struct partials *p,
                                         const char *dataset, const char *shard)
{
    struct under_way **at = &p->under_way;
    while (*at &&
           (strcmp((*at)->dataset, dataset) || strcmp((*at)->shard, shard)))
        at = &(*at)->next;
    return at;
}

void partials_begin(struct partials *p, const char *dataset, const char *shard)
{
    struct under_way *w = calloc(1, sizeof(*w));
    if (w) {
        w->dataset = strdup(dataset);
        w->shard = strdup(shard);
    }
    if (!w || !w->dataset || !w->shard) { /* nobody waits for it, then */
        under_way_free(w);
        return;
    }
    pthread_mutex_lock(&p->mutex);
    w->next = p->under_way;
    p->under_way = w;
    pthread_mutex_unlock(&p->mutex);
}

void partials_end(struct partials *p, const char *dataset, const char *shard)
{
    pthread_mutex_lock(&p->mutex);
    struct under_way **at = under_way_find(p, dataset, shard), *w = *at;
    if (w)
        *at = w->next;
    pthread_mutex_unlock(&p->mutex);
    under_way_free(w);
}

bool partials_under_way(struct partials *p, const char *dataset,
                        const char *shard)
{
    pthread_mutex_lock(&p->mutex);
    bool is = *under_way_find(p, dataset, shard);
    pthread_mutex_unlock(&p->mutex);
    return is;
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

/* Take out the oldest, if all together hold too much; with the mutex. */
static struct upload *too_much(struct partials *p)
{
    struct partial *oldest = NULL;
    size_t sum = 0;
    for (int i = 0; i < PARTIALS_MAX; i++) {
        struct partial *x = &p->v[i];
        if (!x->upload)
            continue;
        sum += x->memory;
        if (!oldest || x->since_ms < oldest->since_ms)
            oldest = x;
    }
    if (sum <= PARTIALS_BYTES)
        return NULL;
    struct upload *u = oldest->upload;
    oldest->upload = NULL;
    return u;
}

void partials_keep(struct partials *p, const char *dataset, const char *shard,
                   struct upload *u, int64_t mono_ms)
{
    struct upload *drop = u, *more[PARTIALS_MAX + 1];
    int n = 0;
    size_t memory = u && !u->failed && !u->ended ? upload_rest(u) : 0;
    if (memory && u->received && !u->failed &&
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
        x->memory = memory;
        x->since_ms = mono_ms;
        while ((more[n] = too_much(p)))
            n++;
        pthread_mutex_unlock(&p->mutex);
    }
    while (n)
        upload_free(more[--n]);
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
