/* worker_text.h - shards made from a text: the file as it is kept, plain or in
 * zstd frames, its index, and what a claim says of it. */
#pragma once
#include "tests/unit/worker_data.h"
#include "schema/line_hash.h"
#include "schema/line_index.h"
#include "schema/seekable.h"

struct made {
    bool zstd, index;
    int64_t block_bytes; /* 0: BLOCK */
};

/* The text's index, beside it. */
static inline void index_text(const char *path, const struct buf *text,
                              const uint8_t sum[DIGEST_BYTES])
{
    struct err err = {0};
    struct line_index_writer *w = NULL;
    assert_int_equal(line_index_new(path, &w, &err), 0);
    size_t at = line_bom(text->data, text->len);
    while (at < text->len) {
        const char *p = text->data + at;
        const char *nl = memchr(p, '\n', text->len - at);
        size_t len = nl ? (size_t)(nl - p) : text->len - at;
        bool fits = len <= LINE_MAX_BYTES;
        if (!line_is_blank(p, len))
            assert_int_equal(line_index_add(w, (int64_t)at,
                                            fits ? (int64_t)len : 0,
                                            fits ? line_hash(p, len) : 0, &err),
                             0);
        at += len + 1;
    }
    assert_int_equal(line_index_end(w, sum, &err), 0);
    line_index_free(w);
}

static inline void store_text(const char *path, const struct buf *text,
                              bool zstd)
{
    struct err err = {0};
    AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    if (!zstd) {
        assert_int_equal(write(fd, text->data, text->len), (ssize_t)text->len);
        return;
    }
    struct seekable_writer *w = NULL;
    int64_t stored;
    assert_int_equal(seekable_writer_new(fd, &w, &err), 0);
    assert_int_equal(seekable_write(w, text->data, text->len, &err), 0);
    assert_int_equal(seekable_writer_end(w, &stored, &err), 0);
    seekable_writer_free(w);
}

static inline json_t *freeze_text(const struct folder *f, const char *name,
                                  const struct buf *text,
                                  const struct made *how)
{
    int64_t block = how->block_bytes ? how->block_bytes : BLOCK;
    char path[256], index[300], hex[DIGEST_HEX];
    uint8_t sum[DIGEST_BYTES];
    in_folder(f, name, path, sizeof path);
    snprintf(index, sizeof index, "%s.index", path);
    store_text(path, text, how->zstd);
    json_t *blocks = json_array();
    struct line_count count = {0};
    for (int64_t at = 0; at < (int64_t)text->len; at += block) {
        int64_t left = (int64_t)text->len - at;
        digest_of(text->data + at, (size_t)(left < block ? left : block), sum);
        digest_hex(sum, hex);
        json_array_append_new(blocks, json_string(hex));
    }
    line_count_add(&count, text->data, text->len);
    line_count_end(&count);
    digest_of(text->data, text->len, sum);
    digest_hex(sum, hex);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    json_t *out = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s}", "name", name,
        "path", path, "form", how->zstd ? "zstd" : "plain", "bytes",
        (json_int_t)text->len, "stored_bytes", (json_int_t)st.st_size,
        "records", (json_int_t)count.records, "mtime_ns",
        (json_int_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
        "inode", (json_int_t)st.st_ino, "block_bytes", (json_int_t)block,
        "blocks", blocks, "sha256", hex);
    assert_non_null(out);
    if (how->index) {
        index_text(index, text, sum);
        json_object_set_new(out, "index", json_string(index));
    }
    return out;
}
