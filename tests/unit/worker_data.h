/* worker_data.h - shards in a folder of the test's own, frozen as the server
 * freezes them: the `data` of a claim. */
#pragma once
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/lines.h"
#include "schema/spec.h"

#define BLOCK 4096 /* small, so that lines lie across blocks */

struct folder {
    char path[64];
};

static inline void folder_init(struct folder *f)
{
    snprintf(f->path, sizeof f->path, "/tmp/pawl-unit-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

static inline void folder_release(struct folder *f)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    assert_int_equal(system(command), 0);
}

static inline void in_folder(const struct folder *f, const char *name,
                             char *ret, size_t cap)
{
    snprintf(ret, cap, "%s/%s", f->path, name);
}

static inline void put_file(const struct folder *f, const char *name,
                            const void *data, size_t len)
{
    char path[256];
    in_folder(f, name, path, sizeof path);
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), (ssize_t)len);
}

/* One shard as the claim has it, from the file as it is now. */
static inline json_t *freeze(const struct folder *f, const char *name)
{
    char path[256], hex[DIGEST_HEX];
    in_folder(f, name, path, sizeof path);
    AUTO_FD int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    json_t *blocks = json_array();
    struct line_count count = {0};
    static char block[BLOCK];
    for (ssize_t n; (n = read(fd, block, BLOCK)) > 0;) {
        uint8_t sum[DIGEST_BYTES];
        digest_of(block, (size_t)n, sum);
        digest_hex(sum, hex);
        json_array_append_new(blocks, json_string(hex));
        line_count_add(&count, block, (size_t)n);
    }
    line_count_end(&count);
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:i, s:o}", "name", name, "path", path,
        "bytes", (json_int_t)st.st_size, "records", (json_int_t)count.records,
        "mtime_ns",
        (json_int_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
        "inode", (json_int_t)st.st_ino, "block_bytes", BLOCK, "blocks", blocks);
}

/* `shards` names, ended by NULL. */
static inline json_t *freeze_all(const struct folder *f, ...)
{
    json_t *shards = json_array();
    va_list ap;
    va_start(ap, f);
    for (const char *name; (name = va_arg(ap, const char *));)
        json_array_append_new(shards, freeze(f, name));
    va_end(ap);
    return json_pack("{s:o}", "shards", shards);
}

/* A record whose first token is `id`; its size varies with it. */
static inline void add_record(struct buf *b, int id)
{
    int tokens = 1 + id % 17, moves = 1 + id % 5;
    buf_addf(b, "{\"x\":[%d", id);
    for (int i = 1; i < tokens; i++)
        buf_addf(b, ",%d", (id * 7 + i) % 1000);
    buf_adds(b, "],\"moves\":[");
    for (int i = 0; i < moves; i++)
        buf_addf(b, "%s[%d]", i ? "," : "", (id + i) % 64);
    buf_adds(b, "],\"pi\":[");
    for (int i = 0; i < moves; i++)
        buf_addf(b, "%s%d", i ? "," : "", i == id % moves);
    buf_addf(b, "],\"z\":%d}\n", id % 3 - 1);
}

struct spec_in {
    int epochs, effective, micro, shuffle; /* shuffle 0: none */
    int64_t seed;
    bool skip, global; /* global: shuffle is 0 */
};

static inline void make_spec(const struct spec_in *in, struct spec *ret)
{
    AUTO_JSON json_t *json = json_pack(
        "{s:s, s:{s:i, s:i, s:i, s:i}, s:{s:{s:s, s:s, s:i}, s:{s:s, s:s, "
        "s:[{s:i}]}, s:{s:s, s:s, s:s}, s:{s:s, s:s}}, s:{s:s, s:s}, s:{s:i, "
        "s:i, s:I, s:{s:s, s:i}}, s:{s:i}}",
        "name", "unit", "model", "d_model", 8, "layers", 1, "heads", 1, "ff", 8,
        "record", "x", "kind", "tokens", "dim", "S", "vocab", 100000, "moves",
        "kind", "rows", "dim", "A", "columns", "vocab", 64, "pi", "kind",
        "target", "over", "moves", "loss", "cross_entropy", "z", "kind",
        "target", "loss", "mse", "data", "dataset", "unit", "bad_records",
        in->skip ? "skip" : "fail", "training", "epochs", in->epochs,
        "effective_batch", in->effective, "seed", (json_int_t)in->seed,
        "shuffle", "mode",
        in->global    ? "global"
        : in->shuffle ? "buffer"
                      : "none",
        "size", in->shuffle ? in->shuffle : 1, "runtime", "micro_batch",
        in->micro);
    assert_non_null(json);
    if (!in->shuffle)
        json_object_del(
            json_object_get(json_object_get(json, "training"), "shuffle"),
            "size");
    struct err err = {0};
    if (spec_parse(json, ret, &err) < 0)
        fail_msg("%s at %s", err.text, err.pointer);
}
