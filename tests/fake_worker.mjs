// fake_worker.mjs - a worker that trains nothing but speaks the protocol of
// schema/wire.h to the letter, so that the server's side of it can be tested
// without libtorch, and with the mistakes that a real worker should not make.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import { sha256 } from './harness.mjs';

export const CHUNK = 1024 * 1024;

export class FakeWorker {
  constructor(server, { name = `fake-${randomUUID().slice(0, 8)}`, pid = process.pid, devices = [{ kind: 'cpu' }] } = {}) {
    this.server = server;
    this.identity = {
      name, host: os.hostname(), pid, local: false, devices, cpus: 2, version: '0.1.0',
      started: startTicks(pid), boot: bootId(),
      library: { libtorch: 'none', blas: 'none', blas_config: '', blas_core: 'none', cpu_capability: 'none' },
    };
    this.claimId = randomUUID();
    this.seq = 0;
  }

  // The answer to a claim as it came; on 201 the lease is held from now on.
  async claim({ wait = 0, claim = this.claimId } = {}) {
    const r = await this.server.post('/v1/leases', { worker: this.identity, claim, wait });
    if (r.status === 201) this.take(r.json);
    return r;
  }
  take(lease) {
    this.lease = lease;
    this.id = lease.lease.id;
    this.token = lease.lease.token;
    this.previous = lease.checkpoint?.digest ?? lease.initial?.digest ?? null;
  }
  // A new process under the same name.
  reborn() {
    this.claimId = randomUUID();
    this.seq = 0;
    return this;
  }

  position(step = 0, more = {}) {
    const batch = this.lease.spec.training.effective_batch;
    return { step, epoch: 0, records: Math.min(step * batch, this.lease.records * this.lease.spec.training.epochs), micro_batches: step, ...more };
  }
  heartbeat(more = {}) {
    return this.server.post(`/v1/leases/${this.id}/heartbeat`, {
      token: this.token, stage: 'train', position: this.position(0), seq: ++this.seq,
      metrics: [], memory: [], logs: [], data: { skipped: 0, bad: [] }, ...more,
    });
  }
  chunk(bytes, { digest = sha256(bytes), token = this.token } = {}) {
    return this.server.put(`/v1/leases/${this.id}/chunks/${digest}`, bytes, { 'Pawl-Token': String(token), 'Content-Type': 'application/octet-stream' });
  }
  hasChunk(digest) {
    return this.server.request('HEAD', `/v1/leases/${this.id}/chunks/${digest}`, undefined, { 'Pawl-Token': String(this.token) });
  }

  // A state of small made-up tensors at `step`, its chunks stored.
  async save(step, { tensors = madeUp(step), previous = this.previous } = {}) {
    const { manifest, chunks } = stateOf(this.lease, step, tensors, previous);
    for (const c of chunks) (await this.chunk(c)).expect(204);
    return manifest;
  }
  async checkpoint(manifest, { release, token = this.token } = {}) {
    const r = await this.server.post(`/v1/leases/${this.id}/checkpoints`, { token, manifest, ...(release ? { release } : {}) });
    if (r.status === 201 && token === this.token) this.previous = r.json.digest;
    return r;
  }
  releaseBody(outcome, reason, step, more = {}) {
    return { token: this.token, outcome, reason, position: this.position(step), metrics: [], memory: [], logs: [], data: { skipped: 0, bad: [] }, ...more };
  }
  release(outcome, reason, step = 0, more = {}) {
    return this.server.post(`/v1/leases/${this.id}/release`, this.releaseBody(outcome, reason, step, more));
  }
  // Train to the end in one go.
  async finish({ tensors } = {}) {
    const manifest = await this.save(this.lease.steps, tensors ? { tensors } : {});
    const r = await this.checkpoint(manifest, { release: this.releaseBody('finished', 'all steps are done', this.lease.steps) });
    return r.expect(201);
  }
}

export function startTicks(pid) {
  try {
    const stat = fs.readFileSync(`/proc/${pid}/stat`, 'latin1');
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]);
  } catch {
    return 0;
  }
}
export function bootId() {
  try {
    return fs.readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    return 'unknown';
  }
}

// Tensors that differ from step to step, more than one chunk of them.
export function madeUp(step, n = 300_000) {
  const weight = new Float32Array(n);
  for (let i = 0; i < n; i++) weight[i] = Math.sin(i * 12.9898 + step);
  return { 'model.a.weight': weight, 'model.b.bias': new Float32Array([step, 1, 2]), 'optimizer.step': new Float32Array([step]) };
}

// A manifest as schema/state.h describes it, and its chunks.
export function stateOf(lease, step, tensors, previous) {
  const entries = [];
  const parts = [];
  let at = 0, model = 0;
  for (const [name, data] of Object.entries(tensors)) {
    const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    entries.push({ name, dtype: 'F32', shape: [data.length], begin: at, end: at + bytes.length });
    at += bytes.length;
    if (name.startsWith('model.')) model = at;
    parts.push(bytes);
  }
  const all = Buffer.concat(parts);
  const chunks = [];
  for (let i = 0; i < all.length; i += CHUNK) chunks.push(all.subarray(i, i + CHUNK));
  const header = modelHeader(lease.spec, entries);
  const manifest = {
    format: 'pawl-state', version: 1, cycle: lease.lease.cycle, step, epoch: 0,
    records: Math.min(step * lease.spec.training.effective_batch, lease.records * lease.spec.training.epochs),
    signature: lease.signature, fingerprint: lease.fingerprint,
    feed: { shard: 0, offset: 0, draws: 0 }, totals: {},
    tensors: entries, bytes: all.length, chunks: chunks.map(sha256),
    model_bytes: header.length + model, model_sha256: sha256(Buffer.concat([header, all.subarray(0, model)])),
    previous,
  };
  assert.ok(at === all.length);
  return { manifest, chunks };
}

// Keys sorted, no spaces; JavaScript prints reals with the fewest digits too.
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (value && typeof value === 'object')
    return `{${Object.keys(value).sort().map((k) => `${JSON.stringify(k)}:${canonical(value[k])}`).join(',')}}`;
  return JSON.stringify(value);
}

// The safetensors header of the model file: written here a second time, from
// the description in schema/state.h, as anyone outside would.
export function modelHeader(spec, entries) {
  const { dropout, ...model } = spec.model;
  const header = { __metadata__: { format: 'pawl', architecture: canonical({ model, record: spec.record }) } };
  for (const e of entries.filter((x) => x.name.startsWith('model.')))
    header[e.name.slice('model.'.length)] = { data_offsets: [e.begin, e.end], dtype: e.dtype, shape: e.shape };
  let text = canonical(header);
  while (Buffer.byteLength(text) % 8) text += ' ';
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(Buffer.byteLength(text)));
  return Buffer.concat([size, Buffer.from(text)]);
}
