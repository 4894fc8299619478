/* wire.h - the worker protocol: what pawl-worker and pawld say to each other.
 *
 * JSON over HTTP, paths under /v1/leases. Every body carries the lease's
 * `token`; an older one gets 409 and changes nothing. Any write may be sent
 * again and gets the first answer. (?) marks what may be absent or null.
 *
 * Claim    POST /v1/leases                        201, or 204: nothing to do
 *   > {"worker": {"name", "host", "pid", "started", "boot", "local": bool,
 *      "devices": [{"kind", "name"?, "memory_bytes"?}], "cpus",
 *      "memory_bytes"?, "labels": {…}?, "version", "library": {…}},
 *      "claim": "uuid of this process", "wait": seconds}
 *     started: start time of the process in clock ticks since boot
 *     (/proc/self/stat field 22); with pid and boot id it names a process for
 *     good. library: torch_describe(), the machine's part of the fingerprint.
 *     memory_bytes: the host's, or its cgroup's limit; of a device: its own.
 *     A repeated claim with the same "claim" gets the same lease. A process
 *     whose lease has ended, or that was drained, gets 409: it may go.
 *   < {"lease": {"id", "token", "cycle_id", "job", "cycle"},
 *      "heartbeat_s", "expiry_s",
 *      "spec": {…resolved…}, "runtime": {…}, "runtime_version": n,
 *      "device": "cpu", "threads": n,         resolved: never auto, never 0
 *      "signature", "steps", "records",       of this cycle
 *      "step_base": optimizer steps of the job's earlier cycles,
 *      "fingerprint": {…},                    to be put into manifests
 *      "data": {…},                           below
 *      "checkpoint": {"id", "digest", "manifest"}?,   where to go on
 *      "initial":    {"id", "digest", "manifest"}?}   end of the cycle before:
 *                                  its tensors, but step 0 and a fresh feed
 *
 * Data, as it was frozen. Sizes, digests and offsets are those of the text,
 * whatever form its file has; of the file are stored_bytes, mtime_ns and inode.
 *   {"digest", "records": to train on per epoch, "take": of the cycle at most?,
 *    "shards": [{"name", "path", "form": "plain"|"zstd", "bytes",
 *                "stored_bytes", "records", "mtime_ns", "inode", "block_bytes",
 *                "blocks": [sha256, …], "sha256", "index": path?,
 *                "weight": w?, "held_out": n?}, …],
 *    "validation": {"fraction": f} | {"shards": […]}?}
 *     zstd: frames with a seek table (schema/seekable.h). index: of its lines
 *     (schema/line_index.h), where order or validation need one; a missing one
 *     can be made from the text. held_out: records of it that line_is_held_out
 *     keeps from training, with a fraction. A group is all shards of one weight
 *     (1 unless given): its n records, without those held out, are used
 *     llround(n·weight) times per epoch, and "records" is the sum of that.
 *     take: the cycle ends after so many records, in the middle of an epoch if
 *     need be; the last batch of each epoch and of the cycle may be partial.
 *
 * Shard    GET /v1/leases/{id}/shards/{n}         200, 206; header Pawl-Token
 *   The text of the n-th of the shards (from 0; those for validation follow on),
 *   or a Range of it; ?part=index: its index. For a worker that does not share
 *   the state folder. What the bytes are is not checked here, but by blocks at
 *   the worker. A shard that is missing, was replaced or has shrunk is a 409 with
 *   the code "data", "shard" and "offset"; an index that is being made, a 503.
 *
 * Heartbeat  POST /v1/leases/{id}/heartbeat       200
 *   > {"token", "stage": "load"|"first_step"|"train"|"validate"|"save",
 *      "position": {"step", "epoch", "records", "micro_batches"},  totals
 *      "records_per_s"?, "seq": n,      grows by one with each heartbeat
 *      "metrics": [[step, {"loss": x, …}], …],     not yet acknowledged
 *      "memory": [{"step", "at_ms", "allocated_bytes"?, "device_bytes"?,
 *                  "rss_bytes"?, "available_bytes"?, "swap_bytes"?,
 *                  "shapes"}, …],
 *      "logs": [{"at_ms", "level", "text"}, …],
 *      "data": {"skipped", "bad": [{shard, line, offset, field, detail}],
 *               "renormalised"?, "exceeded"?: {dimension: {"count", "longest"}}}}
 *   < {"do": "continue"|"yield"|"stop", "reason": "pause"|"drain"|"cancel"|…?,
 *      "runtime": {…}?, "runtime_version"}     runtime: only when it is newer
 *   Metric step n is the loss of optimizer step n, 1-based: after n steps.
 *   Numbers that are not finite travel as null.
 *
 * Room     POST /v1/leases/{id}/room              204, or 507: there is none
 *   > {"token", "bytes": of the whole state, "step"?: it is of}
 *   < (507) problem+json with "missing_bytes"
 *   Asked before the first chunk of each save. 204 promises that many bytes to
 *   the lease, in place of an earlier promise; its chunks take them up, a
 *   checkpoint or the lease's end lets go of the rest, a minute without a chunk
 *   too. 507: the save is put off, and asked for again later; one for the
 *   lease's end is asked for for a while, then the lease is released as failed
 *   with the code "no_space". A chunk may get 507 as well.
 *
 * Chunk    PUT /v1/leases/{id}/chunks/{sha256}    204; raw bytes, header
 *   Pawl-Token; a digest that does not match is 400. A chunk that is there
 *   already is a 204 too.  HEAD on the same path: 200 or 404. Several may be
 *   under way at a time, in any order.
 *
 * Checkpoint POST /v1/leases/{id}/checkpoints     201 {"id", "digest"}
 *   > {"token", "manifest": {…}, "release": {…}?}   release: as below; outcome,
 *     checkpoint, metrics and next state are one transaction.
 *
 * Release  POST /v1/leases/{id}/release           200 {"outcome"}
 *   > {"token", "outcome": "finished"|"yielded"|"failed",
 *      "reason": yielded: "memory"|"steps"|"time"|"drain"|"pause"; else a
 *                sentence, "detail"?: a sentence for yields ("rss_mb 900 …"),
 *      "position", "metrics", "memory", "logs", "data": as in a heartbeat,
 *      "error": {"code": err_word, "detail", "shard"?, "line"?, "offset"?,
 *                "field"?, "stage"?, "final": bool, "checkpoint"?: id of one
 *                that did not verify, "bytes"?, "missing_bytes"?: with the
 *                code "no_space", what the state takes and what was missing: the
 *                cycle waits for that much room, and no budget is spent}?}
 *   `finished` is only accepted with a checkpoint at the cycle's last step.
 *
 * Where the server is: DIR/url holds its base URL. DIR/socket, when it is
 * there, holds the path of a Unix socket that the same URL's paths are served
 * on (with nothing but a socket, DIR/url is http://localhost).
 */
#pragma once

#define WIRE_TOKEN_HEADER "Pawl-Token"
#define WIRE_HEARTBEAT_S 2
#define WIRE_EXPIRY_S 30
#define WIRE_WAIT_MAX_S 60
#define WIRE_BLOCK_BYTES (1024 * 1024)
