#include "worker/arena.h"
#include <stdlib.h>

#define CHUNK_BYTES (64 * 1024)
#define KEPT_BYTES (1024 * 1024) /* chunks above this are not kept for reuse */

struct arena_chunk {
    struct arena_chunk *next;
    size_t cap, used;
};

static void *chunk_get(struct arena_chunk *c, size_t bytes)
{
    if (!c || bytes > c->cap - c->used)
        return NULL;
    void *p = (char *)(c + 1) + c->used;
    c->used += bytes;
    return p;
}

void *arena_get(struct arena *a, size_t bytes)
{
    bytes = (bytes + 7) & ~(size_t)7;
    void *p = chunk_get(a->at, bytes);
    if (p)
        return p;
    struct arena_chunk **next = a->at ? &a->at->next : &a->head;
    if (!*next || bytes > (*next)->cap) {
        size_t cap = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        struct arena_chunk *c = malloc(sizeof *c + cap);
        if (!c)
            return NULL;
        *c = (struct arena_chunk){.next = *next, .cap = cap};
        *next = c;
    }
    a->at = *next;
    return chunk_get(a->at, bytes);
}

static void free_from(struct arena_chunk *c)
{
    while (c) {
        struct arena_chunk *next = c->next;
        free(c);
        c = next;
    }
}

void arena_reset(struct arena *a)
{
    size_t kept = 0;
    struct arena_chunk **at = &a->head;
    for (; *at && kept + (*at)->cap <= KEPT_BYTES; at = &(*at)->next) {
        kept += (*at)->cap;
        (*at)->used = 0;
    }
    free_from(*at);
    *at = NULL;
    a->at = a->head;
}

void arena_release(struct arena *a)
{
    free_from(a->head);
    *a = (struct arena){0};
}
