#include "worker/save.h"
#include <string.h>
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/state.h"
#include "worker/flight.h"
#include "worker/shard.h"

#define MODEL_PREFIX "model."

static void digest_ptr(struct digest **d)
{
    digest_free(*d);
}

static void flight_ptr(struct flight **f)
{
    flight_free(*f);
}

/* A row for the manifest's list of tensors. */
static int tensor_add(json_t *tensors, int64_t *at, const char *name,
                      const char *dtype, const int64_t *shape, int dims,
                      size_t bytes, struct err *err)
{
    json_t *sizes = json_array();
    for (int i = 0; i < dims; i++)
        json_array_append_new(sizes, json_integer(shape[i]));
    int64_t end = *at + (int64_t)bytes;
    json_t *row = json_pack("{s:s, s:s, s:o, s:I, s:I}", "name", name, "dtype",
                            dtype, "shape", sizes, "begin", (json_int_t)*at,
                            "end", (json_int_t)end);
    if (!row || json_array_append_new(tensors, row) < 0)
        return err_set(err, ERR_NOMEM, "no memory for the manifest");
    *at = end;
    return 0;
}

static bool is_model(const char *name)
{
    return !strncmp(name, MODEL_PREFIX, strlen(MODEL_PREFIX));
}

/* ---- the model file's header, before the first byte is sent ---- */

struct layout {
    json_t *tensors;
    int64_t at;
    bool done;
};

static int layout_put(void *ctx, const char *name, const char *dtype,
                      const int64_t *shape, int dims, const void *data,
                      size_t bytes, struct err *err)
{
    struct layout *l = ctx;
    if (!is_model(name)) {
        l->done = true; /* model tensors come first */
        return ERR_RANGE;
    }
    return tensor_add(l->tensors, &l->at, name, dtype, shape, dims, bytes, err);
}

int save_model_header(const struct state_out *state,
                      const json_t *resolved_spec, struct buf *ret,
                      struct err *err)
{
    if (ret->len)
        return 0;
    AUTO_JSON json_t *tensors = json_array();
    struct layout l = {.tensors = tensors};
    int r = state->tensors(state->from, layout_put, &l, err);
    if (r < 0 && !l.done)
        return r;
    AUTO_JSON json_t *manifest =
        json_pack("{s:O, s:I}", "tensors", tensors, "bytes", (json_int_t)l.at);
    if (!manifest)
        return err_set(err, ERR_NOMEM, "no memory for the manifest");
    int64_t payload;
    return state_model_header(manifest, resolved_spec, ret, &payload, err);
}

/* ---- sending ---- */

struct sender {
    struct flight *flight;
    json_t *tensors, *chunks;
    int64_t at, model_end;
    struct digest *model;
    size_t len; /* of the chunk that is being filled */
};

static int chunk_send(struct sender *o, struct err *err)
{
    char hex[DIGEST_HEX];
    if (!o->len)
        return 0;
    int r = flight_send(o->flight, o->len, hex, err);
    o->len = 0;
    if (r == 0 && json_array_append_new(o->chunks, json_string(hex)) < 0)
        r = err_set(err, ERR_NOMEM, "no memory for the manifest");
    return r;
}

static int sender_put(void *ctx, const char *name, const char *dtype,
                      const int64_t *shape, int dims, const void *data,
                      size_t bytes, struct err *err)
{
    struct sender *o = ctx;
    int r =
        tensor_add(o->tensors, &o->at, name, dtype, shape, dims, bytes, err);
    if (r == 0 && is_model(name)) {
        digest_add(o->model, data, bytes);
        o->model_end = o->at;
    }
    const char *p = data;
    while (r == 0 && bytes) {
        size_t n = STATE_CHUNK - o->len < bytes ? STATE_CHUNK - o->len : bytes;
        memcpy(flight_buffer(o->flight) + o->len, p, n);
        o->len += n;
        p += n;
        bytes -= n;
        if (o->len == STATE_CHUNK)
            r = chunk_send(o, err);
    }
    return r;
}

static int send_all(struct sender *o, const struct state_out *state,
                    struct err *err)
{
    int r = state->tensors(state->from, sender_put, o, err);
    if (r < 0)
        return r;
    int64_t shape[2] = {state->n, 4};
    r = sender_put(o, FEED_BUFFER, "I64", shape, 2, state->buffer,
                   (size_t)state->n * sizeof(struct ref), err);
    if (r == 0)
        r = chunk_send(o, err);
    return r < 0 ? r : flight_land(o->flight, err);
}

int save_state(const struct save *s, const struct state_out *state,
               const json_t *head, json_t **ret, struct err *err)
{
    AUTO_JSON json_t *manifest = json_copy((json_t *)head);
    AUTO_JSON json_t *tensors = json_array();
    AUTO_JSON json_t *chunks = json_array();
    CLEANUP(digest_ptr) struct digest *model = digest_new();
    CLEANUP(flight_ptr) struct flight *flight = NULL;
    if (!manifest || !tensors || !chunks || !model)
        return err_set(err, ERR_NOMEM, "no memory to save");
    int r = flight_new(s->client, s->lease, s->token, s->known, s->give_up,
                       s->arg, &flight, err);
    if (r < 0)
        return r;
    struct sender o = {
        .flight = flight, .tensors = tensors, .chunks = chunks, .model = model};
    digest_add(model, s->model_header->data, s->model_header->len);
    r = send_all(&o, state, err);
    if (r < 0)
        return r;
    uint8_t sum[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    digest_end(model, sum);
    digest_hex(sum, hex);
    json_object_set(manifest, "feed", (json_t *)state->feed);
    json_object_set(manifest, "tensors", tensors);
    json_object_set(manifest, "chunks", chunks);
    json_object_set_new(manifest, "bytes", json_integer(o.at));
    json_object_set_new(
        manifest, "model_bytes",
        json_integer((json_int_t)s->model_header->len + o.model_end));
    json_object_set_new(manifest, "model_sha256", json_string(hex));
    *ret = json_incref(manifest);
    return 0;
}
