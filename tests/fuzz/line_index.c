/* Where the records of a text begin. A text in pieces of any size is taken in
 * as a plain splitter at newlines would have it: lines, records, digests, bad
 * ones with their places, and an index whose entries are the records. Any other
 * file in the index's place is refused, or is one of so many records.
 *
 * Input: what to do, size of the pieces, then the text or the file. */
#include <openssl/sha.h>
#include <sys/stat.h>
#include "fuzz.h"
#include "schema/json_read.h"
#include "schema/line_hash.h"
#include "schema/line_index.h"
#include "schema/lines.h"
#include "schema/record.h"
#include "schema/wire.h"
#include "server/intake.h"

static const char description[] =
    "{\"x\":{\"kind\":\"tokens\",\"dim\":\"X\",\"vocab\":16},"
    "\"value\":{\"kind\":\"target\",\"loss\":\"mse\"}}";
static struct intake_rules *skip_rules, *fail_rules;
static char dir[64];

static void prepare(void)
{
    if (dir[0])
        return;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.40s/fuzz-XXXXXX", tmp ? tmp : "/tmp");
    MUST(mkdtemp(dir), "a folder");
    AUTO_JSON json_t *json = NULL;
    struct err err;
    MUST(json_parse_strict(description, strlen(description), &json, &err) ==
                 0 &&
             intake_rules_make(json, true, 0.01, &skip_rules, &err) == 0 &&
             intake_rules_make(json, false, 0.01, &fail_rules, &err) == 0,
         "%s", err.text);
}

static void hex(const void *data, size_t len, char out[DIGEST_HEX])
{
    unsigned char sum[SHA256_DIGEST_LENGTH];
    SHA256(data, len, sum);
    digest_hex(sum, out);
}

/* ---- a file that may be no index ---- */

static void any_file(struct in *in)
{
    char path[96];
    uint8_t sha[DIGEST_BYTES] = {0};
    snprintf(path, sizeof path, "%s/file", dir);
    int64_t records = in_byte(in);
    FILE *f = fopen(path, "we");
    MUST(f && fwrite(in->p, 1, in->n, f) == in->n && fclose(f) == 0, "%s",
         path);
    if (in->n >= LINE_INDEX_HEAD) /* look for it by the digest that it claims */
        memcpy(sha, in->p + 16, sizeof sha);
    struct line_index x;
    struct err err;
    int r = line_index_open(path, sha, records, &x, &err);
    if (r < 0) {
        is_refusal(r, &err, ERR_CORRUPT, ERR_CORRUPT);
        return;
    }
    MUST(x.n == records && in->n == LINE_INDEX_HEAD +
                                        (size_t)x.n * sizeof *x.v +
                                        ((size_t)x.n + LINE_INDEX_PAGE - 1) /
                                            LINE_INDEX_PAGE * 8,
         "%lld records in %zu bytes", (long long)x.n, in->n);
    r = line_index_check(&x, 0, x.n, NULL, &err);
    MUST(r == 0 || r == ERR_CORRUPT, "code %d", r);
    for (int64_t i = 0; i < x.n; i++)
        MUST(line_entry_offset(&x.v[i]) >= 0 &&
                 line_entry_length(&x.v[i]) <= LINE_MAX_BYTES,
             "entry %lld", (long long)i);
    line_index_close(&x);
}

/* ---- a text ---- */

struct plain {
    int64_t lines, records, bad, first_bad, first_offset;
    struct line_entry v[4096];
};

/* As said in lines.h. */
static void read_plainly(const char *s, size_t len, struct plain *ret)
{
    struct record_decoder *d;
    struct err err;
    MUST(record_decoder_new(&skip_rules->record, 0.01, &d, &err) == 0, "%s",
         err.text);
    size_t at = len >= 3 && !memcmp(s, "\xef\xbb\xbf", 3) ? 3 : 0;
    while (at < len) {
        size_t end = at;
        while (end < len && s[end] != '\n')
            end++;
        ret->lines++;
        bool blank = true;
        for (size_t i = at; i < end; i++)
            blank &= s[i] == ' ' || s[i] == '\t' || s[i] == '\r';
        if (!blank && ret->records < 4096) {
            const struct record *r;
            AUTO_FREE char *line = alone(s + at, end - at);
            ret->v[ret->records++] =
                (struct line_entry){.place = (uint64_t)at << 24 | (end - at),
                                    .hash = line_hash(s + at, end - at)};
            if (record_decode(d, line, end - at, &r, &err) < 0 &&
                ret->bad++ == 0) {
                ret->first_bad = ret->lines;
                ret->first_offset = (int64_t)at;
            }
        }
        at = end + 1;
    }
    record_decoder_free(d);
}

static void take_in(const char *text, size_t len, size_t piece,
                    const struct intake_rules *rules)
{
    static struct plain want;
    char path[96], file[200];
    struct intake *t;
    struct err err;
    memset(&want, 0, offsetof(struct plain, v));
    read_plainly(text, len, &want);
    snprintf(path, sizeof path, "%s/part", dir);
    MUST(intake_new(path, rules, &t, &err) == 0, "%s", err.text);
    int r = 0;
    for (size_t done = 0; done < len && r == 0;) {
        size_t n = len - done < piece ? len - done : piece;
        AUTO_FREE char *part = alone(text + done, n);
        r = intake_add(t, part, n, &err);
        done += n;
        size_t nl = done;
        while (nl && text[nl - 1] != '\n')
            nl--;
        if (r == 0)
            MUST(intake_ended_bytes(t) == (int64_t)nl, "%lld bytes, not %zu",
                 (long long)intake_ended_bytes(t), nl);
    }
    if (r == 0)
        r = intake_end(t, &err);
    if (rules == fail_rules && want.bad) {
        MUST(r == ERR_DATA && err.line == want.first_bad &&
                 err.offset == want.first_offset,
             "code %d at line %lld, offset %lld; the first bad one is line "
             "%lld, offset %lld",
             r, (long long)err.line, (long long)err.offset,
             (long long)want.first_bad, (long long)want.first_offset);
        intake_free(t);
        MUST(access(path, F_OK) < 0, "a refused text left its index");
        return;
    }
    MUST(r == 0, "%s", err.text);
    MUST(t->bytes == (int64_t)len && t->lines == want.lines &&
             t->records == want.records,
         "%lld lines, %lld records, not %lld, %lld", (long long)t->lines,
         (long long)t->records, (long long)want.lines, (long long)want.records);
    struct line_count count = {
        0}; /* and the counter of streams says the same */
    for (size_t done = 0; done < len; done += piece)
        line_count_add(&count, text + done,
                       len - done < piece ? len - done : piece);
    line_count_end(&count);
    MUST(count.lines == want.lines && count.records == want.records,
         "counted %lld lines, %lld records, not %lld, %lld",
         (long long)count.lines, (long long)count.records,
         (long long)want.lines, (long long)want.records);
    if (rules) {
        MUST(t->bad == want.bad, "%lld bad ones, not %lld", (long long)t->bad,
             (long long)want.bad);
        int64_t shown =
            want.bad < INTAKE_BAD_SHOWN ? want.bad : INTAKE_BAD_SHOWN;
        MUST((int64_t)json_array_size(t->bad_first) == shown,
             "%zu are shown of %lld", json_array_size(t->bad_first),
             (long long)want.bad);
        const json_t *first = json_array_get(t->bad_first, 0);
        if (first)
            MUST(json_integer_value(json_object_get(first, "line")) ==
                         want.first_bad &&
                     json_integer_value(json_object_get(first, "offset")) ==
                         want.first_offset,
                 "the first bad one");
    }
    char sum[DIGEST_HEX];
    hex(text, len, sum);
    MUST(!strcmp(sum, t->sha256), "sha256");
    MUST(t->n_blocks == (len + WIRE_BLOCK_BYTES - 1) / WIRE_BLOCK_BYTES,
         "%zu blocks", t->n_blocks);
    for (size_t i = 0; i < t->n_blocks; i++) {
        size_t at = i * WIRE_BLOCK_BYTES;
        hex(text + at,
            len - at < WIRE_BLOCK_BYTES ? len - at : WIRE_BLOCK_BYTES, sum);
        MUST(!strcmp(sum, t->blocks[i]), "block %zu", i);
    }

    MUST(intake_publish(t, dir, &err) == 0, "%s", err.text);
    snprintf(file, sizeof file, "%s/index/%s", dir, t->sha256);
    uint8_t sha[DIGEST_BYTES];
    SHA256((const unsigned char *)text, len, sha);
    struct line_index x;
    MUST(line_index_open(file, sha, t->records, &x, &err) == 0, "%s", err.text);
    MUST(line_index_check(&x, 0, x.n, NULL, &err) == 0, "%s", err.text);
    MUST(!x.n || !memcmp(x.v, want.v, (size_t)x.n * sizeof *x.v),
         "other entries");
    line_index_close(&x);
    MUST(line_index_open(file, sha, t->records + 1, &x, &err) == ERR_CORRUPT,
         "one record more");
    sha[0] ^= 1;
    MUST(line_index_open(file, sha, t->records, &x, &err) == ERR_CORRUPT,
         "of another text");
    unlink(file);
    intake_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = {data, size};
    prepare();
    unsigned what = in_byte(&in);
    if (what % 8 == 0) {
        any_file(&in);
        return 0;
    }
    size_t piece = in_byte(&in) + 1;
    const struct intake_rules *rules[] = {NULL, skip_rules, fail_rules};
    AUTO_FREE char *text = alone(in.p, in.n);
    take_in(text, in.n, what & 64 ? piece * piece : piece, rules[what / 8 % 3]);
    return 0;
}
