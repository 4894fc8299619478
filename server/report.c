#include "server/report.h"
#include <ctype.h>
#include <math.h>
#include <string.h>
#include "schema/json_read.h"

#define ROWS_MAX 100000 /* steps, samples or lines of one report */
#define SERIES_MAX 64

const char *outcome_word(enum outcome o)
{
    static const char *const words[] = {"finished", "yielded", "failed"};
    return words[o];
}

static int parse_position(const json_t *in, const char *at,
                          struct position *ret, struct err *err)
{
    if (!in)
        return 0;
    struct json_read r;
    json_read_open(&r, in, at, err, "step", "epoch", "records", "micro_batches",
                   NULL);
    json_read_need(&r, "step");
    ret->step = json_read_int(&r, "step", 0, JSON_INT_MAX, 0);
    ret->epoch = json_read_int(&r, "epoch", 0, JSON_INT_MAX, 0);
    ret->records = json_read_int(&r, "records", 0, JSON_INT_MAX, 0);
    ret->micro_batches = json_read_int(&r, "micro_batches", 0, JSON_INT_MAX, 0);
    ret->given = true;
    return r.r;
}

static bool series_name(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > SERIES_MAX)
        return false;
    for (const char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("_/.-", *p))
            return false;
    return true;
}

static int check_metrics(const json_t *rows, const char *at, struct err *err)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        char place[JSON_POINTER_MAX];
        json_pointer_index(place, at, i);
        const json_t *values = json_array_get(row, 1);
        if (json_array_size(row) != 2 ||
            !json_is_integer(json_array_get(row, 0)) ||
            json_integer_value(json_array_get(row, 0)) < 0 ||
            !json_is_object(values))
            return err_at(err, ERR_INVALID, place,
                          "a row is [step, {series: value}]");
        const char *name;
        json_t *v;
        json_object_foreach((json_t *)values, name, v)
        {
            if (!series_name(name))
                return err_at(err, ERR_INVALID, place,
                              "a series is named by up to %d letters, digits "
                              "and _ / . -",
                              SERIES_MAX);
            if (!json_is_number(v) && !json_is_null(v))
                return err_at(err, ERR_INVALID, place,
                              "series '%s' must be a number or null", name);
        }
    }
    return 0;
}

static int check_memory(const json_t *rows, const char *at, struct err *err)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        static const char *const sizes[] = {
            "allocated_bytes", "device_bytes", "rss_bytes",
            "available_bytes", "swap_bytes",   "shapes"};
        char place[JSON_POINTER_MAX];
        json_pointer_index(place, at, i);
        struct json_read r;
        json_read_open(&r, row, place, err, "step", "at_ms", "allocated_bytes",
                       "device_bytes", "rss_bytes", "available_bytes",
                       "swap_bytes", "shapes", NULL);
        json_read_need(&r, "step");
        json_read_need(&r, "at_ms");
        json_read_int(&r, "step", 0, JSON_INT_MAX, 0);
        json_read_int(&r, "at_ms", 0, JSON_INT_MAX, 0);
        for (int k = 0; k < 6; k++)
            json_read_int(&r, sizes[k], -1, JSON_INT_MAX, 0);
        if (r.r < 0)
            return r.r;
    }
    return 0;
}

static int check_logs(const json_t *rows, const char *at, struct err *err)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        char place[JSON_POINTER_MAX];
        json_pointer_index(place, at, i);
        struct json_read r;
        json_read_open(&r, row, place, err, "at_ms", "level", "text", NULL);
        json_read_need(&r, "at_ms");
        json_read_need(&r, "level");
        json_read_need(&r, "text");
        json_read_int(&r, "at_ms", 0, JSON_INT_MAX, 0);
        json_read_string(&r, "level", 16, "");
        json_read_string(&r, "text", 8192, "");
        if (r.r < 0)
            return r.r;
    }
    return 0;
}

static int check_exceeded(const json_t *in, const char *at, struct err *err)
{
    const char *dim;
    json_t *row;
    json_object_foreach((json_t *)in, dim, row)
    {
        char place[JSON_POINTER_MAX];
        json_pointer(place, at, dim);
        struct json_read r;
        json_read_open(&r, row, place, err, "count", "longest", NULL);
        json_read_need(&r, "count");
        json_read_need(&r, "longest");
        json_read_int(&r, "count", 1, JSON_INT_MAX, 0);
        json_read_int(&r, "longest", 1, JSON_INT_MAX, 0);
        if (r.r < 0)
            return r.r;
    }
    return 0;
}

static int parse_data(const json_t *in, const char *at, struct report *ret,
                      struct err *err)
{
    char exceeded[JSON_POINTER_MAX];
    ret->skipped = ret->renormalised = -1;
    if (!in)
        return 0;
    struct json_read r;
    json_read_open(&r, in, at, err, "skipped", "bad", "renormalised",
                   "exceeded", NULL);
    ret->skipped = json_read_int(&r, "skipped", 0, JSON_INT_MAX, 0);
    ret->bad = json_read_array(&r, "bad", 1000);
    ret->renormalised = json_read_int(&r, "renormalised", 0, JSON_INT_MAX, -1);
    ret->exceeded = json_read_object(&r, "exceeded");
    if (r.r < 0)
        return r.r;
    json_pointer(exceeded, at, "exceeded");
    int q = check_exceeded(ret->exceeded, exceeded, err);
    if (q < 0)
        return q;
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)ret->bad, i, row)
    {
        char place[JSON_POINTER_MAX];
        json_pointer_index(place, at, i);
        struct json_read b;
        json_read_open(&b, row, place, err, "shard", "line", "offset", "field",
                       "detail", NULL);
        json_read_string(&b, "shard", 512, "");
        json_read_string(&b, "detail", 2048, "");
        json_read_int(&b, "line", 0, JSON_INT_MAX, 0);
        json_read_int(&b, "offset", 0, JSON_INT_MAX, 0);
        if (b.r < 0)
            return b.r;
    }
    return 0;
}

/* The parts that both bodies have; `in` was opened with their names. */
static int parse_common(struct json_read *in, struct report *ret)
{
    char at[JSON_POINTER_MAX];
    const json_t *position = json_read_object(in, "position");
    const json_t *data = json_read_object(in, "data");
    ret->metrics = json_read_array(in, "metrics", ROWS_MAX);
    ret->memory = json_read_array(in, "memory", ROWS_MAX);
    ret->logs = json_read_array(in, "logs", ROWS_MAX);
    if (in->r < 0)
        return in->r;
    json_pointer(at, in->at, "position");
    int r = parse_position(position, at, &ret->position, in->err);
    json_pointer(at, in->at, "metrics");
    if (r >= 0)
        r = check_metrics(ret->metrics, at, in->err);
    json_pointer(at, in->at, "memory");
    if (r >= 0)
        r = check_memory(ret->memory, at, in->err);
    json_pointer(at, in->at, "logs");
    if (r >= 0)
        r = check_logs(ret->logs, at, in->err);
    json_pointer(at, in->at, "data");
    if (r >= 0)
        r = parse_data(data, at, ret, in->err);
    return r;
}

int report_parse(const json_t *body, int64_t *ret_token, struct report *ret,
                 struct err *err)
{
    static const char *const stages[] = {"load", "first_step", "train",
                                         "validate", "save", NULL};
    *ret = (struct report){0};
    struct json_read in;
    json_read_open(&in, body, "", err, "token", "stage", "position",
                   "records_per_s", "seq", "metrics", "memory", "logs", "data",
                   NULL);
    json_read_need(&in, "token");
    *ret_token = json_read_int(&in, "token", 0, JSON_INT_MAX, 0);
    ret->stage = stages[json_read_word(&in, "stage", stages, 0)];
    ret->seq = json_read_int(&in, "seq", 0, JSON_INT_MAX, 0);
    ret->records_per_s = json_read_real(&in, "records_per_s", 0, 1e15, -1);
    return in.r < 0 ? in.r : parse_common(&in, ret);
}

static int parse_error(const json_t *in, const char *at, struct release *ret,
                       struct err *err)
{
    ret->error.line = ret->error.offset = -1;
    if (!in)
        return 0;
    struct json_read r;
    json_read_open(&r, in, at, err, "code", "detail", "shard", "line", "offset",
                   "field", "stage", "final", "checkpoint", "bytes",
                   "missing_bytes", NULL);
    json_read_need(&r, "code");
    ret->error.code = json_read_string(&r, "code", 32, "");
    ret->error.detail = json_read_string(&r, "detail", 4096, "");
    ret->error.shard = json_read_string(&r, "shard", 512, NULL);
    ret->error.field = json_read_string(&r, "field", 256, NULL);
    ret->error.stage = json_read_string(&r, "stage", 64, NULL);
    ret->error.line = json_read_int(&r, "line", 0, JSON_INT_MAX, -1);
    ret->error.offset = json_read_int(&r, "offset", 0, JSON_INT_MAX, -1);
    ret->error.final = json_read_bool(&r, "final", false);
    ret->error.checkpoint = json_read_int(&r, "checkpoint", 0, JSON_INT_MAX, 0);
    ret->error.bytes = json_read_int(&r, "bytes", 0, (int64_t)1 << 50, 0);
    ret->error.missing = json_read_int(&r, "missing_bytes", 0, JSON_INT_MAX, 0);
    ret->error.given = true;
    ret->error_json = in;
    return r.r;
}

int release_parse(const json_t *body, const char *at, int64_t *ret_token,
                  struct release *ret, struct err *err)
{
    static const char *const outcomes[] = {"finished", "yielded", "failed",
                                           NULL};
    *ret = (struct release){0};
    struct json_read in;
    json_read_open(&in, body, at, err, "token", "outcome", "reason", "detail",
                   "position", "metrics", "memory", "logs", "data", "error",
                   NULL);
    if (ret_token) {
        json_read_need(&in, "token");
        *ret_token = json_read_int(&in, "token", 0, JSON_INT_MAX, 0);
    }
    json_read_need(&in, "outcome");
    ret->outcome = (enum outcome)json_read_word(&in, "outcome", outcomes, 0);
    ret->reason = json_read_string(&in, "reason", 4096, NULL);
    ret->detail = json_read_string(&in, "detail", 4096, NULL);
    const json_t *error = json_read_object(&in, "error");
    if (in.r < 0)
        return in.r;
    if (ret->outcome == OUTCOME_YIELDED) {
        static const char *const reasons[] = {
            "memory", "forecast", "steps", "time", "drain", "pause", NULL};
        json_read_need(&in, "reason");
        json_read_word(&in, "reason", reasons, 0);
        if (in.r < 0)
            return in.r;
    }
    char place[JSON_POINTER_MAX];
    json_pointer(place, at, "error");
    int r = parse_error(error, place, ret, err);
    if (r < 0)
        return r;
    ret->report.records_per_s = -1;
    return parse_common(&in, &ret->report);
}
