#include "worker/load.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/state.h"
#include "worker/save.h"
#include "worker/shard.h"

struct receiver {
    const json_t *tensors, *chunks;
    struct trainer *trainer;
    struct loaded_feed *feed;
    int64_t bytes; /* of the state */

    uint8_t length[8]; /* of the safetensors header */
    int length_have;
    int64_t header_left;

    char *chunk;
    size_t chunk_len;
    int64_t chunk_no, at; /* of verified bytes */

    size_t tensor_no;
    struct buf tensor; /* the current one's bytes so far */
};

static int tensor_done(struct receiver *in, const json_t *row, struct err *err)
{
    const char *name = json_string_value(json_object_get(row, "name"));
    const char *dtype = json_string_value(json_object_get(row, "dtype"));
    const json_t *sizes = json_object_get(row, "shape");
    int64_t shape[8] = {0};
    int dims = (int)json_array_size(sizes);
    if (!name || !dtype || dims > 8)
        return err_set(err, ERR_CORRUPT, "a tensor of the manifest is not one");
    for (int i = 0; i < dims; i++)
        shape[i] = json_integer_value(json_array_get(sizes, (size_t)i));
    if (!strncmp(name, "feed.", 5)) {
        if (strcmp(name, FEED_BUFFER))
            return 0;
        if (in->tensor.len % sizeof(struct ref))
            return err_set(err, ERR_CORRUPT, "the shuffle buffer is cut");
        in->feed->n = (int64_t)(in->tensor.len / sizeof(struct ref));
        free(in->feed->buffer);
        in->feed->buffer = malloc(in->tensor.len + 1);
        if (!in->feed->buffer)
            return err_set(err, ERR_NOMEM, "no memory for the shuffle buffer");
        if (in->tensor.len)
            memcpy(in->feed->buffer, in->tensor.data, in->tensor.len);
        return 0;
    }
    return trainer_load(in->trainer, name, dtype, shape, dims, in->tensor.data,
                        in->tensor.len, err);
}

/* Verified bytes: cut them into tensors. With len 0 for those that are empty
 * at the end. */
static int receive_verified(struct receiver *in, const char *p, size_t len,
                            struct err *err)
{
    for (; in->tensor_no < json_array_size(in->tensors); in->tensor_no++) {
        const json_t *row = json_array_get(in->tensors, in->tensor_no);
        int64_t end = json_integer_value(json_object_get(row, "end"));
        size_t want = (size_t)(end - in->at);
        size_t n = want < len ? want : len;
        if (buf_reserve(&in->tensor, n + 1) < 0 ||
            (n && buf_add(&in->tensor, p, n) < 0))
            return err_set(err, ERR_NOMEM, "no memory for a tensor");
        p += n;
        len -= n;
        in->at += (int64_t)n;
        if (in->at < end)
            return 0;
        int r = tensor_done(in, row, err);
        if (r < 0)
            return r;
        buf_clear(&in->tensor);
    }
    return 0;
}

static int chunk_done(struct receiver *in, struct err *err)
{
    const char *hex =
        json_string_value(json_array_get(in->chunks, (size_t)in->chunk_no));
    uint8_t want[DIGEST_BYTES], have[DIGEST_BYTES];
    digest_of(in->chunk, in->chunk_len, have);
    if (!hex || digest_parse(hex, want) < 0 ||
        memcmp(want, have, sizeof want) != 0)
        return err_set(err, ERR_CORRUPT,
                       "chunk %" PRId64 " (%.12s…) does not match its digest",
                       in->chunk_no, hex ? hex : "?");
    in->chunk_no++;
    int r = receive_verified(in, in->chunk, in->chunk_len, err);
    in->chunk_len = 0;
    return r;
}

static int skip_header(struct receiver *in, const char **p, size_t *len,
                       struct err *err)
{
    while (in->length_have < 8 && *len) {
        in->length[in->length_have++] = (uint8_t) * (*p)++;
        --*len;
        if (in->length_have < 8)
            continue;
        uint64_t n = 0;
        for (int i = 7; i >= 0; i--)
            n = n << 8 | in->length[i];
        if (n > (uint64_t)1 << 32)
            return err_set(err, ERR_CORRUPT, "the state has no header");
        in->header_left = (int64_t)n;
    }
    size_t skip =
        (size_t)in->header_left < *len ? (size_t)in->header_left : *len;
    in->header_left -= (int64_t)skip;
    *p += skip;
    *len -= skip;
    return 0;
}

static int on_state(void *arg, const char *p, size_t len, struct err *err)
{
    struct receiver *in = arg;
    int r = skip_header(in, &p, &len, err);
    while (r == 0 && len) {
        int64_t begin = in->chunk_no * STATE_CHUNK;
        int64_t left = in->bytes - begin;
        if (left <= 0)
            return err_set(err, ERR_CORRUPT, "the state is too long");
        size_t whole = left < STATE_CHUNK ? (size_t)left : STATE_CHUNK;
        size_t n = whole - in->chunk_len < len ? whole - in->chunk_len : len;
        memcpy(in->chunk + in->chunk_len, p, n);
        in->chunk_len += n;
        p += n;
        len -= n;
        if (in->chunk_len == whole)
            r = chunk_done(in, err);
    }
    return r;
}

static int load_once(struct client *c, const char *path, struct receiver *in,
                     struct err *err)
{
    in->length_have = 0;
    in->header_left = 0;
    in->chunk_len = 0;
    in->chunk_no = in->at = 0;
    in->tensor_no = 0;
    buf_clear(&in->tensor);
    struct request rq = {
        .method = "GET", .path = path, .on_bytes = on_state, .arg = in};
    CLEANUP(answer_release) struct answer answer = {0};
    int r = client_try(c, &rq, &answer, err);
    if (r == 0)
        r = receive_verified(in, NULL, 0, err);
    if (r == 0 &&
        (in->at != in->bytes || in->tensor_no != json_array_size(in->tensors)))
        return err_set(err, ERR_IO,
                       "the state ended after %" PRId64 " of %" PRId64 " bytes",
                       in->at, in->bytes);
    return r;
}

/* How often a state that the server does send, but not whole, is asked for. */
#define LOAD_TRIES 5

int load_state(struct client *c, int64_t id, const json_t *manifest,
               struct trainer *t, struct loaded_feed *ret_feed,
               client_give_up_fn *give_up, void *arg, struct err *err)
{
    char path[96];
    snprintf(path, sizeof path, "/v1/checkpoints/%" PRId64 "/state", id);
    AUTO_FREE char *chunk = malloc(STATE_CHUNK);
    if (!chunk)
        return err_set(err, ERR_NOMEM, "no memory to load");
    struct receiver in = {
        .tensors = json_object_get(manifest, "tensors"),
        .chunks = json_object_get(manifest, "chunks"),
        .trainer = t,
        .feed = ret_feed,
        .bytes = json_integer_value(json_object_get(manifest, "bytes")),
        .chunk = chunk,
    };
    int r = manifest_check(manifest, err);
    for (int tries = 0; r == 0; tries++) {
        r = load_once(c, path, &in, err);
        if (!client_retriable(r))
            break;
        /* a server that is away is waited for; one that answers, but breaks
         * off again and again, has lost a chunk */
        if (r != ERR_IO)
            tries = 0;
        if (tries >= LOAD_TRIES || give_up(arg))
            break;
        struct timespec pause = {0, 200 * 1000000};
        nanosleep(&pause, NULL);
        r = 0;
    }
    buf_release(&in.tensor);
    if (r == 0)
        return trainer_load_end(t, err);
    if (r == ERR_IO || r == ERR_NOT_FOUND) {
        char why[sizeof err->text];
        snprintf(why, sizeof why, "%s", err->text);
        return err_set(err, ERR_CORRUPT,
                       "checkpoint %" PRId64 " cannot be had whole: %.600s", id,
                       why);
    }
    return r;
}
