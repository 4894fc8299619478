// The sizes of a ladder, as the server chooses and keeps them.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { gzipSync } from 'node:zlib';
import { FakeWorker } from '../fake_worker.mjs';
import { Server, jsonl, merge, tiny, tinySpec } from '../harness.mjs';

let s;
before(async () => { s = await Server.start({ workers: 0 }); });
after(() => s?.stop());

const long = (n, i) => ({ ...tiny(i), x: Array.from({ length: n }, (_, k) => (k + i) % 16) });
const records = Array.from({ length: 200 }, (_, i) => long([3, 3, 3, 7, 7, 19][i % 6], i));
const spec = (padding, patch = {}) => {
  const out = tinySpec(merge({ data: { dataset: 'long' } }, patch));
  out.runtime.padding = padding;
  return out;
};
const cancel = (id) => s.post(`/v1/jobs/${id}/cancel`).then((r) => r.expect(200));

test('chosen when the data is frozen, from shards of either form, and part of the claim\'s policy', async () => {
  await s.upload('long', { 'a.jsonl': jsonl(records.slice(0, 100)) });
  (await s.put('/v1/datasets/long/shards/b.jsonl.gz', gzipSync(jsonl(records.slice(100))))).expect(201);
  const dry = (await s.post('/v1/jobs?dry_run=1', spec({ count: 3 }))).expect(200).json;
  assert.equal(dry.memory.sampled_records, 200, 'both shards were read');
  assert.deepEqual(dry.memory.lengths.X, { longest: 19, minimum: 0, sizes: [3, 7, 19] });
  const job = await s.submit(spec({ count: 3 }));
  assert.deepEqual(job.runtime.padding, { mode: 'ladder', minimum: {}, sizes: { A: [2], X: [3, 7, 19] } });
  assert.deepEqual(job.spec.runtime, job.runtime);
  assert.equal(job.edit, 1, 'nobody edited it');
  const w = new FakeWorker(s);
  (await w.claim()).expect(201);
  assert.deepEqual(w.lease.runtime.padding, job.runtime.padding);
  assert.deepEqual(w.lease.fingerprint.padding, job.runtime.padding);
  assert.equal((await w.heartbeat()).expect(200).json.do, 'continue');

  // another count: sizes anew, and the worker is asked to let go
  const two = (await s.patch(`/v1/jobs/${job.id}`, { runtime: { padding: { count: 2 } } })).expect(200).json;
  assert.deepEqual(two.runtime.padding.sizes.X.length, 2);
  assert.equal(two.runtime.padding.sizes.X.at(-1), 19);
  assert.equal((await w.heartbeat()).expect(200).json.do, 'yield');
  // sizes of one's own, of one dimension; then another mode
  const own = (await s.patch(`/v1/jobs/${job.id}`, { runtime: { padding: { sizes: { X: [8, 20], A: null } } } })).expect(200).json;
  assert.deepEqual(own.runtime.padding, { mode: 'ladder', minimum: {}, sizes: { X: [8, 20] } });
  (await s.patch(`/v1/jobs/${job.id}`, { runtime: { padding: { sizes: { X: [8, 8] } } } })).problem(400, '/runtime/padding/sizes/X/1');
  (await s.patch(`/v1/jobs/${job.id}`, { runtime: { padding: { sizes: { Q: [8] } } } })).problem(400, '/runtime/padding/sizes/Q');
  const dynamic = (await s.patch(`/v1/jobs/${job.id}`, { runtime: { padding: { mode: 'dynamic' } } })).expect(200).json;
  assert.deepEqual(dynamic.runtime.padding, { mode: 'dynamic', minimum: {} });
  (await w.release('yielded', 'drain', 0)).expect(200);
  await cancel(job.id);
});

test('a job that waits gets its sizes when its turn comes; without a valid record it keeps its count', async () => {
  const first = await s.submit(spec({ mode: 'dynamic' }));
  const later = await s.submit(spec({ mode: 'ladder' }, { after: [first.id] }));
  assert.deepEqual(later.runtime.padding, { mode: 'ladder', minimum: {}, count: 8 });
  const patched = (await s.patch(`/v1/jobs/${later.id}`, { runtime: { padding: { count: 2 } } })).expect(200).json;
  assert.deepEqual(patched.runtime.padding, { mode: 'ladder', minimum: {}, count: 2 });
  const w = new FakeWorker(s);
  (await w.claim()).expect(201);
  assert.equal(w.lease.lease.job, first.id);
  (await w.finish());
  assert.deepEqual((await s.job(later.id)).runtime.padding.sizes.X.length, 2);
  await cancel(later.id);

  await s.upload('odd', { 'a.jsonl': '{"x": 1}\n' });
  const odd = await s.submit(spec({ count: 2 }, { data: { dataset: 'odd' } }));
  assert.equal(odd.runtime.padding.count, 2);
  await cancel(odd.id);
});

test('a dry run looks into files below a root that nobody has read yet, whatever their form', async () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-root-'));
  const own = await Server.start({ workers: 0, args: ['--data-root', `box=${dir}`] });
  try {
    fs.writeFileSync(path.join(dir, 'a.jsonl'), jsonl(records.slice(0, 60)) + '{"cut');
    fs.writeFileSync(path.join(dir, 'b.jsonl.gz'), gzipSync(jsonl(records.slice(60, 130))));
    fs.writeFileSync(path.join(dir, 'c.jsonl.zst'), spawnSync('zstd', ['-q', '-c'], { input: jsonl(records.slice(130)) }).stdout);
    fs.writeFileSync(path.join(dir, 'd.jsonl.gz'), gzipSync(jsonl(records)).subarray(0, 100)); // damaged: the worker will say so
    const below = spec({ count: 3 });
    below.data = { root: 'box' };
    const dry = (await own.post('/v1/jobs?dry_run=1', below)).expect(200).json;
    assert.deepEqual([dry.records, dry.steps, dry.data_digest, dry.validation_records], [null, null, null, null]);
    assert.ok(dry.memory.sampled_records >= 200, `${dry.memory.sampled_records}`);
    assert.deepEqual(dry.memory.lengths.X.sizes, [3, 7, 19]);
    assert.match(dry.warnings.join(), /yet to be read/);
  } finally {
    await own.stop();
    fs.rmSync(dir, { recursive: true });
  }
});

test('each job of a sweep has its own', async () => {
  const { items } = (await s.post('/v1/jobs', { ...spec({ count: 2 }), sweep: { '/runtime/padding/count': [1, 2, 3] } })).expect(201).json;
  assert.deepEqual(items.map((j) => j.runtime.padding.sizes.X.length), [1, 2, 3]);
  assert.equal(new Set(items.map((j) => j.signature)).size, 1, 'padding is no semantics');
  for (const j of items) await cancel(j.id);
});
