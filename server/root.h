/* root.h - folders that the operator named (--data-root), read in place.
 *
 * A file below one is a shard whose name is its path there. Names that begin
 * with a dot are passed over, symbolic links are not followed at any step, and
 * nothing outside the folder is ever read. Whatever still grows ends at its last
 * newline: what follows is not data yet, and a file without one is no shard yet.
 *
 * Plain files and zstd frames with a seek table are read where they lie. Of all
 * else that is compressed a copy is made in DIR/copies, as such frames. What
 * reading found stands in the table root_files, so that a file is read again
 * only when its size, mtime or inode has changed. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "server/store.h"

struct data_root; /* options.h */
struct data_spec;
struct intake;

/* Those there are; set once, before anyone asks. */
struct root_list {
    const struct data_root *v;
    size_t n;
};
extern struct root_list root_list;
/* Its folder, or NULL. */
const char *root_path(const char *root);
/* A line on stderr for each whose folder cannot be read now: jobs on it wait. */
void root_warn(void);
/* ERR_INVALID at /data/root: which there are. */
int root_check(const char *root, struct err *err);

#define ROOT_NAME_MAX 400 /* bytes of a path below a root */

struct root_file {
    char *name;
    int64_t bytes, mtime_ns, inode; /* of the file */
};
struct root_files {
    struct root_file *v;
    size_t n, cap;
};
void root_files_release(struct root_files *f);

typedef bool root_stop_fn(void *arg);
/* All that match, in bytewise order of their names; match NULL: *.jsonl,
 * *.jsonl.gz and *.jsonl.zst at any depth. `*` stands for slashes too. `limit`
 * (0: none) ends it early, with the first ones found. ERR_IO, ERR_BUSY when
 * stopped, ERR_INVALID: a name that no JSON can carry. */
int root_walk(const char *root, const char *match, size_t limit,
              root_stop_fn *stop, void *arg, struct root_files *ret,
              struct err *err);
/* ERR_INVALID when no file is there that the spec asks for. */
int root_has_data(const struct data_spec *d, struct err *err);

/* Open one for reading, following no link on the way: the descriptor. ERR_DATA
 * in a worker's words, with the shard. */
int root_open(const char *root, const char *name, struct stat *ret,
              struct err *err);

/* ---- what was read ---- */

/* One file's text, read through once. */
struct root_read {
    int64_t file_bytes, mtime_ns, inode;
    bool settled;
    const char *form;
    char *copy;            /* path of the copy below DIR/tmp; NULL: none */
    struct intake *intake; /* ended; its index is not published yet */
};
void root_read_release(
    struct root_read *r); /* unlinks what was not published */

/* *ret_read is told how many bytes of the file were read so far. ERR_DATA names
 * the shard. 0: it holds no record yet. 1: it does. */
typedef void root_progress_fn(void *arg, int64_t file_bytes);
int root_read_file(const char *dir, const char *root, const char *name,
                   root_stop_fn *stop, root_progress_fn *progress, void *arg,
                   struct root_read *ret, struct err *err);
/* On the writer: publish index and copy, and keep the row. */
int root_keep(struct store *st, const char *root, const char *name,
              struct root_read *read, struct err *err);
/* Drop the rows of files that are not there any more, of those that match
 * without a pattern. */
int root_forget(struct store *st, const char *root,
                const struct root_files *there, struct err *err);
/* Is it as it was when it was read last, and is its copy there? `sure`: no other
 * bytes can bear the same time. */
int root_is_known(struct store *st, const char *root, const struct root_file *f,
                  bool sure, bool *ret, struct err *err);
/* Copies that no row and no open cycle names. */
int root_sweep_copies(struct store *st, struct err *err);
