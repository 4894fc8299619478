/* What a look at a dataset found, for a terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "server/inspect.h"

/* To six digits: more is for programs. */
static json_t *short_real(json_t *v)
{
    char text[32];
    if (!json_is_real(v))
        return json_incref(v);
    snprintf(text, sizeof(text), "%.6g", json_real_value(v));
    return json_real(strtod(text, NULL));
}

/* {name: {…}} as [{key: name, …}], without what a plot shows. */
static json_t *rows(const json_t *object, const char *key)
{
    json_t *out = json_array(), *value, *v;
    const char *name, *k;
    json_object_foreach((json_t *)object, name, value)
    {
        json_t *row = json_pack("{ss}", key, name);
        json_object_foreach(value, k, v)
        {
            if (!strcmp(k, "histogram"))
                continue;
            if (json_is_object(v)) {
                const char *below;
                json_t *x;
                char long_name[128];
                json_object_foreach(v, below, x)
                {
                    snprintf(long_name, sizeof(long_name), "%s.%s", k, below);
                    json_object_set_new(row, long_name, short_real(x));
                }
            } else {
                json_object_set_new(row, k, short_real(v));
            }
        }
        json_array_append_new(out, row);
    }
    return out;
}

static void advise(json_t *out, const char *group, const char *name,
                   const json_t *v)
{
    CLEANUP(buf_release) struct buf text = {0}, word = {0};
    buf_addf(&word, "%s %s", group, name);
    if (json_object_get(v, "padding"))
        json_text(json_object_get(v, "padding"), &text);
    char waste[16];
    snprintf(waste, sizeof(waste), "%.1f%%",
             100 * json_number_value(json_object_get(v, "waste")));
    json_array_append_new(
        out, json_pack("{ss ss sO* ss}", "advice", word.data ? word.data : "",
                       "waste", waste, "shapes", json_object_get(v, "shapes"),
                       "padding", text.data ? text.data : ""));
}

static json_t *advice_rows(const json_t *advice)
{
    static const char *const groups[] = {"stable", "ladder"};
    json_t *out = json_array(), *v;
    const char *name;
    if (!json_is_object(advice))
        return out;
    advise(out, "dynamic", "", json_object_get(advice, "dynamic"));
    for (int i = 0; i < 2; i++)
        json_object_foreach(json_object_get(advice, groups[i]), name, v)
            advise(out, groups[i], name, v);
    return out;
}

/* Lists of places: what is nested becomes a column. */
static json_t *places(const json_t *list)
{
    json_t *out = json_array(), *one;
    size_t i;
    json_array_foreach(list, i, one)
    {
        AUTO_JSON json_t *object = json_pack("{sO}", "", one);
        AUTO_JSON json_t *row = rows(object, "");
        json_t *flat = json_incref(json_array_get(row, 0));
        json_object_del(flat, "");
        json_array_append_new(out, flat);
    }
    return out;
}

static json_t *places_of(const json_t *o)
{
    json_t *out = json_copy((json_t *)o);
    json_object_set_new(out, "first", places(json_object_get(o, "first")));
    return out;
}

json_t *inspect_table(const json_t *answer)
{
    json_t *out = json_copy((json_t *)answer);
    const json_t *advice = json_object_get(answer, "advice");
    if (!json_object_get(answer, "fields"))
        return out; /* not counted yet */
    json_object_set_new(out, "fields",
                        rows(json_object_get(answer, "fields"), "field"));
    json_object_set_new(out, "dims",
                        rows(json_object_get(answer, "dims"), "dim"));
    json_object_set_new(out, "bad", places_of(json_object_get(answer, "bad")));
    if (json_is_object(json_object_get(answer, "duplicates")))
        json_object_set_new(out, "duplicates",
                            places_of(json_object_get(answer, "duplicates")));
    if (json_is_object(advice)) {
        json_object_set(out, "micro_batch",
                        json_object_get(advice, "micro_batch"));
        json_object_del(out, "advice");
        json_object_set_new(out, "advice", advice_rows(advice));
    }
    return out;
}
