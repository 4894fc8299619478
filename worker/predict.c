#include "worker/predict.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/lines.h"
#include "schema/record.h"
#include "schema/spec.h"
#include "worker/collate.h"
#include "worker/torch_shim.h"

static int read_file(const char *path, struct buf *out, struct err *err)
{
    AUTO_FD int fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC)
                                       : dup(STDIN_FILENO);
    if (fd < 0)
        return err_set(err, ERR_IO, "cannot open %s: %s", path,
                       strerror(errno));
    for (;;) {
        if (buf_reserve(out, 1024 * 1024) < 0)
            return err_set(err, ERR_NOMEM, "no memory for %s", path);
        ssize_t n = read(fd, out->data + out->len, out->cap - out->len - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "cannot read %s: %s", path,
                           strerror(errno));
        if (n == 0)
            return 0;
        out->len += (size_t)n;
        out->data[out->len] = 0;
    }
}

/* ---- the model file ---- */

struct model_file {
    struct buf bytes;
    json_t *header;
    const char *payload;
    size_t payload_len;
};

static void model_file_release(struct model_file *f)
{
    buf_release(&f->bytes);
    json_decref(f->header);
}

static int model_file_open(const char *path, struct model_file *ret,
                           struct err *err)
{
    int r = read_file(path, &ret->bytes, err);
    if (r < 0)
        return r;
    const uint8_t *p = (const uint8_t *)ret->bytes.data;
    uint64_t len = 0;
    for (int i = 7; i >= 0 && ret->bytes.len >= 8; i--)
        len = len << 8 | p[i];
    if (ret->bytes.len < 8 || len > ret->bytes.len - 8)
        return err_set(err, ERR_CORRUPT, "%s is not a safetensors file", path);
    ret->header = json_loadb(ret->bytes.data + 8, (size_t)len, 0, NULL);
    if (!json_is_object(ret->header))
        return err_set(err, ERR_CORRUPT, "%s has no safetensors header", path);
    ret->payload = ret->bytes.data + 8 + len;
    ret->payload_len = ret->bytes.len - 8 - (size_t)len;
    return 0;
}

/* A spec with the file's architecture, and defaults for all else. */
static int model_file_spec(const struct model_file *f, struct spec *ret,
                           struct err *err)
{
    const char *text = json_string_value(json_object_get(
        json_object_get(f->header, "__metadata__"), "architecture"));
    AUTO_JSON json_t *arch = text ? json_loads(text, 0, NULL) : NULL;
    json_t *model = json_object_get(arch, "model");
    json_t *record = json_object_get(arch, "record");
    AUTO_JSON json_t *spec =
        model && record
            ? json_pack("{s:s, s:O, s:O, s:{s:s}}", "name", "predict", "model",
                        model, "record", record, "data", "dataset", "none")
            : NULL;
    if (!spec)
        return err_set(err, ERR_CORRUPT,
                       "the model file does not say its architecture");
    return spec_parse(spec, ret, err);
}

static int model_file_load(const struct model_file *f, struct trainer *t,
                           struct err *err)
{
    const char *name;
    json_t *row;
    json_object_foreach(f->header, name, row)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        const json_t *range = json_object_get(row, "data_offsets");
        json_int_t begin = json_integer_value(json_array_get(range, 0));
        json_int_t end = json_integer_value(json_array_get(range, 1));
        const json_t *sizes = json_object_get(row, "shape");
        const char *dtype = json_string_value(json_object_get(row, "dtype"));
        int64_t shape[8] = {0};
        size_t dims = json_array_size(sizes);
        if (!dtype || dims > 8 || begin < 0 || end < begin ||
            (size_t)end > f->payload_len)
            return err_set(err, ERR_CORRUPT, "tensor '%s' is cut", name);
        for (size_t i = 0; i < dims; i++)
            shape[i] = json_integer_value(json_array_get(sizes, i));
        CLEANUP(buf_release) struct buf full = {0};
        if (buf_addf(&full, "model.%s", name) < 0)
            return err_set(err, ERR_NOMEM, "no memory for the model");
        /* a copy, so that it is aligned whatever the header's length */
        size_t bytes = (size_t)(end - begin);
        AUTO_FREE void *data = malloc(bytes + 1);
        if (!data)
            return err_set(err, ERR_NOMEM, "no memory for the model");
        memcpy(data, f->payload + begin, bytes);
        int r = trainer_load(t, full.data, dtype, shape, (int)dims, data, bytes,
                             err);
        if (r < 0)
            return r;
    }
    return trainer_load_model_end(t, err);
}

/* ---- predictions ---- */

static int predict_one(struct trainer *t, const struct spec *spec,
                       const struct record *record, struct collator *c,
                       FILE *out, struct err *err)
{
    CLEANUP(arena_release) struct arena arena = {0};
    struct sample *s;
    struct ref none = {0};
    int r = sample_new(&spec->record, record, &none, &arena, &s, err);
    if (r == 0)
        r = collator_fill(c, &s, 1, 0, NULL, err);
    if (r < 0)
        return r;
    int dim = spec->record.policy >= 0
                  ? spec->record.fields[spec->record.policy].dim
                  : -1;
    size_t rows = dim >= 0 ? (size_t)c->batch.padded[dim] : 0;
    AUTO_FREE float *policy = calloc(rows + 1, sizeof *policy);
    float value = 0;
    if (!policy)
        return err_set(err, ERR_NOMEM, "no memory for a prediction");
    r = trainer_predict(t, &c->batch, dim >= 0 ? policy : NULL,
                        spec->record.value >= 0 ? &value : NULL, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *o = json_object();
    if (dim >= 0) {
        json_t *list = json_array();
        for (int i = 0; i < s->lengths[dim]; i++)
            json_array_append_new(list, json_real((double)policy[i]));
        json_object_set_new(o, "policy", list);
    }
    if (spec->record.value >= 0)
        json_object_set_new(o, "value", json_real((double)value));
    AUTO_FREE char *text = json_dumps(o, JSON_REAL_PRECISION(9));
    if (!text || fprintf(out, "%s\n", text) < 0)
        return err_set(err, ERR_IO, "cannot write: %s", strerror(errno));
    return 0;
}

static int predict_lines(struct trainer *t, const struct spec *spec,
                         const struct buf *text, const char *name,
                         struct record_decoder *d, FILE *out, struct err *err)
{
    struct collator c;
    int r = collator_init(&c, &spec->record, err);
    size_t at = text->len ? line_bom(text->data, text->len) : 0;
    for (int64_t line = 1; r == 0 && at < text->len; line++) {
        const char *p = text->data + at;
        const char *nl = memchr(p, '\n', text->len - at);
        size_t len = nl ? (size_t)(nl - p) : text->len - at;
        int64_t offset = (int64_t)at;
        at += len + 1;
        if (line_is_blank(p, len))
            continue;
        const struct record *record;
        r = record_decode(d, p, len, &record, err);
        if (r < 0 && err) {
            char why[sizeof err->text];
            memcpy(why, err->text, sizeof why);
            err->line = line;
            err->offset = offset;
            snprintf(err->text, sizeof err->text, "%.200s, line %lld: %.500s",
                     name, (long long)line, why);
        }
        if (r == 0)
            r = predict_one(t, spec, record, &c, out, err);
    }
    collator_release(&c);
    return r;
}

static void trainer_ptr(struct trainer **t)
{
    trainer_free(*t);
}

static void decoder_ptr(struct record_decoder **d)
{
    record_decoder_free(*d);
}

int predict_file(const char *model, const char *records, FILE *out,
                 struct err *err)
{
    CLEANUP(model_file_release) struct model_file f = {0};
    CLEANUP(spec_release) struct spec spec = {0};
    CLEANUP(trainer_ptr) struct trainer *t = NULL;
    CLEANUP(decoder_ptr) struct record_decoder *d = NULL;
    CLEANUP(buf_release) struct buf text = {0};
    int r = model_file_open(model, &f, err);
    if (r == 0)
        r = model_file_spec(&f, &spec, err);
    if (r == 0)
        r = trainer_new(&spec, "cpu", 1, &t, err);
    if (r == 0)
        r = model_file_load(&f, t, err);
    if (r == 0)
        r = record_decoder_new(&spec.record, spec.data.policy_tolerance, &d,
                               err);
    if (r == 0)
        record_decoder_inputs_only(d);
    if (r == 0)
        r = read_file(records, &text, err);
    if (r == 0)
        r = predict_lines(t, &spec, &text, records, d, out, err);
    return r;
}
