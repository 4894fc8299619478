/* handle.h - what handlers share: pages of lists, long polls, Idempotency-Key.
 * A handler is parse, call the noun, reply. */
#pragma once
#include "server/httpd.h"

/* ?limit= and ?cursor= of a list. */
int page_params(const struct request *req, int64_t *ret_limit,
                int64_t *ret_cursor, struct err *err);
/* ?wait=, at most WIRE_WAIT_MAX_S. */
int wait_param(const struct request *req, int64_t *ret_s, struct err *err);
/* 0, or ERR_INVALID when the body holds anything. */
int no_body(const struct request *req, struct err *err);
int need_body(const struct request *req, struct err *err);

/* Was this POST answered before? 1: *ret holds that answer. */
int handle_once(struct ctx *ctx, struct request *req, struct reply *ret,
                struct err *err);
/* Answer, and keep the answer under the request's key, if it has one. Takes
 * the reference. */
int reply_once(struct ctx *ctx, struct request *req, struct reply *ret,
               int status, json_t *body, struct err *err);

/* handle_job.c */
handler_fn handle_job_prepare, handle_job_post, handle_job_list, handle_job_get;
handler_fn handle_job_patch, handle_job_delete, handle_job_pause;
handler_fn handle_job_resume, handle_job_cancel, handle_job_retry;
handler_fn handle_job_complete, handle_event_list, handle_log_list;
/* handle_sweep.c */
handler_fn handle_sweep_list, handle_sweep_get, handle_sweep_pause;
handler_fn handle_sweep_resume, handle_sweep_cancel, handle_sweep_retry;
/* handle_cycle.c */
handler_fn handle_cycle_prepare, handle_cycle_post, handle_cycle_list,
    handle_cycle_get;
/* handle_metric.c */
handler_fn handle_metrics, handle_memory;
/* handle_checkpoint.c */
handler_fn handle_checkpoint_list, handle_checkpoint_get;
handler_fn handle_checkpoint_state, handle_model;
handler_fn handle_checkpoint_patch, handle_checkpoint_delete;
handler_fn handle_backup; /* handle_backup.c */
/* handle_dataset.c */
handler_fn handle_upload_begin, handle_upload_prepare;
handler_fn handle_shard_put, handle_shard_get, handle_shard_delete;
handler_fn handle_dataset_put, handle_records_post;
handler_fn handle_dataset_list, handle_dataset_get, handle_dataset_delete;
handler_fn handle_inspect; /* handle_inspect.c */
/* handle_lease.c */
handler_fn handle_lease_list, handle_lease_claim, handle_lease_heartbeat;
handler_fn handle_chunk_prepare, handle_chunk_head_prepare, handle_chunk_put,
    handle_chunk_head;
handler_fn handle_lease_checkpoint_prepare, handle_lease_checkpoint;
handler_fn handle_lease_release_prepare, handle_lease_release;
handler_fn handle_lease_room;  /* handle_room.c */
handler_fn handle_lease_shard; /* handle_frozen.c */
/* handle_worker.c */
handler_fn handle_worker_list, handle_worker_drain;
