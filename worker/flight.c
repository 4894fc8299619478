#include "worker/flight.h"
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include "schema/cleanup.h"
#include "schema/state.h"
#include "worker/transfer.h"

#define POLL_MS 50
#define TIMEOUT_S 120

enum phase {
    PHASE_FREE,
    PHASE_ASKING,  /* HEAD: does the server have it? */
    PHASE_SENDING, /* PUT */
    PHASE_FAILED,  /* to be sent again */
};

struct slot {
    enum phase phase;
    char *chunk;
    size_t len;
    char hex[DIGEST_HEX], path[160];
    CURL *curl;
    struct transfer transfer;
};

struct flight {
    struct client *client;
    int64_t lease, token;
    json_t *known; /* borrowed */
    json_t *sent;  /* a set, as `known` is */
    client_give_up_fn *give_up;
    void *arg;
    CURLM *multi;
    struct slot slots[FLIGHT_SLOTS + 1], *filling;
    int attempt;        /* failures in a row */
    double again;       /* those that failed are sent again then */
    struct err failure; /* of the last one */
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int flight_new(struct client *c, int64_t lease, int64_t token, json_t *known,
               client_give_up_fn *give_up, void *arg, struct flight **ret,
               struct err *err)
{
    struct flight *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory to save");
    f->client = c;
    f->lease = lease;
    f->token = token;
    f->known = known;
    f->give_up = give_up;
    f->arg = arg;
    f->filling = f->slots;
    f->multi = curl_multi_init();
    f->sent = json_object();
    bool whole = f->multi && f->sent;
    for (int i = 0; i <= FLIGHT_SLOTS; i++) {
        f->slots[i].chunk = malloc(STATE_CHUNK);
        f->slots[i].curl = curl_easy_init();
        whole &= f->slots[i].chunk && f->slots[i].curl;
    }
    if (!whole) {
        flight_free(f);
        return err_set(err, ERR_NOMEM,
                       "no memory to save: it takes %d bytes, however large "
                       "the state",
                       (FLIGHT_SLOTS + 1) * STATE_CHUNK);
    }
    *ret = f;
    return 0;
}

void flight_free(struct flight *f)
{
    if (!f)
        return;
    for (int i = 0; i <= FLIGHT_SLOTS; i++) {
        struct slot *s = &f->slots[i];
        if (s->phase == PHASE_ASKING || s->phase == PHASE_SENDING)
            curl_multi_remove_handle(f->multi, s->curl);
        transfer_release(&s->transfer);
        curl_easy_cleanup(s->curl);
        free(s->chunk);
    }
    if (f->multi)
        curl_multi_cleanup(f->multi);
    if (f->known && f->sent)
        json_object_update(f->known, f->sent);
    json_decref(f->sent);
    free(f);
}

/* Nothing came of it; all that fail at a time pause together, and give_up is
 * asked once for them. */
static int failed(struct flight *f, struct slot *s, int r,
                  const struct err *why, struct err *err)
{
    s->phase = PHASE_FAILED;
    f->failure = *why;
    bool new_round = seconds() >= f->again;
    if (r == ERR_NOSPACE || !client_retriable(r) ||
        (new_round && f->give_up(f->arg))) {
        if (err)
            *err = *why;
        return r;
    }
    if (new_round)
        f->again =
            seconds() + (double)client_pause_ms(f->client, f->attempt++) / 1000;
    return 0;
}

static int start(struct flight *f, struct slot *s, enum phase phase,
                 struct err *err)
{
    bool asks = phase == PHASE_ASKING;
    struct request rq = {.method = asks ? "HEAD" : "PUT",
                         .path = s->path,
                         .bytes = asks ? NULL : s->chunk,
                         .len = asks ? 0 : s->len,
                         .lease_token = f->token,
                         .timeout_s = TIMEOUT_S};
    struct err why = {0};
    int r = transfer_begin(&s->transfer, f->client, s->curl, &rq, &why);
    if (r == 0 && curl_multi_add_handle(f->multi, s->curl) != CURLM_OK)
        r = err_set(&why, ERR_NOMEM, "no memory for a request");
    if (r < 0) {
        transfer_release(&s->transfer);
        return failed(f, s, r, &why, err);
    }
    s->phase = phase;
    return 0;
}

static struct slot *slot_of(struct flight *f, const CURL *curl)
{
    for (int i = 0; i <= FLIGHT_SLOTS; i++)
        if (f->slots[i].curl == curl)
            return &f->slots[i];
    return NULL;
}

static int ended(struct flight *f, struct slot *s, CURLcode e, struct err *err)
{
    struct err why = {0};
    curl_multi_remove_handle(f->multi, s->curl);
    int r = transfer_end(&s->transfer, e, NULL, &why);
    if (s->phase == PHASE_ASKING && r == ERR_NOT_FOUND)
        return start(f, s, PHASE_SENDING, err);
    if (r < 0)
        return failed(f, s, r, &why, err);
    s->phase = PHASE_FREE;
    f->attempt = 0;
    return 0;
}

/* Move what is under way, for `wait_ms` at most when nothing happens. */
static int pump(struct flight *f, int wait_ms, struct err *err)
{
    int running = 0, left, r = 0;
    if (wait_ms)
        curl_multi_poll(f->multi, NULL, 0, wait_ms, NULL);
    curl_multi_perform(f->multi, &running);
    CURLMsg *m;
    while (r == 0 && (m = curl_multi_info_read(f->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            r = ended(f, slot_of(f, m->easy_handle), m->data.result, err);
    for (int i = 0; r == 0 && i <= FLIGHT_SLOTS; i++)
        if (f->slots[i].phase == PHASE_FAILED && seconds() >= f->again)
            r = start(f, &f->slots[i], PHASE_SENDING, err);
    return r;
}

char *flight_buffer(struct flight *f)
{
    return f->filling->chunk;
}

static int under_way(const struct flight *f)
{
    int n = 0;
    for (int i = 0; i <= FLIGHT_SLOTS; i++)
        n += f->slots[i].phase != PHASE_FREE;
    return n;
}

int flight_send(struct flight *f, size_t len, char hex[DIGEST_HEX],
                struct err *err)
{
    struct slot *s = f->filling;
    uint8_t sum[DIGEST_BYTES];
    digest_of(s->chunk, len, sum);
    digest_hex(sum, hex);
    int r = pump(f, 0, err);
    if (r < 0 || json_object_get(f->sent, hex))
        return r; /* equal chunks: zeros, above all */
    if (json_object_set_new(f->sent, hex, json_true()) < 0)
        return err_set(err, ERR_NOMEM, "no memory to save");
    while (r == 0 && under_way(f) >= FLIGHT_SLOTS)
        r = pump(f, POLL_MS, err);
    if (r < 0)
        return r;
    s->len = len;
    snprintf(s->hex, sizeof s->hex, "%s", hex);
    snprintf(s->path, sizeof s->path, "/v1/leases/%" PRId64 "/chunks/%s",
             f->lease, hex);
    bool likely = f->known && json_object_get(f->known, hex);
    r = start(f, s, likely ? PHASE_ASKING : PHASE_SENDING, err);
    if (r == 0)
        r = pump(f, 0, err);
    for (int i = 0; i <= FLIGHT_SLOTS; i++)
        if (f->slots[i].phase == PHASE_FREE)
            f->filling = &f->slots[i];
    return r;
}

int flight_land(struct flight *f, struct err *err)
{
    int r = 0;
    while (r == 0 && under_way(f))
        r = pump(f, POLL_MS, err);
    return r;
}
