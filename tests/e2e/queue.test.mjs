// Workers that die, and workers that come back from the dead.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { chessSpec, gone, signal, until, withServer } from '../harness.mjs';

// Long enough to be caught in the middle, on any machine.
const long = () => chessSpec({ training: { epochs: 60 }, runtime: { checkpoint_every: 4 } });

async function lostWorker() {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 2 });
    const job = await s.submit(long());
    const w = s.startWorker();
    await s.waitJob(job.id, 'at step 20', (j) => j.progress.step >= 20);
    signal(w.pid, 'SIGKILL');
    await w.ended;
    // Nobody else is there: within the lease's time the job waits again, and says why.
    const waiting = await s.waitJob(job.id, 'queued', (j) => j.state === 'queued', { patience_ms: 60_000 });
    assert.match(waiting.reason, /worker/);
    const [lost] = await s.leases(job.id);
    assert.equal(lost.outcome, 'lost');
    assert.ok(lost.ended_at);
    const at = Math.max(...(await s.checkpoints(job.id)).map((c) => c.step));
    assert.ok(at >= 15, `checkpoint at ${at}`);
    const next = s.startWorker();
    const { lease } = await s.openLease(job.id, 2);
    assert.equal(lease.from_step, at);
    await s.waitJob(job.id, 'further', (j) => j.progress.step > lost.to_step);
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    await s.waitState(job.id, 'canceled');
    await next.ended;
  });
}

async function stalledWorker() {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 2 });
    const job = await s.submit(long());
    const a = s.startWorker();
    await s.waitJob(job.id, 'at step 5', (j) => j.progress.step >= 5);
    signal(a.pid, 'SIGSTOP');
    try {
      await s.waitJob(job.id, 'queued', (j) => j.state === 'queued', { patience_ms: 90_000 });
      const b = s.startWorker();
      const second = await s.openLease(job.id, 2);
      const [lost] = await s.leases(job.id);
      await s.waitJob(job.id, '10 steps on', (j) => j.progress.step >= second.lease.from_step + 10);
      signal(a.pid, 'SIGCONT');
      const end = await a.ended;
      assert.equal(end.signal, null, end.output);
      const leases = await s.leases(job.id);
      assert.deepEqual(leases.map((l) => l.outcome ?? null), ['lost', null], 'B still holds the job');
      assert.deepEqual(leases[0], lost, 'nothing of A\'s was taken');
      // What is newest comes from B.
      const newest = (await s.checkpoints(job.id)).sort((x, y) => y.step - x.step)[0];
      assert.ok(newest.step > second.lease.from_step);
      (await s.post(`/v1/jobs/${job.id}/pause`)).expect(200);
      await b.ended;
      await s.waitState(job.id, 'paused');
      assert.equal((await s.leases(job.id)).length, 2);
    } finally {
      signal(a.pid, 'SIGCONT');
    }
  });
}

// Both wait for a lease's 30 s to pass: side by side.
test('leases that expire', { concurrency: true }, (t) => Promise.all([
  t.test('QUE-01: a worker that dies loses its lease, the job says so, and the next goes on from the checkpoint', lostWorker),
  t.test('QUE-03: a stalled worker that comes back is refused everywhere and ends by itself', stalledWorker),
]));

test('QUE-01: of a local worker the death is seen at once, and another takes over by itself', async () => {
  await withServer({}, async (s) => {
    await s.uploadChess({ shards: 2 });
    const job = await s.submit(long());
    const { worker } = await s.openLease(job.id);
    await s.waitJob(job.id, 'at work', (j) => j.progress.step >= 4);
    const begin = Date.now();
    signal(worker.pid, 'SIGKILL');
    const second = await s.openLease(job.id, 2);
    assert.ok(Date.now() - begin < 15_000, `${Date.now() - begin} ms`);
    assert.notEqual(second.worker.pid, worker.pid);
    assert.ok(second.lease.from_step >= 1);
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    await s.waitState(job.id, 'canceled');
  });
});

test('a restarted server adopts its workers, counts them, and sees their deaths', async () => {
  await withServer({ workers: 1 }, async (s) => {
    await s.uploadChess({ shards: 2 });
    const job = await s.submit(long());
    const { worker } = await s.openLease(job.id);
    await s.kill9();
    assert.ok(fs.existsSync(`/proc/${worker.pid}`), 'it trains on');
    await s.launch();
    const v = (await s.job(job.id)).progress.step;
    await s.waitJob(job.id, 'further', (j) => j.progress.step > v);
    assert.equal((await s.openLease(job.id)).worker.pid, worker.pid);
    const trainers = (await s.workers()).filter((w) => w.lease || w.job || w.state === 'training');
    assert.ok(trainers.length <= 1, JSON.stringify(trainers));
    signal(worker.pid, 'SIGKILL');
    const second = await s.openLease(job.id, 2);
    assert.notEqual(second.worker.pid, worker.pid);
    assert.equal((await s.leases(job.id))[0].outcome, 'lost');
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    await s.waitState(job.id, 'canceled');
  });
});

test('workers without a lease end when their server is gone for good', async () => {
  await withServer({ workers: 2 }, async (s) => {
    const all = await until('two workers and the stand-by', () => {
      const w = s.workerProcesses();
      return w.length >= 3 && w;
    });
    await s.kill9();
    for (const w of all) await gone(w.pid);
    await s.launch();
    (await s.get('/v1/jobs')).expect(200);
  });
});

test('cancel: the worker stops within a step, and nothing brings the job back', async () => {
  await withServer({}, async (s) => {
    await s.uploadChess({ shards: 2 });
    const job = await s.submit(long());
    await s.openLease(job.id);
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    await s.waitState(job.id, 'canceled');
    const [lease] = await until('the lease to end', async () => { const l = await s.leases(job.id); return l[0].outcome && l; });
    assert.ok(lease.outcome);
    assert.equal((await s.job(job.id)).state, 'canceled');
    (await s.delete(`/v1/jobs/${job.id}`)).expect(204);
  });
});

test('workers that were still loading when their server was killed claim nothing from the next one', async () => {
  await withServer({}, async (s) => {
    await s.uploadChess({ shards: 2 });
    for (let i = 0; i < 4; i++) await s.submit(long());
    for (let i = 0; i < 4; i++) {
      // Killed as soon as the processes are there: they load for longer than that.
      await until('workers that load', () => s.workerProcesses().length >= 2);
      await s.kill9();
      await s.launch();
    }
    await until('one worker at work', async () => (await s.get('/v1/jobs?state=running')).json.items.length >= 1);
    await until('one worker and its stand-by, and no others', () => s.workerProcesses().length <= 2);
    assert.equal((await s.get('/v1/jobs?state=running')).json.items.length, 1);
  });
});
