/* cleanup.h - release on leaving the scope: the line that acquires names the
 * release, and early returns are safe.
 *
 *     CLEANUP(buf_release) struct buf b = {0};
 *     AUTO_JSON json_t *root = json_object();
 */
#pragma once
#include <stdlib.h>
#include <unistd.h>
#include <jansson.h>

#define CLEANUP(fn) __attribute__((cleanup(fn)))

static inline void free_ptr(void *p)
{
    free(*(void **)p);
}
static inline void json_ptr(json_t **p)
{
    json_decref(*p);
}
static inline void fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}
#define AUTO_FREE CLEANUP(free_ptr)
#define AUTO_JSON CLEANUP(json_ptr)
#define AUTO_FD CLEANUP(fd_close)
