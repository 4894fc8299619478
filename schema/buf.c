#include "schema/buf.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int buf_reserve(struct buf *b, size_t more)
{
    if (more >= SIZE_MAX - b->len)
        return -1;
    size_t need = b->len + more + 1; /* the NUL */
    if (need <= b->cap)
        return 0;

    size_t cap = b->cap < SIZE_MAX / 2 ? b->cap * 2 : need;
    if (cap < need)
        cap = need;
    if (cap < 64)
        cap = 64;
    char *data = realloc(b->data, cap);
    if (!data)
        return -1;
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return 0;
}

int buf_add(struct buf *b, const void *data, size_t len)
{
    if (buf_reserve(b, len) < 0)
        return -1;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
    return 0;
}

int buf_adds(struct buf *b, const char *s)
{
    return buf_add(b, s, strlen(s));
}

int buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    va_list again;
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    int r = len < 0 ? -1 : buf_reserve(b, (size_t)len);
    if (r == 0) {
        vsnprintf(b->data + b->len, (size_t)len + 1, fmt, again);
        b->len += (size_t)len;
    }
    va_end(again);
    va_end(ap);
    return r;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = 0;
}

void buf_release(struct buf *b)
{
    if (!b)
        return;
    free(b->data);
    *b = (struct buf){0};
}
