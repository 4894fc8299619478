/* fuzz.h - what the fuzz targets share.
 *
 * Each target is a program of libFuzzer: `fuzz_record corpus/record` goes on
 * until something is wrong, `fuzz_record FILE` tries one input again. A target
 * does not only wait for a crash: it holds what it fuzzes against a second,
 * slower reading of the same bytes, and MUST says what has to agree. */
#pragma once
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(claim, ...)                                                       \
    do {                                                                       \
        if (!(claim)) {                                                        \
            fprintf(stderr, "%s:%d: must hold: %s\n  ", __FILE__, __LINE__,    \
                    #claim);                                                   \
            fprintf(stderr, __VA_ARGS__);                                      \
            fputc('\n', stderr);                                               \
            abort();                                                           \
        }                                                                      \
    } while (0)

/* The input, taken from its front. */
struct in {
    const uint8_t *p;
    size_t n;
};

static inline unsigned in_byte(struct in *in)
{
    if (!in->n)
        return 0;
    in->n--;
    return *in->p++;
}

static inline unsigned in_short(struct in *in)
{
    unsigned low = in_byte(in);
    return low | in_byte(in) << 8;
}

static inline void must_add(struct buf *b, const void *data, size_t len)
{
    MUST(len == 0 || buf_add(b, data, len) == 0, "memory for %zu bytes", len);
}

/* The bytes alone, so that a sanitizer sees who reads beyond them. The caller
 * frees. */
static inline char *alone(const void *data, size_t len)
{
    char *p = malloc(len ? len : 1);
    MUST(p, "memory for %zu bytes", len);
    if (len)
        memcpy(p, data, len);
    return p;
}

/* A file that holds these bytes and stands at its start. The caller closes. */
static inline int file_of(const void *data, size_t len)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    MUST(fd >= 0 && (!len || write(fd, data, len) == (ssize_t)len),
         "a file of %zu bytes", len);
    MUST(lseek(fd, 0, SEEK_SET) == 0, "a file");
    return fd;
}

/* All of a file. */
static inline void bytes_of(int fd, struct buf *ret)
{
    char part[4096];
    ssize_t n;
    for (off_t at = 0; (n = pread(fd, part, sizeof part, at)) > 0; at += n)
        must_add(ret, part, (size_t)n);
}

/* A refusal is one of those, and says why: a sentence that JSON can carry. */
static inline void is_refusal(int r, const struct err *err, int one, int other)
{
    AUTO_JSON json_t *text = json_string(err->text);
    MUST(text, "not UTF-8: %s", err->text);
    MUST(r == one || r == other, "code %d (%s): %s", r, err_word(r), err->text);
    MUST(err->code == r && err->text[0], "a refusal without a sentence");
}
