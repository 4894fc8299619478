// However often and wherever a run was stopped, the model is the same file and
// the losses are the same numbers. Real records, real processes, dropout on.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { FakeWorker } from '../fake_worker.mjs';
import { chessSpec, moment, randomSource, signal, until, withServer } from '../harness.mjs';

// 1,600 records: 25 steps an epoch, four micro-batches a step.
const STEP = 4;
const five = (patch = {}) => chessSpec({
  training: { epochs: 4 }, // 100 steps
  limits: { lost: 1000, no_progress: 1000 },
  runtime: { checkpoint_every: STEP },
  ...patch,
});
const thresholds = (restart) => ({ runtime: { checkpoint_every: STEP, restart } });

const same = (got, want, how) => {
  assert.deepEqual(got.series, want.series, `${how}: losses by step`);
  assert.equal(got.model, want.model, `${how}: the model`);
};

let straight;
test('uninterrupted', async () => {
  await withServer({}, async (s) => {
    await s.uploadChess();
    const job = await s.submit(five());
    straight = await s.result(job.id);
    const leases = await s.leases(job.id);
    assert.deepEqual(leases.map((l) => l.outcome), ['finished']);
    straight.seconds = (Date.parse(leases[0].ended_at) - Date.parse(leases[0].started_at)) / 1000;
    assert.equal(straight.series.filter((l) => l.includes(',loss,')).length, 100);
    assert.equal(straight.job.exact.tier, 'bit');
    // It learned: the last epoch is better than the first.
    const loss = (await s.values(job.id, 'loss')).map(Number);
    const mean = (a) => a.reduce((x, y) => x + y, 0) / a.length;
    assert.ok(mean(loss.slice(-25)) < mean(loss.slice(0, 25)), `${mean(loss.slice(0, 25))} → ${mean(loss.slice(-25))}`);
  });
});

test('a yield every 7 steps', async () => {
  await withServer({}, async (s) => {
    await s.uploadChess();
    const job = await s.submit(five(thresholds({ every_micro_batches: 7 * STEP })));
    same(await s.result(job.id), straight, 'yields');
    const leases = await s.leases(job.id);
    assert.deepEqual(leases.map((l) => l.outcome), [...Array(14).fill('yielded'), 'finished']);
    assert.deepEqual(leases.map((l) => l.to_step), [7, 14, 21, 28, 35, 42, 49, 56, 63, 70, 77, 84, 91, 98, 100]);
    assert.ok(leases.slice(0, -1).every((l) => l.reason === 'steps'));
    assert.equal((await s.job(job.id)).exact.tier, 'bit');
  });
});

test('kill -9 of the worker at ten random moments', async (t) => {
  const random = randomSource(t);
  await withServer({}, async (s) => {
    await s.uploadChess();
    const job = await s.submit(five());
    let hit = 0;
    for (let nth = 1; hit < 10; nth++) {
      let open;
      try {
        open = await s.openLease(job.id, nth);
      } catch (e) {
        if (/is completed/.test(e.message)) break;
        throw e;
      }
      // Ten draws of at most a sixth of the run leave some of it for the tenth.
      await moment(random() * straight.seconds * 1000 / 6);
      if (signal(open.worker.pid, 'SIGKILL')) hit++;
      await until('the lease to end', async () => (await s.leases(job.id)).find((l) => l.id === open.lease.id).outcome);
    }
    const result = await s.result(job.id);
    const leases = await s.leases(job.id);
    const lost = leases.filter((l) => l.outcome === 'lost').length;
    t.diagnostic(`${lost} leases lost, ${leases.length} in all; steps reached: ${leases.map((l) => l.to_step).join(' ')}`);
    same(result, straight, 'kill -9');
    assert.ok(lost >= 8, `only ${lost} of the kills met a lease`);
    assert.ok(leases.filter((l) => l.outcome === 'lost').every((l) => /signal 9/.test(l.reason)), leases.map((l) => l.reason).join('; '));
    assert.equal((await s.job(job.id)).exact.tier, 'bit');
  });
});

test('kill -9 of pawld in mid-run, and a new one on the same state', async (t) => {
  const random = randomSource(t);
  await withServer({}, async (s) => {
    await s.uploadChess();
    const job = await s.submit(five());
    for (let round = 1; round <= 3; round++) {
      await s.waitJob(job.id, 'running', (j) => j.state === 'running' || j.state === 'completed');
      await moment(random() * straight.seconds * 250);
      await s.kill9();
      await s.launch();
    }
    const result = await s.result(job.id);
    const leases = await s.leases(job.id);
    t.diagnostic(`leases: ${leases.map((l) => `${l.outcome} ${l.from_step}-${l.to_step}`).join(', ')}`);
    same(result, straight, 'pawld killed');
    // A worker that holds a lease trains on while the server is away.
    assert.ok(leases.every((l) => l.outcome === 'finished' || l.outcome === 'yielded'), 'no lease was lost');
  });
});

test('driver memory that grows with each new shape, and a threshold', async (t) => {
  const env = { PAWL_MEMORY_PROBE: 'fake:start_mb=900,per_shape_mb=64,per_step_mb=0,recommended_mb=25559' };
  await withServer({ env }, async (s) => {
    await s.uploadChess();
    const job = await s.submit(five(thresholds({ device_memory_mb: 900 + 6 * 64 })));
    same(await s.result(job.id), straight, 'device memory');
    const leases = await s.leases(job.id);
    t.diagnostic(`leases end at steps ${leases.map((l) => `${l.to_step} (${l.reason})`).join(', ')}`);
    assert.ok(leases.length >= 3, `${leases.length} leases`);
    assert.ok(leases.slice(0, -1).every((l) => l.outcome === 'yielded' && ['memory', 'forecast'].includes(l.reason)));
    assert.ok(leases.every((l) => l.peak.device_bytes >= 900 * 2 ** 20), 'the peak is the driver\'s figure');
  });
});

test('all five left no process behind', async () => {
  await withServer({ workers: 2 }, async (s) => {
    await until('the workers', () => s.workerProcesses().length >= 2);
    assert.deepEqual(await s.terminate(), { code: 0, signal: null });
    await until('the last worker to go', () => s.processes().length === 0, { patience_ms: 10_000 });
  });
});

// Small runs at every edge. 400 records are 6 steps of 64 and one of 16; the
// buffer of 1,000 holds them all.
const edge = (patch = {}) => chessSpec({ training: { epochs: 2 }, runtime: { checkpoint_every: 0 }, ...patch });

for (const threads of [1, 2]) {
  test(`${threads} thread(s): a yield after every step, over the end of an epoch, with the last batch partial`, async () => {
    await withServer({}, async (s) => {
      await s.uploadChess({ shards: 1 });
      const one = await s.submit(edge({ runtime: { threads } }));
      const whole = await s.result(one.id);
      assert.equal(whole.job.progress.steps, 14);
      const two = await s.submit(edge({ runtime: { threads, restart: { every_micro_batches: 1 } } }));
      same(await s.result(two.id), whole, 'every step');
      const leases = await s.leases(two.id);
      assert.deepEqual(leases.map((l) => [l.from_step, l.to_step]), Array.from({ length: 14 }, (_, i) => [i, i + 1]));
      assert.equal((await s.job(two.id)).exact.tier, 'bit');
      assert.ok(leases.every((l) => l.fingerprint.threads === threads));
    });
  });
}

test('resumed at step 0, exactly at an epoch\'s end, before the last step, and at the last step with nothing left to do', async (t) => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const run = async () => {
      const w = await s.runWorker();
      assert.equal(w.code, 0, w.output);
    };
    const one = await s.submit(edge());
    await run();
    const whole = await s.result(one.id);

    // At step 0: a worker told to go while it still loads, then one that was given up
    // without a state.
    const zero = await s.submit(edge());
    const w = s.startWorker();
    await s.openLease(zero.id);
    signal(w.pid, 'SIGTERM');
    assert.equal((await w.ended).code, 0, w.output);
    const [first] = await s.leases(zero.id);
    t.diagnostic(`told to go while loading: ${first.outcome} at step ${first.to_step}`);
    const g = new FakeWorker(s);
    if (first.to_step === 0) {
      (await g.claim()).expect(201);
      assert.equal(g.lease.lease.job, zero.id);
      (await g.release('yielded', 'drain', 0)).expect(200);
    }
    await run();
    same(await s.result(zero.id), whole, 'step 0');
    const given = await s.submit(edge());
    (await g.reborn().claim()).expect(201);
    (await g.release('yielded', 'drain', 0)).expect(200);
    await run();
    same(await s.result(given.id), whole, 'step 0 without a state');
    assert.deepEqual((await s.leases(given.id)).map((l) => [l.from_step, l.to_step]), [[0, 0], [0, 14]]);

    // Thresholds that end a lease where we want it: 7 steps are 25 micro-batches.
    for (const [micro, step] of [[25, 7], [25 + 24, 13]]) {
      const job = await s.submit(edge({ runtime: { restart: { every_micro_batches: micro } } }));
      await run();
      const [first] = await s.leases(job.id);
      assert.deepEqual([first.outcome, first.to_step], ['yielded', step]);
      await run();
      if ((await s.job(job.id)).state !== 'completed') await run();
      same(await s.result(job.id), whole, `step ${step}`);
    }

    // At the last step: the state of the finished job, as if its release had been lost.
    const last = await s.submit(edge());
    const manifest = (await s.manifest((await s.checkpoints(one.id)).find((c) => c.step === 14).id));
    const f = new FakeWorker(s);
    (await f.claim()).expect(201);
    assert.equal(f.lease.lease.job, last.id);
    const m = { ...(manifest.manifest ?? manifest), fingerprint: f.lease.fingerprint, previous: null };
    (await f.checkpoint(m, { release: f.releaseBody('yielded', 'drain', 14) })).expect(201);
    await run();
    const done = await s.result(last.id);
    assert.equal(done.model, whole.model);
    assert.deepEqual((await s.leases(last.id)).map((l) => [l.outcome, l.from_step, l.to_step]), [['yielded', 0, 14], ['finished', 14, 14]]);
  });
});

test('micro-batch 16 and its threshold exactly at the last step finishes instead of yielding', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const job = await s.submit(edge({ training: { epochs: 1 }, runtime: { restart: { every_micro_batches: 25 } } }));
    const w = await s.runWorker();
    assert.equal(w.code, 0, w.output);
    assert.deepEqual((await s.leases(job.id)).map((l) => l.outcome), ['finished']);
    assert.equal((await s.job(job.id)).state, 'completed');
  });
});

test('SIGTERM to a worker: it saves, yields with reason drain and exits 0; seconds as a threshold', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess();
    const spec = chessSpec({ training: { epochs: 8 }, runtime: { checkpoint_every: 0 } });
    const w = s.startWorker();
    const job = await s.submit(spec);
    await s.openLease(job.id);
    await s.waitJob(job.id, 'past its first step', (j) => j.progress.step >= 1);
    signal(w.pid, 'SIGTERM');
    const end = await w.ended;
    assert.deepEqual([end.code, end.signal], [0, null], end.output);
    const [lease] = await s.leases(job.id);
    assert.deepEqual([lease.outcome, lease.reason], ['yielded', 'drain']);
    assert.ok(lease.to_step >= 1);
    assert.equal(lease.to_step, Math.max(...(await s.checkpoints(job.id)).map((c) => c.step)));
    (await s.patch(`/v1/jobs/${job.id}`, { runtime: { restart: { seconds: 0.2 } } })).expect(200);
    await s.runWorker();
    const second = (await s.leases(job.id))[1];
    if (second.outcome === 'yielded') assert.equal(second.reason, 'time');
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    await s.waitState(job.id, 'canceled');
    assert.ok(fs.existsSync(`${s.dir}/pawl.db`));
  });
});
