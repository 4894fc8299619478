/* arena.h - memory that is given back all at once: the samples of a batch. */
#pragma once
#include <stddef.h>

struct arena_chunk;

struct arena { /* all-zero is an empty one */
    struct arena_chunk *head, *at;
};

/* 8-byte aligned; NULL: no memory. */
void *arena_get(struct arena *a, size_t bytes);
/* All of it is free again; most of it stays for the next use. */
void arena_reset(struct arena *a);
void arena_release(struct arena *a);
