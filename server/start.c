#include "server/start.h"

void start_release(struct start *s)
{
    checkpoint_release(&s->from);
}

int start_find(struct store *st, const struct cycle *c, struct start *ret,
               struct err *err)
{
    *ret = (struct start){0};
    int r = checkpoint_newest(st, c->id, &ret->from, err);
    if (r < 0)
        return r;
    if (r > 0) {
        ret->step = ret->from.step;
        ret->epoch = ret->from.epoch;
        ret->records = ret->from.records;
        return 0;
    }
    if (!c->initial)
        return 0;
    ret->initial = true;
    return checkpoint_load(st, c->initial, &ret->from, err);
}
