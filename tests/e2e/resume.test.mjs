// Cases of resuming that went wrong elsewhere.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import { CHUNK, FakeWorker } from '../fake_worker.mjs';
import { proxy } from '../proxy.mjs';
import { chessSpec, jsonl, merge, randomSource, moment, sha256, signal, tiny, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

const ran = async (s, env) => {
  const w = await s.runWorker({ env });
  assert.equal(w.code, 0, w.output);
};
const patchRuntime = (s, id, runtime) => s.patch(`/v1/jobs/${id}`, { runtime }).then((r) => r.expect(200));
// A worker for each threshold in turn: the job is stopped after so many micro-batches of each lease.
async function inLeases(s, id, thresholds, env) {
  for (const n of thresholds) {
    await patchRuntime(s, id, { restart: { every_micro_batches: n } });
    await ran(s, env);
  }
}

const quarantines = async (s, id) => (await s.get(`/v1/jobs/${id}/events?limit=1000`)).expect(200).json.items.filter((e) => e.kind === 'quarantined');

// A rate so small that no weight moves: the loss of a batch of one then names the record.
const still = { optimizer: { lr: 1e-30, weight_decay: 0 } };
const named = (n) => jsonl(Array.from({ length: n }, (_, i) => ({ ...tiny(0), value: ((i + 1) / (n + 1)) ** 1.7 })));

test('RES-01: each record is used exactly once in a pass, in the same order, however often the pass is interrupted', async () => {
  await withServer({ workers: 0 }, async (s) => {
    const lines = named(48).split('\n');
    await s.upload('tiny', { 'a.jsonl': lines.slice(0, 30).join('\n'), 'b.jsonl': lines.slice(30, 48).join('\n') });
    const patch = (shuffle, batch) => ({ training: { epochs: 2, effective_batch: batch, ...still, shuffle }, runtime: { micro_batch: 1 } });
    for (const shuffle of [{ mode: 'buffer', size: 16 }, { mode: 'buffer', size: 1000 }]) {
      const order = async (thresholds) => {
        const job = await s.submit(tinySpec(patch(shuffle, 1)));
        await inLeases(s, job.id, [...thresholds, 0]);
        await s.completed(job.id);
        return s.values(job.id, 'loss/value');
      };
      const straight = await order([]);
      assert.equal(straight.length, 96);
      assert.deepEqual(await order([5, 4, 40]), straight);
      const first = straight.slice(0, 48), second = straight.slice(48);
      assert.equal(new Set(first).size, 48, 'the losses tell the records apart');
      assert.deepEqual([...first].sort(), [...second].sort(), 'each pass holds each record once');
      assert.notDeepEqual(first, second, 'the second pass is shuffled anew');
    }
    // as reported: batches of four, paused after the fifth and the ninth; the worker's own log of records
    const run = async (thresholds) => {
      const job = await s.submit(tinySpec(merge(patch({ mode: 'buffer', size: 16 }, 4), { training: { optimizer: { lr: 0.01 } } })));
      const trace = `${s.dir}/trace-${job.id}`;
      await inLeases(s, job.id, [...thresholds, 0], { PAWL_TRACE: trace });
      return { ...(await s.result(job.id)), trace: fs.readFileSync(trace, 'utf8').trimEnd().split('\n').map((l) => JSON.parse(l)) };
    };
    const a = await run([]), b = await run([20, 16]);
    assert.deepEqual(b.trace, a.trace);
    assert.deepEqual(b.series, a.series);
    assert.equal(b.model, a.model);
    const used = (epoch) => a.trace.filter((l) => l.epoch === epoch).flatMap((l) => l.records.map(String));
    assert.equal(a.trace.length, 24);
    assert.equal(new Set(used(0)).size, 48);
    assert.deepEqual(used(0).sort(), used(1).sort());
  });
});

test('while a worker loads a state, the job stands where it stood', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(40) });
    const job = await s.submit(tinySpec({ runtime: { restart: { every_micro_batches: 6 } } }));
    await ran(s);
    const w = s.startWorker({ args: ['--once'] });
    let over = false;
    w.ended.then(() => { over = true; });
    for (let looks = 0; !over || looks === 0; looks++) {
      const now = await s.job(job.id), [, second] = await s.leases(job.id);
      assert.ok(now.progress.step >= 6 && now.progress.records >= 24, JSON.stringify(now.progress));
      if (second) assert.ok(second.to_step >= 6, JSON.stringify(second));
    }
    assert.equal((await s.completed(job.id)).progress.step, 10);
  });
});

test('RES-02: the rate is a function of the step: the same digits, paused or not', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(100) });
    const spec = tinySpec({ training: { effective_batch: 1, schedule: { type: 'cosine', warmup_steps: 10 } }, runtime: { micro_batch: 1 } });
    const rates = async (thresholds) => {
      const job = await s.submit(spec);
      await inLeases(s, job.id, [...thresholds, 0]);
      const r = await s.result(job.id);
      return { lr: await s.values(job.id, 'lr'), model: r.model, leases: (await s.leases(job.id)).map((l) => l.to_step) };
    };
    const straight = await rates([]);
    assert.equal(straight.lr.length, 100);
    const stopped = await rates([3, 7, 1, 46]);
    assert.deepEqual(stopped.leases, [3, 10, 11, 57, 100]);
    assert.deepEqual(stopped.lr, straight.lr);
    assert.equal(stopped.model, straight.model);
    const lr = straight.lr.map(Number);
    assert.ok(Math.abs(lr[0] - 0.001) < 1e-9 && Math.abs(lr[9] - 0.01) < 1e-9, 'warm-up from lr/10 to lr');
    assert.ok(lr[99] < 1e-5, 'and down to nothing');
    for (let i = 10; i < 100; i++) assert.ok(lr[i] <= lr[i - 1] + 1e-12);
  });
});

test('RES-03: a checkpoint that lacks a moment is refused, naming it, and is not filled with zeros', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(24) });
    const spec = tinySpec({ runtime: { restart: { every_micro_batches: 5 } } });
    // uninterrupted and resumed after five steps
    const one = await s.submit(tinySpec());
    await ran(s);
    const live = await s.result(one.id);
    const two = await s.submit(spec);
    await ran(s);
    const [five] = await s.checkpoints(two.id);
    assert.equal(five.step, 5);
    const answer = await s.manifest(five.id);
    await patchRuntime(s, two.id, { restart: { every_micro_batches: 0 } });
    await ran(s);
    assert.equal((await s.result(two.id)).model, live.model);

    // the same weights with empty moments: what a silent loss of them would give
    const bare = answer.manifest ?? answer;
    const state = (await s.get(`/v1/checkpoints/${five.id}/state`)).expect(200).body;
    const tensors = Buffer.from(state.subarray(8 + Number(state.readBigUInt64LE(0))));
    assert.equal(tensors.length, bare.bytes);
    for (const x of bare.tensors.filter((e) => /exp_avg/.test(e.name))) tensors.fill(0, x.begin, x.end);
    const cold = await s.submit(tinySpec());
    const g = new FakeWorker(s);
    (await g.claim()).expect(201);
    const chunks = [];
    for (let i = 0; i < tensors.length; i += CHUNK) chunks.push(tensors.subarray(i, i + CHUNK));
    for (const c of chunks) (await g.chunk(c)).expect(204);
    (await g.checkpoint({ ...bare, chunks: chunks.map(sha256), fingerprint: g.lease.fingerprint, previous: null }, { release: g.releaseBody('yielded', 'drain', 5) })).expect(201);
    await ran(s);
    assert.notEqual((await s.result(cold.id)).model, live.model, 'moments matter, so equal models mean that they were restored');

    // the same state under another name for one moment tensor
    const manifest = structuredClone(bare);
    const moments = manifest.tensors.filter((t) => t.name.startsWith('optimizer.') && t.shape.length > 0);
    assert.ok(moments.length > 10, 'the optimizer\'s tensors are in the manifest');
    const victim = moments.at(-1);
    const real = victim.name;
    victim.name = `${real}~`;
    const three = await s.submit(merge(spec, { limits: { failures: 1 } }));
    const f = new FakeWorker(s);
    (await f.claim()).expect(201);
    const r = await f.checkpoint({ ...manifest, fingerprint: f.lease.fingerprint, previous: null }, { release: f.releaseBody('yielded', 'drain', 5) });
    if (r.status === 201) {
      const w = await s.runWorker();
      const leases = await s.leases(three.id);
      assert.ok(leases[1].reason.includes(real.replace(/^optimizer\./, '')), `${leases[1].reason}\n${w.output}`);
      // It was not trained on: what follows begins before it.
      assert.notEqual(leases[1].outcome, 'finished');
    } else {
      assert.ok([400, 409].includes(r.status), r.text);
      (await f.release('yielded', 'drain', 0)).expect(200);
    }
  });
});

test('RES-04: the tail of a pass is a step scaled by its real size; micro-batches do not matter', async () => {
  await withServer({ workers: 0 }, async (s) => {
    // 28 records in micro-batches of four, windows of four: 2 steps, the second of 12 records
    await s.upload('seven', { 'a.jsonl': named(28) });
    const spec = (training, runtime = {}) => tinySpec({ data: { dataset: 'seven' }, training: { effective_batch: 16, shuffle: { mode: 'none', size: null }, ...training }, runtime: { micro_batch: 4, ...runtime } });
    const run = async (sp, leases = 1) => {
      const job = await s.submit(sp);
      for (let i = 0; i < leases; i++) if ((await s.job(job.id)).state !== 'completed') await ran(s);
      return { ...(await s.result(job.id)), loss: (await s.values(job.id, 'loss/value')).map(Number), leases: await s.leases(job.id) };
    };
    const each = (await run(spec({ effective_batch: 1, ...still }, { micro_batch: 1 }))).loss;
    assert.equal(each.length, 28);
    const two = (await run(spec(still))).loss;
    assert.equal(two.length, 2);
    const mean = (a) => a.reduce((x, y) => x + y, 0) / a.length;
    assert.ok(Math.abs(two[0] - mean(each.slice(0, 16))) < 1e-6 * two[0]);
    assert.ok(Math.abs(two[1] - mean(each.slice(16))) < 1e-6 * two[1], 'the tail is averaged over 12');

    const whole = await run(spec({}));
    const paused = await run(spec({}, { restart: { every_micro_batches: 2 } }), 3);
    assert.equal(paused.model, whole.model);
    assert.deepEqual(paused.leases.map((l) => l.to_step), [1, 2], 'a pause inside a window waits for its end');

    await s.upload('three', { 'a.jsonl': named(12) });
    const three = await run({ ...spec({}), data: { dataset: 'three' } });
    assert.equal(three.loss.length, 1);
    assert.equal(three.job.progress.steps, 1);
    (await s.post('/v1/jobs', spec({ effective_batch: 0 }))).problem(400, '/training/effective_batch');
    (await s.post('/v1/jobs', spec({}, { micro_batch: 0 }))).problem(400, '/runtime/micro_batch');
  });
});

// Twice ten moments: beside training from a copy, and while training waits.
for (const [how, env] of [['beside training', {}], ['while training waits', { PAWL_MEMORY_PROBE: 'fake:available_mb=1' }]]) test(`RES-05: a worker killed while it saves (${how}) leaves the checkpoint before it; none is damaged`, async (t) => {
  const random = randomSource(t);
  await withServer({ env }, async (s) => {
    await s.uploadChess({ shards: 1 });
    // Saving after every step: half of the time is saving.
    const spec = chessSpec({ training: { epochs: 10 }, runtime: { checkpoint_every: 1 }, limits: { lost: 100, no_progress: 100 } });
    const whole = await s.result((await s.submit(spec)).id);
    const job = await s.submit(spec);
    let kills = 0;
    for (let nth = 1; nth <= 10; nth++) {
      let open;
      try { open = await s.openLease(job.id, nth); } catch { break; }
      try { await s.waitJob(job.id, 'training', (j) => j.lease?.id === open.lease.id && !['load', 'first_step'].includes(j.lease.stage)); } catch { break; }
      await moment(random() * 300);
      if (signal(open.worker.pid, 'SIGKILL')) kills++;
      await until('the lease to end', async () => (await s.leases(job.id)).find((l) => l.id === open.lease.id).outcome);
      await s.wholeCheckpoints(job.id);
    }
    assert.ok(kills >= 5, `${kills} kills`);
    const got = await s.result(job.id);
    assert.equal(got.model, whole.model);
    assert.deepEqual(got.series, whole.series);
    const leases = await s.leases(job.id);
    t.diagnostic(leases.map((l) => `${l.from_step}-${l.to_step} ${l.outcome}`).join(', '));
    leases.slice(1).forEach((l, i) => assert.ok(l.from_step >= leases[i].from_step, 'never back to scratch'));
  });
});

test('RES-06: damaged checkpoints are set aside, newest first, and the one before them is used', async (t) => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const spec = chessSpec({ training: { epochs: 2 }, runtime: { checkpoint_every: 8, keep: 5, restart: { every_micro_batches: 24 } } });
    const one = await s.submit(merge(spec, { runtime: { restart: { every_micro_batches: 0 } } }));
    await ran(s);
    const whole = await s.result(one.id);
    const job = await s.submit(spec);
    await ran(s); // checkpoints at steps 2, 4 and 6
    const list = (await s.checkpoints(job.id)).sort((a, b) => b.step - a.step);
    assert.deepEqual(list.map((c) => c.step), [6, 4, 2]);
    const chunk = async (c) => { const m = await s.manifest(c.id); return (m.manifest ?? m).chunks[0]; };
    const [newest, second] = [await chunk(list[0]), await chunk(list[1])];
    await s.terminate();
    // Flip a byte in the newest, cut the second short, as a failing disk would.
    const r = spawnSync('python3', ['-c', `
import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
for digest, damage in ((sys.argv[2], 'flip'), (sys.argv[3], 'cut')):
    row = c.execute("SELECT id, data FROM chunks WHERE sha256 = ?", (bytes.fromhex(digest),)).fetchone()
    data = bytearray(row[1])
    if damage == 'flip': data[1000] ^= 1
    else: del data[-1000:]
    c.execute("UPDATE chunks SET data = ?, bytes = ? WHERE id = ?", (bytes(data), len(data), row[0]))
c.commit()
`, `${s.dir}/checkpoints.db`, newest, second], { encoding: 'utf8' });
    assert.equal(r.status, 0, r.stderr);
    await s.launch();
    await patchRuntime(s, job.id, { restart: { every_micro_batches: 0 } });
    await until('the job to end', async () => { // over the back-offs between
      await s.runWorker();
      return ['completed', 'failed'].includes((await s.job(job.id)).state);
    });
    const got = await s.result(job.id);
    assert.equal(got.model, whole.model);
    assert.deepEqual(got.series, whole.series);
    const leases = await s.leases(job.id);
    t.diagnostic(leases.map((l) => `${l.from_step}-${l.to_step} ${l.outcome} (${l.reason})`).join(', '));
    const after = await s.checkpoints(job.id);
    const bad = after.filter((c) => c.state === 'quarantined');
    assert.deepEqual(bad.map((c) => c.step).sort(), [4, 6], JSON.stringify(after));
    assert.equal(leases.at(-1).from_step, 2);
    // what it costs is said
    const said = (await quarantines(s, job.id)).map((e) => e.cause).filter((c) => /repeated$/.test(c));
    assert.equal(said.length, 2, said.join('\n'));
    assert.match(said[0], /\(step 6\) is set aside: .*damaged.*; goes on from step 4, 2 steps are repeated$/);
    assert.match(said[1], /\(step 4\) is set aside: .*damaged.*; goes on from step 2, 2 steps are repeated$/);
  });
});

test('RES-06: a checkpoint that two workers in a row died loading is set aside, and the one before it is used', async () => {
  await withServer({ workers: 0, args: ['--lease', '2'] }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const spec = chessSpec({ training: { epochs: 2 }, runtime: { checkpoint_every: 12, keep: 5, restart: { every_micro_batches: 24 } } });
    const one = await s.submit(merge(spec, { runtime: { restart: { every_micro_batches: 0 } } }));
    await ran(s);
    const whole = await s.result(one.id);
    const job = await s.submit(spec);
    await ran(s);
    const list = (await s.checkpoints(job.id)).sort((a, b) => b.step - a.step);
    assert.deepEqual(list.map((c) => c.step), [6, 3]);
    await patchRuntime(s, job.id, { restart: { every_micro_batches: 0 } });
    // between the worker and the server: the state does not come
    const p = await proxy(s.url);
    p.hold = (r) => /\/state$/.test(r.path);
    try {
      for (let nth = 1; nth <= 2; nth++) {
        const w = s.startWorker({ args: ['--server', p.url, '--once'] });
        await until('it to load', () => p.held.length === 1);
        signal(w.pid, 'SIGKILL');
        await w.ended;
        const [before] = (await s.leases(job.id)).slice(-1);
        await until('its lease to end', async () => (await s.leases(job.id)).find((l) => l.id === before.id).outcome === 'lost');
        p.held.splice(0);
        const aside = (await s.checkpoints(job.id)).filter((c) => c.state === 'quarantined').map((c) => c.step);
        assert.deepEqual(aside, nth === 2 ? [6] : []);
      }
    } finally {
      p.close();
    }
    const [said] = await quarantines(s, job.id);
    assert.match(said.cause, /\(step 6\) is set aside: 2 workers in a row died loading it; goes on from step 3, 3 steps are repeated$/);
    await until('the job to end', async () => { // over the back-off
      await s.runWorker();
      return (await s.job(job.id)).state !== 'queued';
    });
    const got = await s.result(job.id);
    assert.equal(got.model, whole.model);
    assert.deepEqual(got.series, whole.series);
    assert.equal((await s.leases(job.id)).at(-1).from_step, 3);
  });
});
