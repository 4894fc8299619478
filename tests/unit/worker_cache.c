/* The cache of blocks: bounded, shared, verified, and missed by nobody. */
#include "tests/unit/worker_data.h"
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include "worker/cache.h"

#define LEN 1000

static void block_of(int i, char out[LEN], uint8_t sum[DIGEST_BYTES])
{
    for (int k = 0; k < LEN; k++)
        out[k] = (char)(i * 31 + k * 7 + (k >> 8));
    memcpy(out, &i, sizeof i);
    digest_of(out, LEN, sum);
}

static void put_block(struct cache *c, int i)
{
    char data[LEN];
    uint8_t sum[DIGEST_BYTES];
    block_of(i, data, sum);
    cache_put(c, sum, data, LEN);
}

/* True when it is there; what is there must be right. */
static bool get_block(struct cache *c, int i)
{
    char want[LEN], have[LEN];
    uint8_t sum[DIGEST_BYTES];
    block_of(i, want, sum);
    if (!cache_get(c, sum, have, LEN))
        return false;
    assert_memory_equal(have, want, LEN);
    return true;
}

static void path_of_block(const struct folder *f, int i, char *ret, size_t cap)
{
    char data[LEN], hex[DIGEST_HEX];
    uint8_t sum[DIGEST_BYTES];
    block_of(i, data, sum);
    digest_hex(sum, hex);
    snprintf(ret, cap, "%s/c/%.2s/%s", f->path, hex, hex);
}

static struct cache *open_cache(const struct folder *f, int64_t max)
{
    char path[128];
    struct cache *c = NULL;
    struct err err = {0};
    in_folder(f, "c", path, sizeof path);
    if (cache_open(path, max, &c, &err) < 0)
        fail_msg("%s", err.text);
    return c;
}

/* Bytes of all files below the folders of blocks; their number. */
static int64_t bytes_kept(const struct folder *f, int *ret_n)
{
    int64_t sum = 0;
    *ret_n = 0;
    for (int i = 0; i < 256; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/c/%02x", f->path, (unsigned)i);
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));) {
            struct stat st;
            if (e->d_name[0] == '.' ||
                fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                continue;
            sum += (int64_t)st.st_size;
            ++*ret_n;
        }
        if (d)
            closedir(d);
    }
    return sum;
}

static void used_ago(const struct folder *f, int i, int seconds)
{
    char path[256];
    path_of_block(f, i, path, sizeof path);
    struct timespec t[2];
    clock_gettime(CLOCK_REALTIME, &t[0]);
    t[0].tv_sec -= seconds;
    t[1] = t[0];
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void what_was_put_is_there(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct cache *c = open_cache(&dir, 1 << 20);
    char want[LEN], have[10];
    uint8_t sum[DIGEST_BYTES];
    assert_false(get_block(c, 1));
    put_block(c, 1);
    assert_true(get_block(c, 1));
    assert_false(get_block(c, 2));
    block_of(1, want, sum);
    assert_true(cache_has(c, sum));
    assert_true(cache_peek(c, sum, 500, have, 10));
    assert_memory_equal(have, want + 500, 10);
    assert_false(cache_peek(c, sum, LEN - 5, have, 10));
    assert_int_equal(cache_bytes_read(c), LEN + 10);
    cache_close(c);
    c = open_cache(&dir, 1 << 20); /* and for the next process */
    assert_true(get_block(c, 1));
    cache_close(c);
    char path[256];
    struct stat st;
    in_folder(&dir, "c", path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700); /* it is somebody's data */
}

static void write_over(const char *path, const char *data, size_t len,
                       off_t offset)
{
    AUTO_FD int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, len, offset), (ssize_t)len);
}

static void a_damaged_file_is_no_block(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct cache *c = open_cache(&dir, 1 << 20);
    for (int how = 0; how < 5; how++) {
        char path[256], other[256];
        put_block(c, how);
        assert_true(get_block(c, how));
        path_of_block(&dir, how, path, sizeof path);
        in_folder(&dir, "elsewhere", other, sizeof other);
        switch (how) {
        case 0:
            write_over(path, "X", 1, LEN / 2);
            break;
        case 1:
            assert_int_equal(truncate(path, LEN - 1), 0);
            break;
        case 2:
            write_over(path, "X", 1, LEN);
            break;
        case 3: /* a link to bytes that would do */
            assert_int_equal(rename(path, other), 0);
            assert_int_equal(symlink(other, path), 0);
            break;
        default: /* a pipe must not be waited for */
            assert_int_equal(unlink(path), 0);
            assert_int_equal(mkfifo(path, 0600), 0);
        }
        assert_false(get_block(c, how));
        put_block(c, how);
        assert_true(get_block(c, how));
    }
    cache_close(c);
}

static void the_bound_holds_and_the_oldest_go(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct cache *c = open_cache(&dir, 32 * LEN);
    int n;
    for (int i = 0; i < 32; i++) {
        put_block(c, i);
        used_ago(&dir, i, 1000 - i);
    }
    assert_int_equal(bytes_kept(&dir, &n), 32 * LEN);
    assert_true(get_block(c, 0)); /* the oldest is used again */
    put_block(c, 100);
    assert_true(bytes_kept(&dir, &n) <= 32 * LEN);
    assert_true(get_block(c, 0));
    assert_true(get_block(c, 100));
    assert_false(get_block(c, 1));
    assert_true(get_block(c, 31));
    assert_in_range(n, 28, 32); /* no more than there was need for */
    for (int i = 200; i < 300; i++) {
        put_block(c, i);
        assert_true(bytes_kept(&dir, &n) <= 32 * LEN);
        assert_true(get_block(c, i));
    }
    assert_in_range(n, 25, 32);
    cache_close(c);
    c = open_cache(&dir, LEN - 1); /* smaller than any block */
    put_block(c, 400);
    assert_false(get_block(c, 400));
    cache_close(c);
    c = open_cache(&dir, 4 * LEN); /* smaller than what is there */
    put_block(c, 500);
    assert_true(bytes_kept(&dir, &n) <= 4 * LEN);
    assert_true(get_block(c, 500));
    cache_close(c);
}

static void a_cache_of_nothing_touches_nothing(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct cache *c = open_cache(&dir, 0);
    put_block(c, 1);
    assert_false(get_block(c, 1));
    cache_close(c);
    char path[128];
    in_folder(&dir, "c", path, sizeof path);
    assert_int_equal(access(path, F_OK), -1);
}

static void remove_all(const struct folder *f)
{
    char command[128];
    /* where others put something in meanwhile it says so */
    snprintf(command, sizeof command, "rm -rf '%s/c' 2>/dev/null || true",
             f->path);
    assert_int_equal(system(command), 0);
}

static void it_may_be_emptied_at_any_moment(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct cache *c = open_cache(&dir, 8 * LEN);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++)
            put_block(c, i);
        assert_true(get_block(c, 7));
        remove_all(&dir);
        assert_false(get_block(c, 7));
        put_block(c, 7);
        assert_true(get_block(c, 7));
    }
    /* the blocks alone: what `size` says is too much, and is set right */
    for (int i = 0; i < 8; i++)
        put_block(c, i);
    for (int i = 0; i < 8; i++) {
        char path[256];
        path_of_block(&dir, i, path, sizeof path);
        assert_int_equal(unlink(path), 0);
    }
    int n;
    for (int i = 0; i < 8; i++)
        put_block(c, i);
    bytes_kept(&dir, &n);
    assert_in_range(n, 7, 8);
    /* `size` alone, or what it says */
    char size[128];
    in_folder(&dir, "c/size", size, sizeof size);
    static const char *const texts[] = {"", "x\n", "-5\n", "12"};
    for (int i = 0; i < 4; i++) {
        put_file(&dir, "c/size", texts[i], strlen(texts[i]));
        put_block(c, 50 + i);
        assert_true(get_block(c, 50 + i));
        assert_true(bytes_kept(&dir, &n) <= 8 * LEN);
    }
    assert_int_equal(unlink(size), 0);
    put_block(c, 60);
    assert_true(get_block(c, 60));
    assert_true(bytes_kept(&dir, &n) <= 8 * LEN);
    cache_close(c);
    put_file(&dir, "c/size", "0\n",
             2); /* a lie is believed by no new process */
    c = open_cache(&dir, 8 * LEN);
    for (int i = 70; i < 76; i++)
        put_block(c, i);
    assert_true(bytes_kept(&dir, &n) <= 8 * LEN);
    cache_close(c);
}

static void processes_share_it(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    pid_t pids[5];
    for (int p = 0; p < 5; p++) {
        pids[p] = fork();
        if (pids[p])
            continue;
        struct cache *c = open_cache(&dir, 40 * LEN);
        int hits = 0;
        for (int i = 0; i < 400; i++) {
            if (p == 4 && i % 100 == 50)
                remove_all(&dir); /* one of them empties it */
            put_block(c, (p % 2) * 20 + i % 30);
            hits += get_block(c, (p % 2) * 20 + i % 30);
        }
        _exit(hits > 200 ? 0 : 1);
    }
    for (int p = 0; p < 5; p++) {
        int status;
        assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    int n;
    struct cache *c = open_cache(&dir, 40 * LEN);
    put_block(c, 1000); /* it was emptied in the midst of it: all is counted */
    assert_true(bytes_kept(&dir, &n) <= 40 * LEN);
    cache_close(c);
}

/* A file that may not grow stands for a disk that is full. */
static void a_full_disk_keeps_nothing_and_breaks_nothing(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct cache *c = open_cache(&dir, 1 << 20);
    put_block(c, 1);
    struct rlimit was, small = {LEN / 2, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    put_block(c, 2);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_true(get_block(c, 1));
    assert_false(get_block(c, 2));
    int n;
    assert_int_equal(bytes_kept(&dir, &n), LEN); /* no half of it either */
    put_block(c, 2); /* a full disk is left alone for a while */
    assert_false(get_block(c, 2));
    cache_close(c);
    c = open_cache(&dir, 1 << 20);
    put_block(c, 2);
    assert_true(get_block(c, 2));
    cache_close(c);
}

static void what_a_killed_process_left_goes(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct cache *c = open_cache(&dir, 4 * LEN);
    for (int i = 0; i < 4; i++)
        put_block(c, i);
    char path[256], block[256];
    path_of_block(&dir, 0, block, sizeof block);
    snprintf(path, sizeof path, "%.*s/new-1-1",
             (int)(strrchr(block, '/') - block), block);
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, block, 200), 200);
    struct timespec old[2] = {{1000, 0}, {1000, 0}};
    assert_int_equal(futimens(fd, old), 0);
    put_block(c, 5); /* has all looked through */
    assert_int_equal(access(path, F_OK), -1);
    assert_true(get_block(c, 5));
    cache_close(c);
}

static void pieces_of_an_index_go_by_name(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct cache *c = open_cache(&dir, 1 << 20);
    char have[6];
    assert_false(cache_get_named(c, "index 1", have, 6));
    cache_put_named(c, "index 1", "abcdef", 6);
    assert_true(cache_get_named(c, "index 1", have, 6));
    assert_memory_equal(have, "abcdef", 6);
    assert_false(cache_get_named(c, "index 2", have, 6));
    assert_false(cache_get_named(c, "index 1", have, 5)); /* of another text */
    cache_put_named(c, "index 1", "abcdef", 6);
    char command[256];
    snprintf(command, sizeof command,
             "f=$(find %s/c -type f -name '????????????????????????????????*') "
             "&& printf X | dd of=$f bs=1 seek=2 conv=notrunc 2>/dev/null",
             dir.path);
    assert_int_equal(system(command), 0);
    assert_false(cache_get_named(c, "index 1", have, 6));
    cache_close(c);
}

static void a_folder_that_cannot_be_is_refused(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    put_file(&dir, "file", "x", 1);
    char path[128];
    in_folder(&dir, "file/cache", path, sizeof path);
    struct cache *c = NULL;
    struct err err = {0};
    assert_int_equal(cache_open(path, 1, &c, &err), ERR_IO);
    assert_non_null(strstr(err.text, "file/cache"));
    in_folder(&dir, "file", path, sizeof path);
    assert_int_equal(cache_open(path, 1, &c, &err), ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_there),
        cmocka_unit_test(a_damaged_file_is_no_block),
        cmocka_unit_test(the_bound_holds_and_the_oldest_go),
        cmocka_unit_test(a_cache_of_nothing_touches_nothing),
        cmocka_unit_test(it_may_be_emptied_at_any_moment),
        cmocka_unit_test(processes_share_it),
        cmocka_unit_test(a_full_disk_keeps_nothing_and_breaks_nothing),
        cmocka_unit_test(what_a_killed_process_left_goes),
        cmocka_unit_test(pieces_of_an_index_go_by_name),
        cmocka_unit_test(a_folder_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
