// Saving beside training: what it must not change, and what may happen to it.
import test from 'node:test';
import assert from 'node:assert/strict';
import { chessSpec, merge, request, sha256, signal, tinyShard, tinySpec, until, withServer } from '../harness.mjs';
import { proxy } from '../proxy.mjs';

const isChunk = (r) => r.method === 'PUT' && /\/chunks\//.test(r.path);
async function withProxy(body, options = { workers: 0 }) {
  await withServer(options, async (s) => {
    const p = await proxy(s.url);
    try { await body(s, p); } finally { p.close(); }
  });
}
const through = (s, p, more = {}) => s.startWorker({ args: ['--server', p.url, '--once'], ...more });
const logs = async (s, id) => (await s.get(`/v1/jobs/${id}/logs?limit=1000`)).expect(200).json.items.map((l) => l.text);
// The whole state, as its readers get it, but for what says where and when.
async function stateOf(s, c) {
  const body = (await s.get(`/v1/checkpoints/${c.id}/state`)).expect(200).body;
  const m = await s.manifest(c.id);
  const { previous, ...manifest } = m.manifest ?? m;
  return { tensors: sha256(body.subarray(8 + Number(body.readBigUInt64LE(0)))), manifest: JSON.stringify(manifest.feed) + manifest.chunks.join() + JSON.stringify(manifest.tensors) + manifest.model_sha256 };
}

test('a state that was copied and written beside training is the state of its step, bit for bit', async (t) => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const spec = chessSpec({ training: { epochs: 3 }, runtime: { checkpoint_every: 4, keep: 100 } });
    const run = async (env) => {
      const job = await s.submit(spec);
      const w = await s.runWorker({ env });
      assert.equal(w.code, 0, w.output);
      const r = await s.result(job.id), states = new Map();
      for (const c of await s.checkpoints(job.id)) states.set(c.step, await stateOf(s, c));
      return { ...r, states, logs: await logs(s, job.id) };
    };
    const beside = await run({});
    const waiting = await run({ PAWL_MEMORY_PROBE: 'fake:available_mb=1' });
    assert.ok(!beside.logs.some((l) => /training waits for its saves/.test(l)), beside.logs.join('\n'));
    assert.ok(waiting.logs.some((l) => /training waits for its saves: the state, .* is not copied, for a copy of it wants \d+ MB, .* the system has 1 MB/.test(l)), waiting.logs.join('\n'));
    assert.ok(beside.logs.some((l) => /^saved step \d+ in .* stood still for 0\.\d+ s/.test(l)), beside.logs.join('\n'));
    assert.equal(beside.model, waiting.model);
    assert.deepEqual(beside.series, waiting.series);
    const both = [...beside.states.keys()].filter((step) => waiting.states.has(step));
    t.diagnostic(`steps saved beside training: ${[...beside.states.keys()]}, while it waited: ${[...waiting.states.keys()]}`);
    assert.ok(both.length >= 3, `${both}`);
    for (const step of both) assert.deepEqual(beside.states.get(step), waiting.states.get(step), `step ${step}`);
  });
});

test('training goes on while chunks do not get through; eight at a time are under way; the next save waits for the one', async () => {
  await withProxy(async (s, p) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(20_000) });
    // a state of several chunks
    const spec = tinySpec({ model: { d_model: 256, layers: 3, heads: 2, ff: 1024 }, runtime: { checkpoint_every: 3, keep: 1000 } });
    const job = await s.submit(spec);
    p.hold = isChunk;
    const w = through(s, p);
    await until('eight chunks to be held', () => p.held.length >= 8);
    const at = (await s.job(job.id)).progress.step;
    const { progress } = await s.waitJob(job.id, 'further', (j) => j.progress.step >= at + 10);
    assert.equal(p.most, 8);
    assert.deepEqual(await s.checkpoints(job.id), []);
    p.letGo();
    // what was put off is saved as soon as the one before it is there
    const steps = await until('two checkpoints', async () => {
      const list = (await s.checkpoints(job.id)).map((c) => c.step).sort((x, y) => x - y);
      return list.length >= 2 && list;
    });
    signal(w.pid, 'SIGTERM');
    const end = await w.ended;
    assert.equal(end.code, 0, end.output);
    assert.equal(steps[0], 3);
    assert.ok(steps[1] >= progress.step, `${steps}`);
    const said = await logs(s, job.id);
    assert.ok(said.some((l) => /^step 6 is not saved: the save of step 3 is still under way/.test(l)), said.join('\n'));
    assert.equal(said.filter((l) => /the save of step 3 is still under way/.test(l)).length, 1);
    assert.equal(p.most, 8);
  });
});

for (const [how, break_off] of [['SIGTERM', (s, w) => signal(w.pid, 'SIGTERM')], ['pause', async (s, w, id) => (await s.post(`/v1/jobs/${id}/pause`)).expect(200)]])
  test(`${how} while a save is under way: it is broken off, a newer state is saved, and the result is the same`, async () => {
    await withProxy(async (s, p) => {
      await s.upload('tiny', { 'a.jsonl': tinyShard(2000) });
      const spec = tinySpec({ model: { d_model: 256, layers: 3, heads: 2, ff: 1024 }, runtime: { checkpoint_every: 5, keep: 100 } });
      const one = await s.submit(merge(spec, { runtime: { checkpoint_every: 0 } }));
      assert.equal((await s.runWorker()).code, 0);
      const whole = await s.result(one.id);
      const job = await s.submit(spec);
      // chunks of the first save are held, those of the next one are not
      let held = 0;
      p.hold = (r) => isChunk(r) && held < 8 && ++held > 0;
      const w = through(s, p);
      await until('chunks to be held', () => held === 8);
      const at = await s.waitJob(job.id, 'further', (j) => j.progress.step >= 8);
      await break_off(s, w, job.id);
      const end = await w.ended; // nobody lets go of what is held
      assert.equal(end.code, 0, end.output);
      const [lease] = await s.leases(job.id);
      assert.equal(lease.outcome, 'yielded');
      const list = await s.checkpoints(job.id);
      assert.equal(list.length, 1, JSON.stringify(list));
      assert.ok(list[0].step >= at.progress.step && list[0].step === lease.to_step);
      p.letGo();
      if (how === 'pause') (await s.post(`/v1/jobs/${job.id}/resume`)).expect(200);
      assert.equal((await s.runWorker()).code, 0);
      const got = await s.result(job.id);
      assert.equal(got.model, whole.model);
      assert.deepEqual(got.series, whole.series);
    });
  });

test('the server goes away while a manifest is on its way: it is asked again, and the next state follows it', async () => {
  await withProxy(async (s, p) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(2000) });
    const spec = tinySpec({ runtime: { checkpoint_every: 5, keep: 100 } });
    const one = await s.submit(merge(spec, { runtime: { checkpoint_every: 0 } }));
    assert.equal((await s.runWorker()).code, 0);
    const whole = await s.result(one.id);
    const job = await s.submit(spec);
    // the answer to the first manifest never comes, though it was committed
    let manifests = 0;
    const w = through(s, p);
    p.hold = (r) => {
      if (r.method !== 'POST' || !/\/checkpoints$/.test(r.path) || ++manifests > 1) return false;
      request(s.url, { method: 'POST', path: r.path, body: r.body, headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${s.token}` } }).then((a) => a.expect(201));
      return true;
    };
    await until('the first manifest', () => p.held.length);
    await s.waitJob(job.id, 'further', (j) => j.progress.step >= 20);
    signal(w.pid, 'SIGTERM');
    // the connection breaks: now the worker cannot know
    await until('it is waited for', () => p.held.length);
    p.held.splice(0).forEach((go) => go());
    const end = await w.ended;
    assert.equal(end.code, 0, end.output);
    const list = (await s.checkpoints(job.id)).sort((a, b) => a.id - b.id);
    assert.ok(list.length >= 2, JSON.stringify(list));
    list.slice(1).forEach((c, i) => assert.equal(c.previous, list[i].digest, 'a chain'));
    assert.equal((await s.runWorker()).code, 0);
    assert.equal((await s.result(job.id)).model, whole.model);
  });
});

test('chunks that the server has are not sent again', async () => {
  await withProxy(async (s, p) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(400) });
    // a rate so small that no weight moves: the weights' chunks stay the same
    const spec = tinySpec({ model: { d_model: 512, layers: 2, heads: 2, ff: 1024 }, training: { optimizer: { lr: 1e-30, weight_decay: 0 } }, runtime: { checkpoint_every: 20, keep: 100 } });
    const job = await s.submit(spec);
    const w = await through(s, p).ended;
    assert.equal(w.code, 0, w.output);
    const list = await s.checkpoints(job.id);
    const named = [];
    for (const c of list) { const m = await s.manifest(c.id); named.push((m.manifest ?? m).chunks); }
    const all = named.flat(), distinct = new Set(all);
    assert.ok(list.length >= 3 && all.length > distinct.size + 10, `${list.length} states, ${all.length} chunks, ${distinct.size} of them distinct`);
    const put = p.seen.filter((x) => /^PUT .*\/chunks\//.test(x)).map((x) => x.slice(-64));
    assert.equal(put.length, distinct.size, 'each is sent once');
    assert.deepEqual(new Set(put), distinct);
    for (const c of list) (await s.get(`/v1/checkpoints/${c.id}/state`)).expect(200);
  });
});
