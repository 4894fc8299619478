#include "schema/state.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"

#define TENSORS_MAX 100000
#define DIMS_MAX 8

static const char *const prefixes[] = {"model.", "optimizer.", "rng.", "feed.",
                                       NULL};

static int dtype_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int bytes;
    } dtypes[] = {
        {"F64", 8}, {"I64", 8},  {"F32", 4}, {"I32", 4}, {"F16", 2},
        {"I16", 2}, {"BF16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1},
    };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtypes[i].name, dtype))
            return dtypes[i].bytes;
    return 0;
}

static int part_of(const char *name)
{
    for (int i = 0; prefixes[i]; i++) {
        size_t n = strlen(prefixes[i]);
        if (!strncmp(name, prefixes[i], n) && name[n])
            return i;
    }
    return -1;
}

struct tensor {
    const char *name, *dtype;
    const json_t *shape;
    int64_t begin, end;
};

static int tensor_read(const json_t *in, const char *at, struct tensor *ret,
                       struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, at, err, "name", "dtype", "shape", "begin", "end",
                   NULL);
    json_read_need(&r, "name");
    json_read_need(&r, "dtype");
    json_read_need(&r, "shape");
    json_read_need(&r, "begin");
    json_read_need(&r, "end");
    ret->name = json_read_string(&r, "name", 400, "");
    ret->dtype = json_read_string(&r, "dtype", 8, "");
    ret->shape = json_read_array(&r, "shape", DIMS_MAX);
    ret->begin = json_read_int(&r, "begin", 0, JSON_INT_MAX, 0);
    ret->end = json_read_int(&r, "end", 0, JSON_INT_MAX, 0);
    int64_t bytes = dtype_bytes(ret->dtype);
    if (r.r == 0 && !bytes)
        json_read_fail(&r, "dtype", "\"%s\" is not a type of tensors",
                       ret->dtype);
    for (size_t i = 0; i < json_array_size(ret->shape) && r.r == 0; i++) {
        const json_t *d = json_array_get(ret->shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            json_read_fail(&r, "shape", "a shape is a list of lengths");
        else if (__builtin_mul_overflow(bytes, json_integer_value(d), &bytes))
            json_read_fail(&r, "shape", "the tensor is too large");
    }
    if (r.r == 0 && ret->end - ret->begin != bytes)
        json_read_fail(
            &r, "end", "tensor %s spans %lld bytes, its shape has %lld",
            ret->name, (long long)(ret->end - ret->begin), (long long)bytes);
    return r.r;
}

/* Tensors lie end to end from 0, model first, sorted within their part. */
static int check_tensors(const json_t *list, int64_t *ret_bytes,
                         struct err *err)
{
    char at[JSON_POINTER_MAX];
    struct tensor t, before = {.name = ""};
    int part_before = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_pointer_index(at, "/tensors", i);
        if (!json_is_object(json_array_get(list, i)))
            return err_at(err, ERR_INVALID, at, "a tensor is an object");
        int r = tensor_read(json_array_get(list, i), at, &t, err);
        if (r < 0)
            return r;
        int part = part_of(t.name);
        if (part < 0)
            return err_at(err, ERR_INVALID, at,
                          "a tensor's name begins with model., optimizer., "
                          "rng. or feed., not \"%.64s\"",
                          t.name);
        if (part < part_before ||
            (part == part_before && strcmp(before.name, t.name) >= 0))
            return err_at(err, ERR_INVALID, at,
                          "tensor %.100s stands after %.100s: out of order",
                          t.name, before.name);
        if (t.begin != before.end)
            return err_at(err, ERR_INVALID, at,
                          "tensor %.100s begins at %lld, must begin at %lld",
                          t.name, (long long)t.begin, (long long)before.end);
        part_before = part;
        before = t;
    }
    *ret_bytes = before.end;
    return 0;
}

static void read_digest(struct json_read *r, const char *name, bool needed)
{
    uint8_t bytes[DIGEST_BYTES];
    if (needed)
        json_read_need(r, name);
    const char *hex = json_read_string(r, name, 64, NULL);
    if (hex && digest_parse(hex, bytes) < 0)
        json_read_fail(r, name, "%s must be 64 lower-case hex digits", name);
}

int manifest_check(const json_t *manifest, struct err *err)
{
    struct json_read r;
    if (!json_is_object(manifest))
        return err_set(err, ERR_INVALID, "a manifest is a JSON object");
    json_read_open_any(&r, manifest, "", err);
    json_read_need(&r, "format");
    json_read_need(&r, "version");
    const char *format = json_read_string(&r, "format", 64, "");
    int64_t version = json_read_int(&r, "version", 1, JSON_INT_MAX, 0);
    if (r.r == 0 && strcmp(format, "pawl-state"))
        json_read_fail(&r, "format", "format is \"%s\", must be \"pawl-state\"",
                       format);
    if (r.r < 0)
        return r.r;
    if (version > STATE_VERSION)
        return err_at(err, ERR_CORRUPT, "/version",
                      "the checkpoint has version %lld of the format, this "
                      "program knows up to %d: use a newer one",
                      (long long)version, STATE_VERSION);

    static const char *const counts[] = {"cycle",   "step",  "epoch",
                                         "records", "bytes", "model_bytes"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        json_read_need(&r, counts[i]);
        json_read_int(&r, counts[i], 0, JSON_INT_MAX, 0);
    }
    static const char *const objects[] = {"fingerprint", "feed", "totals"};
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        json_read_need(&r, objects[i]);
        json_read_object(&r, objects[i]);
    }
    read_digest(&r, "signature", true);
    read_digest(&r, "model_sha256", true);
    read_digest(&r, "previous", false);
    json_read_need(&r, "tensors");
    json_read_need(&r, "chunks");
    const json_t *tensors = json_read_array(&r, "tensors", TENSORS_MAX);
    const json_t *chunks = json_read_array(&r, "chunks", SIZE_MAX);
    if (r.r < 0)
        return r.r;

    int64_t bytes = 0;
    int q = check_tensors(tensors, &bytes, err);
    if (q < 0)
        return q;
    if (json_read_int(&r, "bytes", 0, JSON_INT_MAX, 0) != bytes)
        return json_read_fail(&r, "bytes",
                              "bytes must be %lld, where the tensors end",
                              (long long)bytes);
    int64_t n = (bytes + STATE_CHUNK - 1) / STATE_CHUNK;
    if ((int64_t)json_array_size(chunks) != n)
        return json_read_fail(
            &r, "chunks", "there are %zu chunks, %lld bytes make %lld",
            json_array_size(chunks), (long long)bytes, (long long)n);
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        const char *hex = json_string_value(json_array_get(chunks, i));
        uint8_t digest[DIGEST_BYTES];
        if (!hex || digest_parse(hex, digest) < 0) {
            char at[JSON_POINTER_MAX];
            json_pointer_index(at, "/chunks", i);
            return err_at(err, ERR_INVALID, at,
                          "a chunk is named by 64 lower-case hex digits");
        }
    }
    return 0;
}

/* Value as canonical JSON in a JSON string, which is all that the metadata of
 * safetensors takes. */
static json_t *as_text(const json_t *value)
{
    CLEANUP(buf_release) struct buf text = {0};
    if (!value || json_canonical(value, &text) < 0)
        return NULL;
    return json_stringn(text.data, text.len);
}

/* The header over the tensors whose names begin with `prefix`, which is cut
 * off. Takes the metadata. */
static int header(const json_t *manifest, const char *prefix, json_t *metadata,
                  struct buf *ret, int64_t *ret_payload, struct err *err)
{
    AUTO_JSON json_t *meta = metadata;
    AUTO_JSON json_t *top = json_object();
    CLEANUP(buf_release) struct buf text = {0}, out = {0};
    const json_t *list = json_object_get(manifest, "tensors");
    int64_t payload = 0;
    bool ok = meta && top && !json_object_set(top, "__metadata__", meta);
    for (size_t i = 0; i < json_array_size(list) && ok; i++) {
        char at[JSON_POINTER_MAX];
        struct tensor t;
        json_pointer_index(at, "/tensors", i);
        int r = tensor_read(json_array_get(list, i), at, &t, err);
        if (r < 0)
            return r;
        if (strncmp(t.name, prefix, strlen(prefix)))
            continue;
        ok = !json_object_set_new(top, t.name + strlen(prefix),
                                  json_pack("{s:s, s:O, s:[I, I]}", "dtype",
                                            t.dtype, "shape", t.shape,
                                            "data_offsets", (json_int_t)t.begin,
                                            (json_int_t)t.end));
        payload = t.end;
    }
    ok = ok && json_canonical(top, &text) == 0;
    while (ok && text.len % 8)
        ok = buf_adds(&text, " ") == 0;
    for (int i = 0; i < 8 && ok; i++) {
        uint8_t byte = (uint8_t)(text.len >> (8 * i));
        ok = buf_add(&out, &byte, 1) == 0;
    }
    ok = ok && buf_add(&out, text.data, text.len) == 0 &&
         buf_add(ret, out.data, out.len) == 0;
    if (!ok)
        return err_set(err, ERR_NOMEM, "no memory for a model file's header");
    *ret_payload = payload;
    return 0;
}

int state_model_header(const json_t *manifest, const json_t *resolved_spec,
                       struct buf *ret, int64_t *ret_payload, struct err *err)
{
    const json_t *model = json_object_get(resolved_spec, "model");
    const json_t *record = json_object_get(resolved_spec, "record");
    if (!json_is_object(model) || !json_is_object(record))
        return err_set(err, ERR_INVALID,
                       "the spec has no model or no record to write down");
    AUTO_JSON json_t *shape = json_copy((json_t *)model);
    if (shape)
        json_object_del(shape, "dropout");
    AUTO_JSON json_t *architecture =
        json_pack("{s:O, s:O}", "model", shape, "record", record);
    return header(manifest, "model.",
                  json_pack("{s:s, s:o}", "format", "pawl", "architecture",
                            as_text(architecture)),
                  ret, ret_payload, err);
}

int state_header(const json_t *manifest, const json_t *resolved_spec,
                 struct buf *ret, struct err *err)
{
    AUTO_JSON json_t *rest = json_copy((json_t *)manifest);
    if (rest)
        json_object_del(rest, "tensors");
    int64_t payload;
    return header(manifest, "",
                  json_pack("{s:s, s:o, s:o}", "format", "pawl-state",
                            "manifest", as_text(rest), "spec",
                            as_text(resolved_spec)),
                  ret, &payload, err);
}
