import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { FakeWorker, madeUp } from '../fake_worker.mjs';
import { Server, jsonl, sha256, tiny, tinyShard, tinySpec, until } from '../harness.mjs';

let s;
before(async () => {
  s = await Server.start({ workers: 0 });
  await s.upload('tiny', { 'b.jsonl': tinyShard(12), 'a.jsonl': tinyShard(8) });
});
after(() => s.stop());

// A job of its own, claimed by a fake worker.
async function claimed(patch = {}, options) {
  const job = await s.submit(tinySpec({ priority: 50, ...patch }));
  const w = new FakeWorker(s, options);
  (await w.claim()).expect(201);
  assert.equal(w.lease.lease.job, job.id);
  return { job, w };
}
const state = async (id) => (await s.job(id)).state;

test('a claim is all that a worker needs to know', async () => {
  const { job, w } = await claimed();
  const l = w.lease;
  assert.equal(l.lease.cycle, 1);
  assert.ok(l.lease.token >= 1 && l.heartbeat_s > 0 && l.expiry_s > l.heartbeat_s);
  assert.equal(l.steps, 5);
  assert.equal(l.records, 20);
  assert.equal(l.device, 'cpu');
  assert.equal(l.threads, 1);
  assert.equal(l.step_base, 0);
  assert.match(l.signature, /^[0-9a-f]{64}$/);
  assert.deepEqual(l.data.shards.map((x) => [x.name, x.records]), [['a.jsonl', 8], ['b.jsonl', 12]], 'shards stand by name');
  for (const shard of l.data.shards) {
    assert.equal(shard.block_bytes, 1024 * 1024);
    assert.equal(shard.blocks.length, Math.ceil(shard.bytes / shard.block_bytes));
  }
  assert.equal(l.data.shards[0].blocks[0], sha256(tinyShard(8)));
  assert.equal(l.fingerprint.device, 'cpu');
  assert.equal(l.fingerprint.libtorch, 'none');
  assert.equal(l.checkpoint ?? null, null);
  assert.equal(await state(job.id), 'running');
  const lease = (await s.leases(job.id))[0];
  assert.equal(lease.outcome ?? null, null);
  assert.equal(lease.from_step, 0);
  (await w.finish());
  assert.equal(await state(job.id), 'completed');
});

test('a claim sent again gets the same lease; another process gets none', async () => {
  const { w } = await claimed();
  const again = (await w.claim()).expect(201).json;
  assert.deepEqual(again.lease, w.lease.lease);
  (await new FakeWorker(s).claim()).expect(204);
  (await w.release('failed', 'enough', 0, { error: { code: 'torch', detail: 'enough', final: true } })).expect(200);
});

test('auto threads are those of the first worker, and stay', async () => {
  const { w } = await claimed({ runtime: { threads: 0, device: 'auto' } });
  assert.equal(w.lease.threads, 2);
  (await w.checkpoint(await w.save(2), { release: w.releaseBody('yielded', 'drain', 2) })).expect(201);
  const next = new FakeWorker(s);
  next.identity.cpus = 16;
  (await next.claim()).expect(201);
  assert.equal(next.lease.threads, 2);
  await next.finish();
});

test('yield, resume at the checkpoint, finish: the leases tell the story', async () => {
  const { job, w } = await claimed();
  const m = await w.save(2);
  const r = (await w.checkpoint(m, { release: w.releaseBody('yielded', 'steps', 2, { detail: 'every_micro_batches 2 reached', metrics: [[1, { loss: 0.5, lr: 0.01 }], [2, { loss: 0.25, lr: 0.01 }]] }) })).expect(201).json;
  assert.match(r.digest, /^[0-9a-f]{64}$/);
  const next = new FakeWorker(s);
  (await next.claim()).expect(201);
  assert.equal(next.lease.lease.job, job.id);
  assert.ok(next.token > w.token);
  assert.equal(next.lease.checkpoint.digest, r.digest);
  assert.deepEqual(next.lease.checkpoint.manifest.chunks, m.chunks);
  const f = await next.finish();
  assert.equal(f.status, 201);
  const leases = await s.leases(job.id);
  assert.deepEqual(leases.map((l) => [l.outcome, l.from_step, l.to_step]), [['yielded', 0, 2], ['finished', 2, 5]]);
  assert.equal(leases[0].reason, 'steps');
  assert.deepEqual(await s.values(job.id, 'loss'), ['0.5', '0.25']);
  const list = await s.checkpoints(job.id);
  assert.equal(Math.max(...list.map((c) => c.step)), 5);
});

test('what was odd about the data is told by the job, and a later count replaces it', async () => {
  const { job, w } = await claimed();
  assert.deepEqual((await s.job(job.id)).data, { skipped: 0, bad: [], renormalised: 0, exceeded: {} });
  const data = { skipped: 0, bad: [], renormalised: 7, exceeded: { S: { count: 3, longest: 90 } } };
  (await w.heartbeat({ data })).expect(200);
  assert.deepEqual((await s.job(job.id)).data, data);
  (await w.heartbeat({})).expect(200); // says nothing of them
  assert.deepEqual((await s.job(job.id)).data, data);
  for (const [bad, pointer] of [
    [{ exceeded: { S: { count: 3 } } }, '/data/exceeded/S/longest'],
    [{ exceeded: { S: { count: 0, longest: 3 } } }, '/data/exceeded/S/count'],
    [{ exceeded: { S: 3 } }, '/data/exceeded/S'],
    [{ renormalised: -1 }, '/data/renormalised'],
  ]) (await w.heartbeat({ data: { skipped: 0, bad: [], ...bad } })).problem(400, pointer);
  const next = { skipped: 0, bad: [], renormalised: 0, exceeded: {} };
  (await w.release('yielded', 'drain', 0, { data: next })).expect(200);
  assert.deepEqual((await s.job(job.id)).data, next);
  await s.post(`/v1/jobs/${job.id}/cancel`);
});

test('repeats of checkpoint and release get the first answer', async () => {
  const { job, w } = await claimed();
  const m = await w.save(3);
  const first = (await w.checkpoint(m)).expect(201).json;
  assert.deepEqual((await w.checkpoint(m)).expect(201).json, first);
  assert.equal((await s.checkpoints(job.id)).length, 1);
  const rel = (await w.release('yielded', 'drain', 3)).expect(200).json;
  assert.deepEqual((await w.release('yielded', 'drain', 3)).expect(200).json, rel);
  assert.equal((await s.leases(job.id)).length, 1);
  const next = new FakeWorker(s);
  (await next.claim()).expect(201);
  // Not even a repeat may reach past a new claim in a way that changes something.
  const late = await w.release('yielded', 'drain', 3);
  assert.ok(late.status === 409 || JSON.stringify(late.json) === JSON.stringify(rel));
  assert.equal(await state(job.id), 'running');
  await next.finish();
});

test('a stale token is refused everywhere, and nothing changes', async () => {
  const { job, w } = await claimed();
  const m2 = await w.save(2);
  (await w.checkpoint(m2, { release: w.releaseBody('yielded', 'drain', 2) })).expect(201);
  const b = new FakeWorker(s);
  (await b.claim()).expect(201);
  (await b.checkpoint(await b.save(4))).expect(201);
  const snapshot = async () => JSON.stringify([await s.checkpoints(job.id), await s.leases(job.id), { ...(await s.job(job.id)), version: 0 }, await s.series(job.id)]);
  const was = await snapshot();
  const stale = [
    () => w.heartbeat({ position: w.position(3), metrics: [[3, { loss: 9 }]], logs: [{ at_ms: Date.now(), level: 'info', text: 'late' }] }),
    () => w.checkpoint({ ...m2, step: 3 }),
    () => w.checkpoint({ ...m2, step: 5 }, { release: w.releaseBody('finished', 'late', 5) }),
    () => w.release('failed', 'late', 3, { error: { code: 'torch', detail: 'late', final: true } }),
    () => w.chunk(Buffer.from('late')),
  ];
  for (const call of stale) (await call()).problem(409);
  for (const token of [b.token + 1, b.token - 1, 0])
    (await s.post(`/v1/leases/${b.id}/heartbeat`, { token, stage: 'train', position: b.position(4), seq: 99, metrics: [], memory: [], logs: [], data: { skipped: 0, bad: [] } })).problem(409);
  assert.equal(await snapshot(), was);
  await b.finish();
  assert.equal(await state(job.id), 'completed');
});

test('a chunk must be what its name says', async () => {
  const { w } = await claimed();
  const bytes = Buffer.from('some bytes');
  (await w.chunk(bytes, { digest: sha256('other bytes') })).problem(400);
  (await w.hasChunk(sha256(bytes))).expect(404);
  (await w.chunk(bytes)).expect(204);
  (await w.chunk(bytes)).expect(204);
  (await w.hasChunk(sha256(bytes))).expect(200);
  for (const digest of ['x', 'A'.repeat(64), '0'.repeat(63)]) assert.ok([400, 404].includes((await w.chunk(bytes, { digest })).status));
  await w.finish();
});

test('a manifest whose chunks are missing, or that is not whole, makes no checkpoint', async () => {
  const { job, w } = await claimed();
  const m = await w.save(2);
  const bad = [
    { ...m, chunks: [sha256('never sent'), ...m.chunks.slice(1)] },
    { ...m, chunks: m.chunks.slice(1) },
    { ...m, bytes: m.bytes + 1 },
    { ...m, tensors: [{ ...m.tensors[0], end: m.tensors[0].end + 4 }, ...m.tensors.slice(1)] },
    { ...m, signature: sha256('another job') },
    { ...m, format: 'zip' },
    { ...m, version: 99 },
    { ...m, step: 6 },
    { ...m, cycle: 2 },
    { ...m, step: 'two' },
  ];
  for (const b of bad) {
    const r = await w.checkpoint(b);
    assert.ok([400, 409].includes(r.status), `${JSON.stringify(b).slice(0, 300)}: ${r.status} ${r.text}`);
  }
  assert.deepEqual(await s.checkpoints(job.id), []);
  (await w.release('finished', 'no checkpoint', 5)).problem(409); // not without the last step
  assert.equal(await state(job.id), 'running');
  await w.finish();
});

test('a pause reaches the worker with its next heartbeat, a cancel too', async () => {
  const { job, w } = await claimed();
  assert.equal((await w.heartbeat()).expect(200).json.do, 'continue');
  (await s.post(`/v1/jobs/${job.id}/pause`)).expect(200);
  const h = (await w.heartbeat()).expect(200).json;
  assert.equal(h.do, 'yield');
  assert.equal(h.reason, 'pause');
  (await w.checkpoint(await w.save(1), { release: w.releaseBody('yielded', 'pause', 1) })).expect(201);
  assert.equal(await state(job.id), 'paused');
  (await new FakeWorker(s).claim()).expect(204);
  (await s.post(`/v1/jobs/${job.id}/resume`)).expect(200);
  const b = new FakeWorker(s);
  (await b.claim()).expect(201);
  (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
  const told = (await b.heartbeat()).expect(200).json;
  assert.ok(['yield', 'stop'].includes(told.do), JSON.stringify(told));
  assert.equal(told.reason, 'cancel');
  // QUE-07: a late success cannot undo it.
  const end = await b.checkpoint(await b.save(5), { release: b.releaseBody('finished', 'too late', 5) });
  assert.ok([201, 409].includes(end.status), end.text);
  await s.waitState(job.id, 'canceled');
});

test('a new policy travels with the heartbeat, once', async () => {
  const { job, w } = await claimed();
  const before = (await w.heartbeat()).json;
  assert.equal(before.runtime ?? null, null);
  (await s.patch(`/v1/jobs/${job.id}`, { runtime: { checkpoint_every: 77 } })).expect(200);
  const h = (await w.heartbeat()).expect(200).json;
  assert.equal(h.runtime.checkpoint_every, 77);
  assert.ok(h.runtime_version > before.runtime_version);
  await w.finish();
});

test('labels and memory: what a worker lacks is said, and who has it gets the job', async () => {
  const job = await s.submit(tinySpec({ priority: 80, runtime: { resources: { memory_mb: 2048, labels: { gpu: 'a100' } } } }));
  const small = new FakeWorker(s);
  small.identity.labels = { gpu: 'a100', room: 'x' };
  small.identity.memory_bytes = 1024 ** 3;
  (await small.claim()).expect(204);
  assert.equal((await s.job(job.id)).place, null, 'who cannot be served is not next');
  assert.match((await s.job(job.id)).reason, /^waits for a worker with .*2048 MB of memory, the label gpu=a100: worker \S+ (has 1024 MB of cpu memory, of 2048 asked for|lacks the label|does not say)/);
  const shown = (await s.workers()).find((x) => x.name === small.identity.name);
  assert.deepEqual([shown.labels, shown.memory_bytes], [{ gpu: 'a100', room: 'x' }, 1024 ** 3]);
  const other = new FakeWorker(s);
  other.identity.memory_bytes = 2 ** 40;
  (await other.claim()).expect(204);
  const fits = new FakeWorker(s);
  fits.identity.labels = { gpu: 'a100' };
  fits.identity.memory_bytes = 2 ** 31;
  (await fits.claim()).expect(201);
  assert.equal(fits.lease.lease.job, job.id);
  await fits.finish();
  (await s.post('/v1/jobs', tinySpec({ runtime: { resources: { memory_mb: -1 } } }))).problem(400, '/runtime/resources/memory_mb');
  (await s.post('/v1/jobs', tinySpec({ runtime: { resources: { labels: { a: 1 } } } }))).problem(400, '/runtime/resources/labels/a');
  (await s.post('/v1/jobs', tinySpec({ runtime: { resources: { disk: 1 } } }))).problem(400, '/runtime/resources/disk');
});

test('a chunk is asked for with the token, for asking holds it', async () => {
  const { w } = await claimed();
  const bytes = Buffer.from('held');
  (await w.chunk(bytes)).expect(204);
  const head = (headers) => s.request('HEAD', `/v1/leases/${w.id}/chunks/${sha256(bytes)}`, undefined, headers);
  (await head({ 'Pawl-Token': String(w.token) })).expect(200);
  (await head({ 'Pawl-Token': String(w.token + 1) })).expect(409);
  (await head({})).expect(400);
  await w.finish();
  (await head({ 'Pawl-Token': String(w.token) })).expect(409);
});

test('a drained worker is told to yield and gets nothing more', async () => {
  const { job, w } = await claimed();
  const row = (await s.workers()).find((x) => x.name === w.identity.name);
  assert.ok(row);
  const r = await s.post(`/v1/workers/${row.id}/drain`);
  assert.ok([200, 202].includes(r.status), r.text);
  const h = (await w.heartbeat()).json;
  assert.deepEqual([h.do, h.reason], ['yield', 'drain']);
  (await w.checkpoint(await w.save(1), { release: w.releaseBody('yielded', 'drain', 1) })).expect(201);
  const b = new FakeWorker(s);
  (await b.claim()).expect(201);
  assert.equal(b.lease.lease.job, job.id);
  await b.finish();
  // One that waits for work may go at once.
  const idle = new FakeWorker(s);
  const waits = idle.claim({ wait: 60 });
  const mine = await until('the waiting worker', async () => (await s.workers()).find((x) => x.name === idle.identity.name));
  (await s.post(`/v1/workers/${mine.id}/drain`)).expect(200);
  assert.match((await waits).problem(409).detail, /drained/);
});

test('metrics arrive once, whatever is sent twice, and non-finite ones as null', async () => {
  const { job, w } = await claimed();
  const metrics = [[1, { loss: 1.5, 'loss/value': 0.5, lr: 0.001 }], [2, { loss: 1.25, lr: 0.001 }]];
  (await w.heartbeat({ position: w.position(2), metrics })).expect(200);
  w.seq--; // the answer was lost: the same again
  (await w.heartbeat({ position: w.position(2), metrics })).expect(200);
  (await w.heartbeat({ position: w.position(3), metrics: [[3, { loss: null, lr: 0.001 }]] })).expect(200);
  assert.deepEqual((await s.values(job.id, 'loss')).slice(0, 2), ['1.5', '1.25']);
  const j = (await s.get(`/v1/jobs/${job.id}/metrics?series=loss,lr`)).expect(200);
  JSON.parse(j.text); // strict: no NaN
  assert.equal((await s.job(job.id)).progress.step, 3);
  await w.finish();
});

test('steps trained again must give the same losses; the server says when they do not', async () => {
  const { job, w } = await claimed();
  (await w.checkpoint(await w.save(1))).expect(201);
  (await w.heartbeat({ position: w.position(3), metrics: [[1, { loss: 3 }], [2, { loss: 2 }], [3, { loss: 1 }]] })).expect(200);
  (await w.release('failed', 'a cable', 3, { error: { code: 'net', detail: 'a cable', final: false } })).expect(200);
  const b = new FakeWorker(s);
  (await b.claim({ wait: 10 })).expect(201);
  (await b.heartbeat({ position: b.position(3), metrics: [[2, { loss: 2 }], [3, { loss: 1.0000001 }]] })).expect(200);
  await b.finish();
  const events = (await s.get(`/v1/jobs/${job.id}/events?limit=1000`)).expect(200).json.items;
  const inexact = events.filter((e) => e.kind === 'inexact');
  assert.equal(inexact.length, 1, JSON.stringify(events));
  assert.match(inexact[0].cause, /\b3\b/);
  // Rows past the resume point are archived, not mixed in.
  assert.equal((await s.values(job.id, 'loss')).length, 3);
});

test('failures have a budget; a final error uses none', async () => {
  const { job, w } = await claimed({ limits: { failures: 2 } });
  (await w.release('failed', 'first', 0, { error: { code: 'torch', detail: 'first', final: false } })).expect(200);
  assert.ok(['queued', 'running'].includes(await state(job.id)));
  const b = new FakeWorker(s);
  (await b.claim({ wait: 10 })).expect(201);
  (await b.release('failed', 'second', 0, { error: { code: 'torch', detail: 'second', final: false } })).expect(200);
  const c = new FakeWorker(s);
  const r = await c.claim({ wait: 10 });
  if (r.status === 201) (await c.release('failed', 'third', 0, { error: { code: 'torch', detail: 'third', final: false } })).expect(200);
  const end = await s.failed(job.id);
  assert.match(end.reason, /second|third/);

  const d = await claimed();
  (await d.w.release('failed', 'bad data', 0, { error: { code: 'data', detail: 'policy sums to 0.5', shard: 'a.jsonl', line: 3, offset: 120, field: 'policy', final: true } })).expect(200);
  const failed = await s.failed(d.job.id);
  assert.match(failed.reason, /a\.jsonl/);
  assert.match(failed.reason, /\b3\b/);
  assert.match(failed.reason, /policy/);
  // retry gives it another chance
  (await s.post(`/v1/jobs/${d.job.id}/retry`)).expect(200);
  const e = new FakeWorker(s);
  (await e.claim({ wait: 10 })).expect(201);
  await e.finish();
});

test('leases without progress stop the job with the reason', async () => {
  const { job, w } = await claimed({ limits: { no_progress: 3 } });
  (await w.release('yielded', 'memory', 0)).expect(200);
  for (let i = 0; i < 4; i++) {
    const b = new FakeWorker(s);
    if ((await b.claim({ wait: 3 })).status !== 201) break;
    (await b.release('yielded', 'memory', 0)).expect(200);
  }
  assert.match((await s.failed(job.id)).reason, /3 leases .* no further than step 0/);
});

test('a yielded job goes before those of its priority, priority before age', async () => {
  const { job, w } = await claimed({ priority: 60 });
  const later = await s.submit(tinySpec({ priority: 60 }));
  const urgent = await s.submit(tinySpec({ priority: 61 }));
  (await w.checkpoint(await w.save(1), { release: w.releaseBody('yielded', 'steps', 1) })).expect(201);
  const order = [];
  for (let i = 0; i < 3; i++) {
    const b = new FakeWorker(s);
    (await b.claim()).expect(201);
    order.push(b.lease.lease.job);
    await b.finish();
  }
  assert.deepEqual(order, [urgent.id, job.id, later.id]);
});

test('a worker that lacks the device gets nothing, and the job says why it waits', async () => {
  const job = await s.submit(tinySpec({ priority: 90, runtime: { device: 'cuda' } }));
  (await new FakeWorker(s).claim()).expect(204);
  assert.match((await s.job(job.id)).reason, /cuda/);
  const gpu = new FakeWorker(s, { devices: [{ kind: 'cuda', name: 'made up', memory_bytes: 1 << 30 }, { kind: 'cpu' }] });
  (await gpu.claim()).expect(201);
  assert.equal(gpu.lease.device, 'cuda');
  await gpu.finish();
});

test('another fingerprint moves the job to order-exact from that step, or is refused where exactness is required', async () => {
  const { job, w } = await claimed();
  (await w.checkpoint(await w.save(2), { release: w.releaseBody('yielded', 'drain', 2) })).expect(201);
  const b = new FakeWorker(s);
  b.identity.library = { ...b.identity.library, blas_core: 'another' };
  (await b.claim()).expect(201);
  await b.finish();
  const { tier, since_step } = (await s.job(job.id)).exact;
  assert.deepEqual([tier, since_step], ['order', 2]);

  const strict = await claimed({ runtime: { exact: 'require' } });
  (await strict.w.checkpoint(await strict.w.save(2), { release: strict.w.releaseBody('yielded', 'drain', 2) })).expect(201);
  (await b.reborn().claim()).expect(204);
  // Those who would fit may come back for a while, unless they are drained.
  for (const { id, name } of await s.workers()) if (name !== b.identity.name) (await s.post(`/v1/workers/${id}/drain`)).expect(200);
  (await b.reborn().claim()).expect(204);
  assert.match((await s.job(strict.job.id)).reason, /fingerprint of its state .* differs: blas_core/);
  const same = new FakeWorker(s);
  (await same.claim()).expect(201);
  await same.finish();
  assert.equal((await s.job(strict.job.id)).exact.tier, 'bit');
});

test('keep: older checkpoints go, the newest stay and can be read', async () => {
  const { job, w } = await claimed({ runtime: { keep: 2 } });
  for (const step of [1, 2, 3, 4]) {
    (await w.checkpoint(await w.save(step))).expect(201);
  }
  await w.finish();
  await until('the older ones to go', async () => {
    const steps = (await s.checkpoints(job.id)).map((c) => c.step).sort((a, b) => a - b);
    assert.deepEqual(steps.slice(-2), [4, 5]);
    return steps.length === 2;
  });
  (await s.get(`/v1/jobs/${job.id}/model`)).expect(200);
});

test('a claim with a mistake is a 400 at its field', async () => {
  const w = new FakeWorker(s);
  const post = (patch) => s.post('/v1/leases', { worker: { ...w.identity, ...patch.worker }, claim: 'claim' in patch ? patch.claim : w.claimId, wait: patch.wait ?? 0 });
  (await post({ worker: { pid: 'x' } })).problem(400, '/worker/pid');
  (await post({ worker: { colour: 1 } })).problem(400, '/worker/colour');
  (await post({ worker: { devices: [] } })).problem(400, '/worker/devices');
  (await post({ wait: 61 })).problem(400, '/wait');
  (await post({ claim: 7 })).problem(400, '/claim');
});

test('records of another snapshot: a shard added later belongs to no frozen cycle', async () => {
  await s.upload('grow', { 'a.jsonl': tinyShard(8) });
  const job = await s.submit(tinySpec({ priority: 70, data: { dataset: 'grow' } }));
  await s.upload('grow', { 'b.jsonl': jsonl([tiny(1), tiny(2)]) });
  const w = new FakeWorker(s);
  (await w.claim()).expect(201);
  assert.equal(w.lease.lease.job, job.id);
  assert.deepEqual(w.lease.data.shards.map((x) => x.name), ['a.jsonl']);
  await w.finish();
});

test('states larger than a chunk come back whole', async () => {
  const { job, w } = await claimed();
  const tensors = madeUp(5, 700_000);
  await w.finish({ tensors });
  const model = (await s.get(`/v1/jobs/${job.id}/model`)).expect(200).body;
  const size = Number(model.readBigUInt64LE(0));
  const header = JSON.parse(model.subarray(8, 8 + size).toString());
  const { data_offsets: [begin, end] } = header['a.weight'];
  const expected = tensors['model.a.weight'];
  assert.ok(model.subarray(8 + size + begin, 8 + size + end).equals(Buffer.from(expected.buffer)));
});

test('--share and --age: who used least for his share is served, and waiting lifts a priority', async () => {
  const own = await Server.start({ workers: 0, args: ['--share', 'ann=1000', '--age', '1'] });
  try {
    await own.upload('tiny', { 'a.jsonl': tinyShard(8) });
    const submit = (owner, priority = 0) => own.submit(tinySpec({ priority, labels: { owner } }));
    const claims = async () => {
      const w = new FakeWorker(own);
      (await w.claim()).expect(201);
      return { w, owner: (await own.job(w.lease.lease.job)).labels.owner };
    };
    // Nobody has used anything: the one who waits longest.
    await submit('bob');
    const first = await claims();
    assert.equal(first.owner, 'bob');
    await until('some use', async () => (await own.leases(first.w.lease.lease.job))[0].started_at < new Date(Date.now() - 50).toISOString());
    await submit('bob');
    await submit('ann');
    const second = await claims();
    assert.equal(second.owner, 'ann', 'she used nothing');
    await first.w.finish();
    await second.w.finish();
    // bob still waits, for more than two ages by now: a priority of one more comes too late.
    const [waits] = (await own.get('/v1/jobs?label=owner=bob&state=queued')).expect(200).json.items;
    await until('two ages to pass', () => Date.now() > Date.parse(waits.created_at) + 2200);
    await submit('ann', 1);
    assert.equal((await claims()).owner, 'bob');
  } finally {
    await own.stop();
  }
});
