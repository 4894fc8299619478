#include "worker/bad.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *name_of(const struct shards *shards, const struct ref *ref)
{
    return shards->v[ref->shard].name;
}

void bad_place(struct shards *shards, const struct ref *ref, const char *kind,
               struct err *err)
{
    char text[sizeof err->text];
    memcpy(text, err->text, sizeof text);
    const char *name = name_of(shards, ref);
    err->line = shards_line_number(shards, (int)ref->shard, ref->offset);
    err->offset = ref->offset;
    snprintf(err->shard, sizeof err->shard, "%s", name);
    snprintf(err->text, sizeof err->text,
             "%sshard '%s', line %" PRId64 " (offset %" PRId64 "): %.500s",
             kind, name, err->line, ref->offset, text);
}

json_t *bad_json(struct shards *shards, const struct ref *ref,
                 const struct err *why)
{
    json_int_t line = shards_line_number(shards, (int)ref->shard, ref->offset);
    json_t *out =
        json_pack("{s:s, s:I, s:I, s:s, s:s}", "shard", name_of(shards, ref),
                  "line", line, "offset", (json_int_t)ref->offset, "field",
                  why->field, "detail", why->text);
    if (!out) /* a field name cut within a character */
        out = json_pack("{s:s, s:I, s:I, s:s}", "shard", name_of(shards, ref),
                        "line", line, "offset", (json_int_t)ref->offset,
                        "detail", "not a valid record");
    return out;
}

int bad_too_long(const struct ref *ref, struct err *err)
{
    if (ref->length > LINE_MAX_BYTES + 1)
        return err_set(err, ERR_DATA,
                       "the line is %" PRId64 " bytes long, more than %d",
                       ref->length, LINE_MAX_BYTES);
    return err_set(err, ERR_DATA, "the line is longer than %d bytes",
                   LINE_MAX_BYTES);
}
