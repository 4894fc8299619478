#include "worker/position.h"
#include <stddef.h>

enum { ALWAYS, IN_FILES, LATER }; /* who has the field */

static const struct {
    const char *name;
    size_t at;
    int when;
} fields[] = {
#define FIELD(name, when)                                                      \
    {                                                                          \
#name, offsetof(struct position, name), when                           \
    }
    FIELD(epoch, ALWAYS),    FIELD(step, ALWAYS),        FIELD(shard, IN_FILES),
    FIELD(offset, IN_FILES), FIELD(draws, ALWAYS),       FIELD(records, ALWAYS),
    FIELD(skipped, ALWAYS),  FIELD(renormalised, LATER),
#undef FIELD
};
#define N_FIELDS (sizeof fields / sizeof *fields)

int position_parse(const json_t *in, bool global, struct position *ret,
                   struct err *err)
{
    struct position p = {0};
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *v = json_object_get(in, fields[i].name);
        if (fields[i].when == IN_FILES && global)
            continue;
        if (fields[i].when == LATER && !v)
            continue;
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return err_set(err, ERR_CORRUPT,
                           "the checkpoint's feed position has no '%s'",
                           fields[i].name);
        *(int64_t *)((char *)&p + fields[i].at) = json_integer_value(v);
    }
    *ret = p;
    return 0;
}

json_t *position_json(const struct position *p, bool global)
{
    json_t *out = json_object();
    for (size_t i = 0; out && i < N_FIELDS; i++) {
        if (fields[i].when == IN_FILES && global)
            continue;
        int64_t v = *(const int64_t *)((const char *)p + fields[i].at);
        if (json_object_set_new(out, fields[i].name, json_integer(v)) < 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
