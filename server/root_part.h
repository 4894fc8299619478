/* root_part.h - what the files behind root.h share. */
#pragma once
#include "server/root.h"

struct data_spec;
struct intake;

int64_t root_mtime_ns(const struct stat *st);
/* ERR_DATA: "shard 'NAME' …", with its place. */
int root_blame(struct err *err, const char *name, int64_t offset,
               const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* By errno of an open: ERR_DATA, or ERR_IO where it is not the file's fault. */
int root_not_open(const char *name, const char *path, struct err *err);
/* Is it a file that is asked for? */
bool root_matches(const char *match, const char *name);
/* ERR_INVALID: no file matches. */
int root_none(const struct data_spec *d, struct err *err);
/* One whose index is made below DIR/tmp. */
int root_intake(const char *dir, struct intake **ret, struct err *err);
