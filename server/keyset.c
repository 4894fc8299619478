#include "server/keyset.h"
#include <stdlib.h>
#include <string.h>

#define CAP_MIN 1024
#define THINNED_MAX 40

static bool is_kept(const struct keyset *s, uint64_t key)
{
    return s->thinned == 0 || key >> (64 - s->thinned) == 0;
}

/* Where the key is, or would be. */
static size_t find(const uint64_t *slot, size_t cap, uint64_t key)
{
    size_t i = (size_t)key & (cap - 1);
    while (slot[i] && slot[i] != key)
        i = (i + 1) & (cap - 1);
    return i;
}

/* Into a table of `cap` slots, without those that are no longer kept. */
static int rebuild(struct keyset *s, size_t cap)
{
    uint64_t *slot = calloc(cap, sizeof(*slot));
    if (!slot)
        return -1;
    size_t n = 0;
    for (size_t i = 0; i < s->cap; i++) {
        if (!s->slot[i] || !is_kept(s, s->slot[i]))
            continue;
        slot[find(slot, cap, s->slot[i])] = s->slot[i];
        n++;
    }
    free(s->slot);
    s->slot = slot;
    s->cap = cap;
    s->n = n;
    return 0;
}

static int make_room(struct keyset *s)
{
    if (s->n < s->cap / 4 * 3)
        return 0;
    size_t cap = s->cap ? s->cap * 2 : CAP_MIN;
    if (cap <= s->max)
        return rebuild(s, cap);
    if (s->thinned == THINNED_MAX)
        return -1; /* these are no hashes */
    s->thinned++;
    return rebuild(s, s->cap);
}

int keyset_add(struct keyset *s, uint64_t key)
{
    if (!is_kept(s, key))
        return 0;
    if (key == 0) {
        bool is_new = !s->zero;
        s->zero = true;
        return is_new;
    }
    while (s->n >= s->cap / 4 * 3)
        if (make_room(s) < 0)
            return -1;
    if (!is_kept(s, key))
        return 0;
    size_t i = find(s->slot, s->cap, key);
    if (s->slot[i])
        return 0;
    s->slot[i] = key;
    s->n++;
    return 1;
}

int64_t keyset_count(const struct keyset *s)
{
    return (int64_t)(s->n + s->zero) << s->thinned;
}

bool keyset_exact(const struct keyset *s)
{
    return s->thinned == 0;
}

void keyset_clear(struct keyset *s)
{
    if (s->cap)
        memset(s->slot, 0, s->cap * sizeof(*s->slot));
    s->n = 0;
    s->zero = false;
    s->thinned = 0;
}

void keyset_release(struct keyset *s)
{
    free(s->slot);
    *s = (struct keyset){0};
}
