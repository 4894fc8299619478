#include "server/belt.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define NICE 5 /* as the lane that adds to it */

struct piece {
    size_t len;
    char data[BELT_PIECE];
};

struct belt {
    belt_take_fn *take;
    void *arg;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int first, n; /* of v: those on the belt, from `first` on */
    bool stop;
    int r; /* the first < 0 */
    struct err err;
    struct piece v[BELT_PIECES];
};

static void *belt_main(void *arg)
{
    struct belt *b = arg;
#ifdef __linux__
    pthread_setname_np(pthread_self(), "pawl-belt");
    setpriority(PRIO_PROCESS, 0, NICE);
#endif
    pthread_mutex_lock(&b->mutex);
    for (;;) {
        while (!b->n && !b->stop)
            pthread_cond_wait(&b->changed, &b->mutex);
        if (b->stop)
            break;
        const struct piece *p = &b->v[b->first];
        struct err err = {0};
        bool failed = b->r < 0;
        pthread_mutex_unlock(&b->mutex);
        int r = failed ? 0 : b->take(b->arg, p->data, p->len, &err);
        pthread_mutex_lock(&b->mutex);
        if (r < 0) {
            b->r = r;
            b->err = err;
        }
        b->first = (b->first + 1) % BELT_PIECES;
        b->n--;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

int belt_new(belt_take_fn *take, void *arg, struct belt **ret, struct err *err)
{
    struct belt *b = malloc(sizeof(*b));
    if (!b)
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    memset(b, 0, offsetof(struct belt, v));
    b->take = take;
    b->arg = arg;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->changed, NULL);
    if (pthread_create(&b->thread, NULL, belt_main, b)) {
        pthread_cond_destroy(&b->changed);
        pthread_mutex_destroy(&b->mutex);
        free(b);
        return err_set(err, ERR_NOMEM, "no thread for an upload");
    }
    *ret = b;
    return 0;
}

static int said(struct belt *b, struct err *err)
{
    if (b->r < 0 && err)
        *err = b->err;
    return b->r;
}

int belt_add(struct belt *b, const char *data, size_t len, struct err *err)
{
    int r = 0;
    while (len && r >= 0) {
        pthread_mutex_lock(&b->mutex);
        while (b->n == BELT_PIECES)
            pthread_cond_wait(&b->changed, &b->mutex);
        struct piece *p = &b->v[(b->first + b->n) % BELT_PIECES];
        r = said(b, err);
        pthread_mutex_unlock(&b->mutex);
        if (r < 0)
            break;
        p->len = len < BELT_PIECE ? len : BELT_PIECE;
        memcpy(p->data, data, p->len);
        data += p->len;
        len -= p->len;
        pthread_mutex_lock(&b->mutex);
        b->n++;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->mutex);
    }
    return r;
}

int belt_wait(struct belt *b, struct err *err)
{
    pthread_mutex_lock(&b->mutex);
    while (b->n)
        pthread_cond_wait(&b->changed, &b->mutex);
    int r = said(b, err);
    pthread_mutex_unlock(&b->mutex);
    return r;
}

void belt_free(struct belt *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->mutex);
    b->stop = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->mutex);
    pthread_join(b->thread, NULL);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
    free(b);
}
