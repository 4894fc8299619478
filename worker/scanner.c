#include "worker/scanner.h"
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/line_hash.h"
#include "schema/lines.h"
#include "worker/source.h"

int scanner_init(struct scanner *s, struct shards *shards, struct err *err)
{
    *s = (struct scanner){.shards = shards, .block_shard = -1};
    for (int i = 0; i < shards->n; i++)
        if (shards->v[i].block_bytes > s->block_bytes)
            s->block_bytes = shards->v[i].block_bytes;
    s->block = calloc(1, (size_t)s->block_bytes + SCANNER_PAD);
    if (!s->block)
        return err_set(err, ERR_NOMEM, "no memory for a block");
    return 0;
}

void scanner_seek(struct scanner *s, int shard, int64_t offset)
{
    s->shard = shard;
    s->offset = offset;
}

void scanner_release(struct scanner *s)
{
    free(s->block);
    s->block = NULL;
    buf_release(&s->carry);
}

/* The bytes of the current block from `offset` on. */
static int scanner_load(struct scanner *s, int64_t offset, const char **ret,
                        size_t *ret_len, struct err *err)
{
    const struct shard *sh = &s->shards->v[s->shard];
    int64_t no = offset / sh->block_bytes;
    if (s->block_shard != s->shard || s->block_no != no) {
        s->block_shard = -1;
        int r =
            shards_block(s->shards, s->shard, no, s->block, &s->block_len, err);
        if (r < 0)
            return r;
        s->block_shard = s->shard;
        s->block_no = no;
        s->bytes_read += (int64_t)s->block_len;
    }
    size_t at = (size_t)(offset - no * sh->block_bytes);
    *ret = s->block + at;
    *ret_len = s->block_len - at;
    return 0;
}

static int carry_add(struct scanner *s, const char *p, size_t n,
                     struct err *err)
{
    if (buf_reserve(&s->carry, n + SCANNER_PAD) < 0 ||
        buf_add(&s->carry, p, n) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a long line");
    return 0;
}

static int refuse_utf16(const struct shard *sh, const char *p, size_t len,
                        struct err *err)
{
    if (len < 2 || (memcmp(p, "\xff\xfe", 2) && memcmp(p, "\xfe\xff", 2)))
        return 0;
    return source_err(err, sh->name, 0,
                      "begins with a UTF-16 mark; records are UTF-8");
}

/* One line from s->offset on, which lies within the shard: moves the offset
 * behind it. 1, or 0 when it was blank. */
static int scanner_line(struct scanner *s, struct ref *ret,
                        const char **ret_line, struct err *err)
{
    const struct shard *sh = &s->shards->v[s->shard];
    int64_t begin = s->offset, at = begin, length = 0;
    bool end = false, carried = false;
    const char *line = NULL;
    buf_clear(&s->carry);
    while (!end && at < sh->bytes) {
        const char *p;
        size_t len;
        int r = scanner_load(s, at, &p, &len, err);
        if (r < 0)
            return r;
        if (at == 0) {
            r = refuse_utf16(sh, p, len, err);
            if (r < 0)
                return r;
            size_t bom = line_bom(p, len);
            begin = at = (int64_t)bom;
            p += bom;
            len -= bom;
            if (!len)
                break;
        }
        const char *nl = memchr(p, '\n', len);
        end = nl != NULL;
        size_t n = nl ? (size_t)(nl - p) : len;
        length += (int64_t)n;
        at += (int64_t)n + end;
        if (!carried && (end || at >= sh->bytes)) {
            line = p;
            continue;
        }
        carried = true;
        r = length <= LINE_MAX_BYTES ? carry_add(s, p, n, err) : 0;
        if (r < 0)
            return r;
    }
    s->offset = at;
    *ret_line = NULL;
    if (length > LINE_MAX_BYTES) {
        *ret = (struct ref){s->shard, begin, length, 0};
        return 1;
    }
    if (carried)
        line = s->carry.data;
    if (!line || line_is_blank(line, (size_t)length))
        return 0;
    *ret_line = line;
    *ret = (struct ref){s->shard, begin, length,
                        (int64_t)line_hash(line, (size_t)length)};
    return 1;
}

int scanner_next(struct scanner *s, struct ref *ret, const char **ret_line,
                 struct err *err)
{
    const char *line = NULL;
    while (s->shard < s->shards->n) {
        if (s->offset >= s->shards->v[s->shard].bytes) {
            s->shard++;
            s->offset = 0;
            continue;
        }
        int r = scanner_line(s, ret, &line, err);
        if (r == 0)
            continue;
        if (r > 0 && ret_line)
            *ret_line = line;
        return r;
    }
    return 0;
}
