/* buf.h - bytes that grow. All-zero is an empty buffer. */
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct buf {
    char *data; /* NUL-terminated beyond len whenever it is not NULL */
    size_t len, cap;
};

/* Each returns 0, or -1 when memory is short (the buffer is unchanged). */
int buf_reserve(struct buf *b, size_t more);
int buf_add(struct buf *b, const void *data, size_t len);
int buf_adds(struct buf *b, const char *s);
int buf_addf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void buf_clear(struct buf *b); /* len = 0, memory kept */
void buf_release(struct buf *b);

#ifdef __cplusplus
}
#endif
