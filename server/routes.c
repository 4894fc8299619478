/* routes.c - the API's table of contents. */
#include "schema/state.h"
#include "server/handle.h"
#include "server/httpd.h"
#include "server/server.h"

#define KiB ((size_t)1024)
#define MiB (1024 * KiB)
#define GiB (1024 * MiB)

#define READ(path, handler, query)                                             \
    {                                                                          \
        "GET", path, 0, LANE_READ, ROLE_ANY, handler, NULL, 0, query, NULL     \
    }
#define WRITE(method, path, max, handler, prepare)                             \
    {                                                                          \
        method, path, max, LANE_WRITE, ROLE_ANY, handler, prepare, 0, NULL,    \
            NULL                                                               \
    }
#define PAGE "limit cursor" /* of a list */

const struct route routes[] = {
    /* ---- the server ---- */
    {"GET", "/livez", 0, LANE_READ, ROLE_NONE, handle_livez, NULL, 0, NULL,
     NULL},
    {"GET", "/readyz", 0, LANE_READ, ROLE_NONE, handle_readyz, NULL, 0, NULL,
     NULL},
    READ("/v1/info", handle_info, NULL),
    READ("/v1/backup", handle_backup, NULL),
    {"POST", "/v1/login", 4 * KiB, LANE_WRITE, ROLE_NONE, handle_login, NULL, 0,
     NULL, NULL},

    /* ---- jobs ---- */
    {"POST", "/v1/jobs", 1 * MiB, LANE_WRITE, ROLE_ANY, handle_job_post,
     handle_job_prepare, 0, "dry_run", NULL},
    READ("/v1/jobs", handle_job_list, PAGE " state kind label q sweep"),
    READ("/v1/jobs/{id}", handle_job_get, "wait version follow"),
    WRITE("PATCH", "/v1/jobs/{id}", 1 * MiB, handle_job_patch, NULL),
    WRITE("DELETE", "/v1/jobs/{id}", 0, handle_job_delete, NULL),
    WRITE("POST", "/v1/jobs/{id}/pause", 4 * KiB, handle_job_pause, NULL),
    WRITE("POST", "/v1/jobs/{id}/resume", 4 * KiB, handle_job_resume, NULL),
    WRITE("POST", "/v1/jobs/{id}/cancel", 4 * KiB, handle_job_cancel, NULL),
    WRITE("POST", "/v1/jobs/{id}/retry", 4 * KiB, handle_job_retry, NULL),
    WRITE("POST", "/v1/jobs/{id}/complete", 4 * KiB, handle_job_complete, NULL),
    WRITE("POST", "/v1/jobs/{id}/cycles", 1 * MiB, handle_cycle_post,
          handle_cycle_prepare),
    READ("/v1/jobs/{id}/cycles", handle_cycle_list, PAGE),
    READ("/v1/jobs/{id}/cycles/{n}", handle_cycle_get, "wait data"),
    READ("/v1/jobs/{id}/leases", handle_lease_list, PAGE),
    READ("/v1/jobs/{id}/metrics", handle_metrics, "series points cycle"),
    READ("/v1/jobs/{id}/memory", handle_memory, "points"),
    READ("/v1/jobs/{id}/logs", handle_log_list, PAGE),
    READ("/v1/jobs/{id}/events", handle_event_list, PAGE),
    READ("/v1/jobs/{id}/checkpoints", handle_checkpoint_list, PAGE),
    READ("/v1/jobs/{id}/model", handle_model, "checkpoint"),
    READ("/v1/sweeps", handle_sweep_list, PAGE),
    READ("/v1/sweeps/{id}", handle_sweep_get, "wait"),
    WRITE("POST", "/v1/sweeps/{id}/pause", 4 * KiB, handle_sweep_pause, NULL),
    WRITE("POST", "/v1/sweeps/{id}/resume", 4 * KiB, handle_sweep_resume, NULL),
    WRITE("POST", "/v1/sweeps/{id}/cancel", 4 * KiB, handle_sweep_cancel, NULL),
    WRITE("POST", "/v1/sweeps/{id}/retry", 4 * KiB, handle_sweep_retry, NULL),
    READ("/v1/checkpoints/{id}", handle_checkpoint_get, NULL),
    WRITE("PATCH", "/v1/checkpoints/{id}", 4 * KiB, handle_checkpoint_patch,
          NULL),
    WRITE("DELETE", "/v1/checkpoints/{id}", 0, handle_checkpoint_delete, NULL),
    READ("/v1/checkpoints/{id}/state", handle_checkpoint_state, NULL),

    /* ---- datasets ---- */
    {"PUT", "/v1/datasets/{name}/shards/{shard}", 1024 * GiB, LANE_WRITE,
     ROLE_ANY, handle_shard_put, handle_upload_prepare, ROUTE_STREAM, NULL,
     handle_upload_begin},
    {"POST", "/v1/datasets/{name}/records", 1024 * GiB, LANE_WRITE, ROLE_ANY,
     handle_records_post, handle_upload_prepare, ROUTE_STREAM, NULL,
     handle_upload_begin},
    WRITE("PUT", "/v1/datasets/{name}", 1 * MiB, handle_dataset_put, NULL),
    READ("/v1/datasets", handle_dataset_list, PAGE),
    READ("/v1/datasets/{name}", handle_dataset_get, NULL),
    READ("/v1/datasets/{name}/inspect", handle_inspect, "whole job wait"),
    READ("/v1/datasets/{name}/shards/{shard}", handle_shard_get, NULL),
    WRITE("DELETE", "/v1/datasets/{name}", 0, handle_dataset_delete, NULL),
    WRITE("DELETE", "/v1/datasets/{name}/shards/{shard}", 0,
          handle_shard_delete, NULL),

    /* ---- workers: schema/wire.h ---- */
    READ("/v1/workers", handle_worker_list, PAGE),
    WRITE("POST", "/v1/workers/{id}/drain", 4 * KiB, handle_worker_drain, NULL),
    WRITE("POST", "/v1/leases", 256 * KiB, handle_lease_claim, NULL),
    WRITE("POST", "/v1/leases/{id}/heartbeat", 16 * MiB, handle_lease_heartbeat,
          NULL),
    {"PUT", "/v1/leases/{id}/chunks/{sha256}", STATE_CHUNK, LANE_CHUNK,
     ROLE_ANY, handle_chunk_put, handle_chunk_prepare, ROUTE_RAW, NULL, NULL},
    READ("/v1/leases/{id}/shards/{n}", handle_lease_shard, "part"),
    WRITE("POST", "/v1/leases/{id}/room", 4 * KiB, handle_lease_room, NULL),
    {"HEAD", "/v1/leases/{id}/chunks/{sha256}", 0, LANE_CHUNK, ROLE_ANY,
     handle_chunk_head, handle_chunk_head_prepare, 0, NULL, NULL},
    WRITE("POST", "/v1/leases/{id}/checkpoints", 64 * MiB,
          handle_lease_checkpoint, handle_lease_checkpoint_prepare),
    WRITE("POST", "/v1/leases/{id}/release", 16 * MiB, handle_lease_release,
          handle_lease_release_prepare),
    {0},
};
