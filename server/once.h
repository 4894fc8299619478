/* once.h - Idempotency-Key: a POST that creates may be sent again.
 *
 * The first answer is kept with the digest of the body, in the transaction
 * that did the work: either both are there or neither. The same key with
 * another body is refused. Keys are forgotten after a day. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/store.h"

/* 1: answered before; *ret_status and *ret (caller owns) are what was said.
 * 0: new. ERR_MISMATCH: another body. ERR_INVALID: no proper key. */
int once_find(struct store *st, const char *path, const char *key,
              const json_t *body, int *ret_status, json_t **ret,
              struct err *err);
int once_keep(struct store *st, const char *path, const char *key,
              const json_t *body, int status, const json_t *answer,
              int64_t now_ms, struct err *err);
int once_prune(struct store *st, int64_t now_ms, struct err *err);
