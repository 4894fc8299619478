/* Shards in files, plain and compressed: their lines, their indexes, and what
 * becomes of one that changes. */
#include "tests/unit/worker_text.h"
#include "worker/scanner.h"

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Lines of all sorts: short, over several blocks, blank, with CR, a mark in
 * front, no end behind. */
static void odd_text(unsigned seed, int lines, struct buf *ret)
{
    unsigned random = seed;
    if (seed % 3 == 0)
        buf_adds(ret, "\xef\xbb\xbf");
    for (int i = 0; i < lines; i++) {
        unsigned kind = next_random(&random) % 40;
        size_t len = kind == 0   ? 3 * BLOCK + next_random(&random) % 5000
                     : kind == 1 ? 0
                                 : 1 + next_random(&random) % 300;
        if (kind == 2)
            buf_adds(ret, "  \t");
        for (size_t k = 0; k < len; k++) {
            char c = (char)('a' + next_random(&random) % 26);
            buf_add(ret, &c, 1);
        }
        buf_adds(ret, kind == 3 ? "\r\n" : "\n");
    }
    if (seed % 2 && ret->len)
        buf_adds(ret, "the end");
}

static struct shards *open_shards(const json_t *data)
{
    struct shards *s = NULL;
    struct err err = {0};
    if (shards_open(data, NULL, &s, &err) < 0)
        fail_msg("%s", err.text);
    return s;
}

/* Each line, as the scanner hands it out and as it is read again. */
static int check_lines(struct shards *s, const struct buf *texts)
{
    CLEANUP(scanner_release) struct scanner scan;
    CLEANUP(buf_release) struct buf one = {0}, many = {0}, want = {0};
    struct err err = {0};
    struct ref ref, refs[64];
    const char *line;
    int n = 0, held = 0, r;
    assert_int_equal(scanner_init(&scan, s, &err), 0);
    while ((r = scanner_next(&scan, &ref, &line, &err)) > 0) {
        const char *there = texts[ref.shard].data + ref.offset;
        assert_memory_equal(line, there, (size_t)ref.length);
        assert_int_equal(ref.hash,
                         (int64_t)line_hash(there, (size_t)ref.length));
        assert_int_equal(shards_line(s, &ref, &one, &err), 0);
        assert_int_equal(one.len, ref.length);
        assert_memory_equal(one.data, there, one.len);
        /* many at once, in an order of their own */
        int at = held ? n * 7 % held : 0;
        refs[held++] = refs[at];
        refs[at] = ref;
        n++;
        if (held < 64)
            continue;
        buf_clear(&many);
        buf_clear(&want);
        assert_int_equal(shards_lines(s, refs, held, &many, &err), 0);
        for (int i = 0; i < held; i++)
            buf_addf(&want, "%.*s\n", (int)refs[i].length,
                     texts[refs[i].shard].data + refs[i].offset);
        assert_string_equal(many.data, want.data);
        held = 0;
    }
    if (r < 0)
        fail_msg("%s", err.text);
    return n;
}

/* The index says the same as a scan. */
static void check_entries(struct shards *s)
{
    CLEANUP(scanner_release) struct scanner scan;
    struct err err = {0};
    struct ref ref;
    assert_int_equal(scanner_init(&scan, s, &err), 0);
    for (int i = 0; i < s->n; i++) {
        int64_t n = s->v[i].records;
        AUTO_FREE struct line_entry *v = calloc((size_t)n + 1, sizeof *v);
        assert_int_equal(shards_entries(s, i, 0, n, v, &err), 0);
        for (int64_t k = 0; k < n; k++) {
            struct line_entry alone;
            struct ref mine = shards_ref(i, &v[k]);
            assert_int_equal(scanner_next(&scan, &ref, NULL, &err), 1);
            assert_memory_equal(&mine, &ref, sizeof ref);
            assert_int_equal(shards_entries(s, i, k, 1, &alone, &err), 0);
            assert_memory_equal(&alone, &v[k], sizeof alone);
        }
        assert_int_equal(shards_entries(s, i, n, 1, v, &err), ERR_INVALID);
        assert_int_equal(shards_entries(s, i, -1, 1, v, &err), ERR_INVALID);
    }
    assert_int_equal(scanner_next(&scan, &ref, NULL, &err), 0);
}

static void every_form_has_the_same_lines(void **state)
{
    for (unsigned seed = 0; seed < 8; seed++) {
        CLEANUP(folder_release) struct folder dir;
        folder_init(&dir);
        struct buf texts[2] = {{0}, {0}};
        odd_text(seed, 300, &texts[0]);
        odd_text(seed + 1, 50, &texts[1]);
        int counted[2];
        for (int zstd = 0; zstd < 2; zstd++) {
            struct made how = {.zstd = zstd, .index = true};
            AUTO_JSON json_t *data = json_pack(
                "{s:[o,o]}", "shards", freeze_text(&dir, "a", &texts[0], &how),
                freeze_text(&dir, "b", &texts[1], &how));
            struct shards *s = open_shards(data);
            counted[zstd] = check_lines(s, texts);
            assert_int_equal(counted[zstd], s->records);
            check_entries(s);
            shards_close(s);
        }
        assert_int_equal(counted[0], counted[1]);
        buf_release(&texts[0]);
        buf_release(&texts[1]);
    }
}

static void a_line_too_long_is_named_but_not_read(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    CLEANUP(buf_release) struct buf text = {0}, out = {0};
    folder_init(&dir);
    buf_adds(&text, "first\n");
    for (int i = 0; i < (LINE_MAX_BYTES + 10) / 10; i++)
        buf_adds(&text, "0123456789");
    buf_adds(&text, "\nlast\n");
    struct made how = {.zstd = true, .index = true, .block_bytes = 1 << 20};
    AUTO_JSON json_t *data =
        json_pack("{s:[o]}", "shards", freeze_text(&dir, "a", &text, &how));
    struct shards *s = open_shards(data);
    CLEANUP(scanner_release) struct scanner scan;
    struct err err = {0};
    struct ref refs[3];
    const char *line;
    assert_int_equal(scanner_init(&scan, s, &err), 0);
    assert_int_equal(scanner_next(&scan, &refs[0], &line, &err), 1);
    assert_int_equal(scanner_next(&scan, &refs[1], &line, &err), 1);
    assert_null(line);
    assert_true(refs[1].length > LINE_MAX_BYTES);
    assert_int_equal(refs[1].offset, 6);
    assert_int_equal(scanner_next(&scan, &refs[2], &line, &err), 1);
    assert_memory_equal(line, "last", 4);
    assert_int_equal(shards_lines(s, refs, 3, &out, &err), 0);
    assert_string_equal(out.data, "first\n\nlast\n");
    struct line_entry e;
    assert_int_equal(shards_entries(s, 0, 1, 1, &e, &err), 0);
    refs[1] = shards_ref(0, &e);
    assert_int_equal(refs[1].length, LINE_MAX_BYTES + 1);
    assert_int_equal(refs[1].hash, 0);
    shards_close(s);
}

/* ---- indexes ---- */

static void damage_file(const char *path, off_t at)
{
    AUTO_FD int fd = open(path, O_RDWR);
    char c;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 4;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
}

static void an_index_that_is_not_there_is_made(void **state)
{
    for (int how = 0; how < 4; how++) {
        CLEANUP(folder_release) struct folder dir;
        CLEANUP(buf_release) struct buf text = {0};
        folder_init(&dir);
        odd_text(3, 200, &text);
        struct made made = {.zstd = how % 2, .index = true};
        AUTO_JSON json_t *data = json_pack(
            "{s:[o]}", "shards", freeze_text(&dir, "a", &text, &made));
        char path[256];
        in_folder(&dir, "a.index", path, sizeof path);
        if (how == 0)
            assert_int_equal(unlink(path), 0);
        else if (how == 1)
            damage_file(path, 20); /* the digest of the text it is of */
        else if (how == 2)
            assert_int_equal(truncate(path, 100), 0);
        else
            put_file(&dir, "a.index", "", 0);
        struct shards *s = open_shards(data);
        check_entries(s);
        shards_close(s);
    }
}

static void a_wrong_entry_is_made_anew_of_the_text(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    CLEANUP(buf_release) struct buf text = {0}, line = {0};
    folder_init(&dir);
    odd_text(2, 100, &text);
    struct made made = {.index = true};
    AUTO_JSON json_t *data =
        json_pack("{s:[o]}", "shards", freeze_text(&dir, "a", &text, &made));
    char path[256];
    in_folder(&dir, "a.index", path, sizeof path);
    struct err err = {0};
    struct line_entry right;
    struct shards *sound = open_shards(data);
    assert_int_equal(shards_entries(sound, 0, 9, 1, &right, &err), 0);
    shards_close(sound);
    for (int k = 0; k < 16; k++) { /* each byte of entry 9 in turn */
        off_t at = LINE_INDEX_HEAD + 9 * 16 + k;
        damage_file(path, at);
        struct shards *s = open_shards(data);
        struct line_entry e;
        assert_int_equal(shards_entries(s, 0, 9, 1, &e, &err), 0);
        assert_memory_equal(&e, &right, sizeof e);
        struct ref ref = shards_ref(0, &e);
        assert_int_equal(shards_line(s, &ref, &line, &err), 0);
        shards_close(s);
        damage_file(path, at);
    }
}

/* ---- what changed ---- */

#define NAME "2024/a.jsonl"

struct change {
    struct folder dir;
    char path[256];
    struct buf text, file;
};

static void slurp(const char *path, struct buf *ret)
{
    AUTO_FD int fd = open(path, O_RDONLY);
    char data[4096];
    assert_true(fd >= 0);
    buf_clear(ret);
    for (ssize_t n; (n = read(fd, data, sizeof data)) > 0;)
        buf_add(ret, data, (size_t)n);
}

static void put_at(const char *path, const void *data, size_t len)
{
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), (ssize_t)len);
}

static void nothing(struct change *c, bool zstd)
{
}
static void shorter(struct change *c, bool zstd)
{
    assert_int_equal(unlink(c->path), 0);
    put_at(c->path, c->file.data, 3000);
}
static void other_of_the_same_size(struct change *c, bool zstd)
{
    char old[300]; /* it keeps its inode */
    snprintf(old, sizeof old, "%s.old", c->path);
    assert_int_equal(rename(c->path, old), 0);
    CLEANUP(buf_release) struct buf other = {0};
    if (zstd) { /* a sound file of its own, of as many bytes of text */
        for (size_t i = 0; i < c->text.len; i++)
            buf_add(&other, i % 50 == 49 ? "\n" : "z", 1);
        store_text(c->path, &other, true);
    } else {
        buf_add(&other, c->file.data, c->file.len);
        other.data[other.len / 2] ^= 1;
        put_at(c->path, other.data, other.len);
    }
}
static void link_to_another(struct change *c, bool zstd)
{
    char other[300];
    snprintf(other, sizeof other, "%s.other", c->path);
    put_at(other, c->file.data, c->file.len);
    assert_int_equal(unlink(c->path), 0);
    assert_int_equal(symlink(other, c->path), 0);
}
static void gone(struct change *c, bool zstd)
{
    assert_int_equal(unlink(c->path), 0);
}
static void not_text_at_all(struct change *c, bool zstd)
{
    CLEANUP(buf_release) struct buf other = {0};
    for (size_t i = 0; i < c->file.len; i++)
        buf_add(&other, "?", 1);
    put_at(c->path, other.data, other.len);
}
static void a_byte_of_it(struct change *c, bool zstd)
{
    damage_file(c->path, 5000);
}
static void grown(struct change *c, bool zstd)
{
    CLEANUP(buf_release) struct buf more = {0};
    buf_add(&more, c->text.data, c->text.len);
    buf_adds(&more, "and more\n");
    store_text(c->path, &more, zstd);
}

/* Read all of it, as it is now. */
static int read_all(const json_t *data, int64_t records, struct err *err)
{
    struct shards *s = NULL;
    int r = shards_open(data, NULL, &s, err);
    if (r < 0)
        return r;
    CLEANUP(scanner_release) struct scanner scan;
    struct ref ref;
    int64_t n = 0;
    assert_int_equal(scanner_init(&scan, s, err), 0);
    while ((r = scanner_next(&scan, &ref, NULL, err)) > 0)
        n++;
    if (r == 0)
        r = shards_check(s, true, err);
    if (r == 0)
        assert_int_equal(n, records);
    shards_close(s);
    return r;
}

static void each_change_has_its_reason_and_the_original_goes_on(void **state)
{
    static const struct {
        void (*change)(struct change *c, bool zstd);
        const char *plain, *zstd; /* NULL: it is read on */
    } cases[] = {
        {nothing, NULL, NULL},
        {grown, NULL, NULL},
        {shorter, "has shrunk: it ends at offset 3000", "has shrunk"},
        {other_of_the_same_size, "was replaced by another file",
         "was replaced"},
        {link_to_another, "is a symbolic link now", "is a symbolic link now"},
        {gone, "is missing: there is no file", "is missing"},
        {not_text_at_all, "was edited", "was edited"},
        {a_byte_of_it, "was edited", "was edited"},
    };
    for (int k = 0; k < 2 * (int)(sizeof cases / sizeof *cases); k++) {
        bool zstd = k % 2;
        struct change c = {0};
        folder_init(&c.dir);
        odd_text(4, 800, &c.text);
        char sub[128];
        in_folder(&c.dir, "2024", sub, sizeof sub);
        assert_int_equal(mkdir(sub, 0755), 0);
        struct made how = {.zstd = zstd};
        AUTO_JSON json_t *one = freeze_text(&c.dir, NAME, &c.text, &how);
        AUTO_JSON json_t *data = json_pack("{s:[O]}", "shards", one);
        int64_t records = json_integer_value(json_object_get(one, "records"));
        in_folder(&c.dir, NAME, c.path, sizeof c.path);
        slurp(c.path, &c.file);
        assert_true(c.file.len > 6000);
        cases[k / 2].change(&c, zstd);
        struct err err = {0};
        int r = read_all(data, records, &err);
        const char *says = zstd ? cases[k / 2].zstd : cases[k / 2].plain;
        if (says) {
            if (r != ERR_DATA || !strstr(err.text, says))
                fail_msg("case %d: %d %s", k, r, err.text);
            assert_non_null(strstr(err.text, NAME));
            assert_string_equal(err.shard, NAME);
        } else if (r < 0) {
            fail_msg("case %d: %s", k, err.text);
        }
        /* the original in its place again, if as another file */
        unlink(c.path);
        put_at(c.path, c.file.data, c.file.len);
        if (read_all(data, records, &err) < 0)
            fail_msg("case %d: %s", k, err.text);
        folder_release(&c.dir);
        buf_release(&c.text);
        buf_release(&c.file);
    }
}

static void one_cut_while_it_is_read_ends_where_it_was_cut(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    CLEANUP(buf_release) struct buf text = {0}, line = {0};
    folder_init(&dir);
    odd_text(8, 400, &text);
    struct made how = {.index = true};
    AUTO_JSON json_t *data =
        json_pack("{s:[o]}", "shards", freeze_text(&dir, "a", &text, &how));
    struct shards *s = open_shards(data);
    struct line_entry e;
    struct err err = {0};
    char path[256];
    in_folder(&dir, "a", path, sizeof path);
    assert_int_equal(truncate(path, 3000), 0);
    assert_int_equal(shards_entries(s, 0, s->v[0].records - 1, 1, &e, &err), 0);
    struct ref ref = shards_ref(0, &e);
    assert_true(ref.offset > 10000);
    assert_int_equal(shards_line(s, &ref, &line, &err), ERR_DATA);
    assert_non_null(strstr(err.text, "it ends at offset 3000,"));
    assert_int_equal(err.offset, 3000);
    shards_close(s);
}

static void a_form_that_is_not_known_is_refused(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    CLEANUP(buf_release) struct buf text = {0};
    folder_init(&dir);
    buf_adds(&text, "{}\n");
    struct made how = {0};
    AUTO_JSON json_t *one = freeze_text(&dir, "a", &text, &how);
    json_object_set_new(one, "form", json_string("brotli"));
    AUTO_JSON json_t *data = json_pack("{s:[O]}", "shards", one);
    struct shards *s = NULL;
    struct err err = {0};
    assert_int_equal(shards_open(data, NULL, &s, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "brotli"));
}

/* A claim of an older server names no form, no digest of the text. */
static void an_older_claim_is_read(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    CLEANUP(buf_release) struct buf text = {0};
    folder_init(&dir);
    odd_text(5, 40, &text);
    put_file(&dir, "a", text.data, text.len);
    AUTO_JSON json_t *data = freeze_all(&dir, "a", NULL);
    struct shards *s = open_shards(data);
    assert_null(s->verifier);
    assert_int_equal(check_lines(s, &text), s->records);
    shards_close(s);
}

static void validation_is_a_set_of_its_own(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    struct buf texts[2] = {{0}, {0}};
    folder_init(&dir);
    odd_text(6, 30, &texts[0]);
    odd_text(7, 20, &texts[1]);
    struct made how = {.zstd = true};
    AUTO_JSON json_t *data = json_pack(
        "{s:[o], s:{s:[o]}}", "shards", freeze_text(&dir, "a", &texts[0], &how),
        "validation", "shards", freeze_text(&dir, "b", &texts[1], &how));
    struct shards *s = NULL;
    struct err err = {0};
    assert_int_equal(shards_open_validation(data, NULL, &s, &err), 0);
    assert_int_equal(s->n, 1);
    assert_string_equal(s->v[0].name, "b");
    assert_int_equal(check_lines(s, &texts[1]), s->records);
    shards_close(s);
    json_object_del(data, "validation");
    assert_int_equal(shards_open_validation(data, NULL, &s, &err), 0);
    assert_int_equal(s->n, 0);
    shards_close(s);
    buf_release(&texts[0]);
    buf_release(&texts[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_has_the_same_lines),
        cmocka_unit_test(a_line_too_long_is_named_but_not_read),
        cmocka_unit_test(an_index_that_is_not_there_is_made),
        cmocka_unit_test(a_wrong_entry_is_made_anew_of_the_text),
        cmocka_unit_test(each_change_has_its_reason_and_the_original_goes_on),
        cmocka_unit_test(one_cut_while_it_is_read_ends_where_it_was_cut),
        cmocka_unit_test(a_form_that_is_not_known_is_refused),
        cmocka_unit_test(an_older_claim_is_read),
        cmocka_unit_test(validation_is_a_set_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
