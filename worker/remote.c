#include "worker/remote.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "schema/cleanup.h"
#include "worker/transfer.h"

#define SLOTS 8
#define POLL_MS 50

struct slot {
    const struct piece *piece; /* under way, or waiting to be asked again */
    bool failed;
    size_t have;
    char path[128], range[64];
    CURL *curl;
    struct transfer transfer;
};

struct remote {
    struct remote_options o;
    struct client *client;
    pthread_mutex_t lock; /* of all below */
    CURLM *multi;
    struct slot slots[SLOTS];
    int attempt;  /* failures in a row */
    double again; /* those that failed are asked for again then */
    atomic_llong bytes_read;
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int remote_new(const struct remote_options *o, struct remote **ret,
               struct err *err)
{
    struct remote *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(err, ERR_NOMEM, "no memory to fetch data");
    r->o = *o;
    pthread_mutex_init(&r->lock, NULL);
    int e = client_new(o->net, &r->client, err);
    r->multi = e < 0 ? NULL : curl_multi_init();
    bool whole = r->multi != NULL;
    for (int i = 0; i < SLOTS && whole; i++)
        whole = (r->slots[i].curl = curl_easy_init()) != NULL;
    if (e == 0 && !whole)
        e = err_set(err, ERR_NOMEM, "no memory to fetch data");
    if (e < 0) {
        remote_free(r);
        return e;
    }
    *ret = r;
    return 0;
}

void remote_free(struct remote *r)
{
    if (!r)
        return;
    for (int i = 0; i < SLOTS; i++)
        if (r->slots[i].curl)
            curl_easy_cleanup(r->slots[i].curl);
    if (r->multi)
        curl_multi_cleanup(r->multi);
    client_free(r->client);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

struct cache *remote_cache(struct remote *r)
{
    return r->o.cache;
}

int64_t remote_bytes_read(struct remote *r)
{
    return atomic_load(&r->bytes_read);
}

static int on_piece(void *arg, const char *data, size_t len, struct err *err)
{
    struct slot *s = arg;
    if (len > s->piece->len - s->have)
        return err_set(err, ERR_IO,
                       "GET %s: the answer is longer than the %zu bytes asked "
                       "for: does something on the way ignore Range?",
                       s->path, s->piece->len);
    memcpy(s->piece->out + s->have, data, len);
    s->have += len;
    return 0;
}

/* Nothing came of it; all that fail at a time pause together, and give_up is
 * asked once for them. */
static int failed(struct remote *r, struct slot *s, int e,
                  const struct err *why, struct err *err)
{
    s->failed = true;
    bool new_round = seconds() >= r->again;
    if (!client_retriable(e) || (new_round && r->o.give_up(r->o.arg))) {
        if (err)
            *err = *why;
        return e;
    }
    if (new_round)
        r->again =
            seconds() + (double)client_pause_ms(r->client, r->attempt++) / 1000;
    return 0;
}

static int start(struct remote *r, struct slot *s, struct err *err)
{
    const struct piece *p = s->piece;
    snprintf(s->path, sizeof s->path, "/v1/leases/%" PRId64 "/shards/%d%s",
             r->o.lease, p->shard, p->index ? "?part=index" : "");
    snprintf(s->range, sizeof s->range, "%" PRId64 "-%" PRId64, p->offset,
             p->offset + (int64_t)p->len - 1);
    struct request rq = {.method = "GET",
                         .path = s->path,
                         .range = s->range,
                         .lease_token = r->o.token,
                         .on_bytes = on_piece,
                         .arg = s};
    struct err why = {0};
    s->have = 0;
    s->failed = false;
    int e = transfer_begin(&s->transfer, r->client, s->curl, &rq, &why);
    if (e == 0 && curl_multi_add_handle(r->multi, s->curl) != CURLM_OK)
        e = err_set(&why, ERR_NOMEM, "no memory for a request");
    if (e == 0)
        return 0;
    transfer_release(&s->transfer);
    return failed(r, s, e, &why, err);
}

static int ended(struct remote *r, struct slot *s, CURLcode code,
                 struct err *err)
{
    struct err why = {0};
    curl_multi_remove_handle(r->multi, s->curl);
    int e = transfer_end(&s->transfer, code, NULL, &why);
    atomic_fetch_add(&r->bytes_read, (long long)s->have);
    if (e == 0 && s->have < s->piece->len)
        e = err_set(&why, ERR_IO,
                    "GET %s: the answer ended after %zu of %zu bytes", s->path,
                    s->have, s->piece->len);
    if (e < 0)
        return failed(r, s, e, &why, err);
    s->piece = NULL;
    r->attempt = 0;
    return 0;
}

static struct slot *slot_of(struct remote *r, const CURL *curl)
{
    for (int i = 0; i < SLOTS; i++)
        if (r->slots[i].curl == curl)
            return &r->slots[i];
    return NULL;
}

/* Give every free slot something to do. */
static int fill(struct remote *r, const struct piece *v, int n, int *next,
                int *ret_busy, struct err *err)
{
    int e = 0;
    *ret_busy = 0;
    for (int i = 0; i < SLOTS && e == 0; i++) {
        struct slot *s = &r->slots[i];
        if (s->piece && s->failed && seconds() >= r->again) {
            e = start(r, s, err);
        } else if (!s->piece && *next < n) {
            s->piece = &v[(*next)++];
            e = start(r, s, err);
        }
        *ret_busy += s->piece != NULL;
    }
    return e;
}

static int pump(struct remote *r, struct err *err)
{
    int running = 0, left, e = 0;
    curl_multi_perform(r->multi, &running);
    CURLMsg *m;
    while (e == 0 && (m = curl_multi_info_read(r->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            e = ended(r, slot_of(r, m->easy_handle), m->data.result, err);
    return e;
}

static void abandon(struct remote *r)
{
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &r->slots[i];
        if (s->piece && !s->failed && s->transfer.client) {
            curl_multi_remove_handle(r->multi, s->curl);
            transfer_release(&s->transfer);
        }
        s->piece = NULL;
        s->failed = false;
    }
}

int remote_get(struct remote *r, const struct piece *v, int n,
               const atomic_bool *stop, struct err *err)
{
    int next = 0, busy = 0, e = 0;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        e = atomic_load(stop)
                ? err_set(err, ERR_NET, "fetching data was interrupted")
                : fill(r, v, n, &next, &busy, err);
        if (e < 0 || !busy)
            break;
        curl_multi_poll(r->multi, NULL, 0, POLL_MS, NULL);
        e = pump(r, err);
        if (e < 0)
            break;
    }
    if (e < 0)
        abandon(r);
    pthread_mutex_unlock(&r->lock);
    return e;
}
