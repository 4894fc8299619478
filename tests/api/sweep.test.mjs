// One submission that makes several jobs.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { FakeWorker } from '../fake_worker.mjs';
import { Server, tinyShard, tinySpec } from '../harness.mjs';

let s;
before(async () => {
  s = await Server.start({ workers: 0 });
  await s.upload('tiny', { 'a.jsonl': tinyShard(20) });
});
after(() => s.stop());

const axes = { '/training/seed': [1, 2, 3], '/training/optimizer/lr': [0.1, 0.01] };
const sweepOf = (sweep, patch = {}) => ({ ...tinySpec(patch), sweep });
const count = async () => (await s.get('/v1/jobs?limit=1000')).json.items.length;

test('a sweep makes one job of each combination', async () => {
  const r = (await s.post('/v1/jobs', sweepOf(axes, { name: 'six' }))).expect(201);
  const { sweep, items } = r.json;
  assert.equal(r.headers.location, `/v1/sweeps/${sweep.id}`);
  assert.equal(sweep.jobs, 6);
  assert.equal(sweep.name, 'six');
  assert.deepEqual(sweep.axes, axes);
  assert.deepEqual(sweep.states, { queued: 6 });
  assert.deepEqual(items.map((j) => Object.values(j.sweep.values)),
    [[1, 0.1], [1, 0.01], [2, 0.1], [2, 0.01], [3, 0.1], [3, 0.01]]);
  assert.equal(new Set(items.map((j) => j.signature)).size, 6);
  const last = await s.job(items[5].id);
  assert.equal(last.spec.training.seed, 3);
  assert.equal(last.spec.training.optimizer.lr, 0.01);
  assert.deepEqual(last.sweep, { id: sweep.id, values: { '/training/seed': 3, '/training/optimizer/lr': 0.01 } });

  const listed = (await s.get(`/v1/jobs?sweep=${sweep.id}`)).expect(200).json.items;
  assert.deepEqual(listed.map((j) => j.id), items.map((j) => j.id).reverse());
  (await s.get('/v1/jobs?sweep=x')).problem(400);
  assert.deepEqual((await s.get(`/v1/sweeps/${sweep.id}`)).expect(200).json, sweep);
  assert.ok((await s.get('/v1/sweeps')).expect(200).json.items.some((x) => x.id === sweep.id));
  (await s.get('/v1/sweeps/98765')).problem(404);
  const text = (await s.get(`/v1/sweeps/${sweep.id}?as=text`)).expect(200).text;
  assert.match(text, /^name +six$/m);
});

for (const [sweep, pointer] of [
  [{}, '/sweep'],
  [{ 'training/seed': [1] }, '/sweep/training~1seed'],
  [{ '/training/seed': [] }, '/sweep/~1training~1seed'],
  [{ '/training/seed': [1, 'two'] }, '/sweep/~1training~1seed/1'],
  [{ '/training/speed': [1] }, '/sweep/~1training~1speed/0'],
  [{ '/data/dataset': ['tiny', 'nothing'] }, '/sweep/~1data~1dataset/1'],
  [{ '/training/seed': Array.from({ length: 1001 }, (_, i) => i) }, '/sweep'],
]) {
  test(`a sweep over ${JSON.stringify(sweep).slice(0, 60)} is refused at ${pointer}, whole`, async () => {
    const before = await count();
    (await s.post('/v1/jobs', sweepOf(sweep))).problem(400, pointer);
    (await s.post('/v1/jobs?dry_run=1', sweepOf(sweep))).problem(400, pointer);
    assert.equal(await count(), before);
  });
}

test('a key makes it once, across a kill of the server', async () => {
  const key = { 'Idempotency-Key': 'sweep-1' };
  const body = sweepOf({ '/training/seed': [1, 2, 3, 4] }, { name: 'keyed' });
  const all = await Promise.all(Array.from({ length: 5 }, () => s.post('/v1/jobs', body, key)));
  for (const r of all) assert.deepEqual(r.expect(201).json, all[0].json);
  (await s.post('/v1/jobs', sweepOf({ '/training/seed': [1, 2] }, { name: 'keyed' }), key)).problem(422);
  await s.kill9();
  await s.launch();
  assert.deepEqual((await s.post('/v1/jobs', body, key)).expect(201).json, all[0].json);
  assert.equal((await s.get('/v1/jobs?q=keyed')).json.items.length, 4);
});

test('a dry run of a sweep names each job and makes none', async () => {
  const before = await count();
  const r = (await s.post('/v1/jobs?dry_run=1', sweepOf(axes))).expect(200).json;
  assert.equal(r.sweep.jobs, 6);
  assert.equal(r.items.length, 6);
  assert.equal(r.items[0].signature, r.signature);
  assert.equal(new Set(r.items.map((x) => x.signature)).size, 6);
  assert.ok(r.memory.total_bytes > 0);
  assert.equal(await count(), before);
});

test('its jobs are paused, resumed, canceled and retried together', async () => {
  const { sweep, items } = (await s.post('/v1/jobs', sweepOf({ '/training/seed': [1, 2, 3] }, { priority: 60 }))).expect(201).json;
  const ask = async (what) => (await s.post(`/v1/sweeps/${sweep.id}/${what}`)).expect(200).json.states;
  assert.deepEqual(await ask('pause'), { paused: 3 });
  assert.deepEqual(await ask('resume'), { queued: 3 });
  const w = new FakeWorker(s);
  (await w.claim()).expect(201);
  assert.equal(w.lease.lease.job, items[0].id);
  const waiting = s.get(`/v1/sweeps/${sweep.id}?wait=30`);
  assert.deepEqual(await ask('cancel'), { canceled: 2, running: 1 });
  assert.equal((await w.heartbeat()).expect(200).json.do, 'yield');
  (await w.release('yielded', 'drain')).expect(200);
  assert.deepEqual((await waiting).expect(200).json.states, { canceled: 3 }, 'a long poll ends with the last of them');
  assert.deepEqual(await ask('cancel'), { canceled: 3 });
  assert.deepEqual(await ask('retry'), { queued: 3 });
  assert.deepEqual(await ask('retry'), { queued: 3 });
  await ask('cancel');
  (await s.post(`/v1/sweeps/${sweep.id}/cancel`, { now: true })).problem(400);
  (await s.post('/v1/sweeps/98765/cancel')).problem(404);
  for (const j of items) (await s.delete(`/v1/jobs/${j.id}`)).expect(204);
  (await s.get(`/v1/sweeps/${sweep.id}`)).problem(404);
});

test('a thousand jobs are one request, and nothing else waits long for it', async () => {
  const body = sweepOf({ '/training/seed': Array.from({ length: 1000 }, (_, i) => i) }, { name: 'many' });
  let slowest = 0, going = true;
  const others = (async () => {
    while (going) {
      const begin = Date.now();
      (await s.get('/v1/jobs?limit=1')).expect(200);
      slowest = Math.max(slowest, Date.now() - begin);
    }
  })();
  const begin = Date.now();
  const r = (await s.post('/v1/jobs', body)).expect(201).json;
  const took = Date.now() - begin;
  going = false;
  await others;
  assert.equal(r.items.length, 1000);
  assert.ok(took < 15_000, `${took} ms`);
  assert.ok(slowest < 3000, `a list took ${slowest} ms meanwhile`);
  assert.deepEqual((await s.post(`/v1/sweeps/${r.sweep.id}/cancel`)).expect(200).json.states, { canceled: 1000 });
});
