// Real workers that are asked to go, and what they offer.
import test from 'node:test';
import assert from 'node:assert/strict';
import os from 'node:os';
import { chessSpec, until, withServer } from '../harness.mjs';

const chess = (patch = {}) => chessSpec({ training: { epochs: 8 }, runtime: { checkpoint_every: 0 }, ...patch });

test('a drained worker saves, yields and ends; another process goes on; one that waits ends at once', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess();
    const job = await s.submit(chess());
    const w = s.startWorker({ args: ['--name', 'first'] });
    const { worker } = await s.openLease(job.id);
    await s.waitJob(job.id, 'past its first step', (j) => j.progress.step >= 1);
    (await s.post(`/v1/workers/${worker.id}/drain`)).expect(200);
    const end = await w.ended;
    assert.deepEqual([end.code, end.signal], [0, null], end.output);
    const [lease] = await s.leases(job.id);
    assert.deepEqual([lease.outcome, lease.reason, lease.detail], ['yielded', 'drain', 'the worker is drained']);
    assert.equal(lease.to_step, Math.max(...(await s.checkpoints(job.id)).map((c) => c.step)), 'nothing it did is lost');
    assert.deepEqual((await s.job(job.id)).budgets, { failures: 0, lost: 0, no_progress: 0 });

    const next = s.startWorker({ args: ['--name', 'second'] });
    await s.openLease(job.id, 2);
    assert.equal((await s.leases(job.id))[1].from_step, lease.to_step);
    // While that one trains, a third waits for work: nothing keeps it.
    const idle = s.startWorker({ args: ['--name', 'third'] });
    const row = await until('the third', async () => (await s.workers()).find((x) => x.name === 'third'));
    (await s.post(`/v1/workers/${row.id}/drain`)).expect(200);
    const gone = await idle.ended;
    assert.deepEqual([gone.code, gone.signal], [0, null], gone.output);
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    await s.waitState(job.id, 'canceled');
    await next.ended;
  });
});

test('a drained local worker has a successor, and the job loses nothing', async () => {
  await withServer({ workers: 1 }, async (s) => {
    await s.uploadChess();
    const job = await s.submit(chess({ training: { epochs: 4 } }));
    const { worker } = await s.openLease(job.id);
    await s.waitJob(job.id, 'past its first step', (j) => j.progress.step >= 1);
    (await s.post(`/v1/workers/${worker.id}/drain`)).expect(200);
    await s.completed(job.id);
    const all = await s.leases(job.id);
    assert.deepEqual(all.map((l) => l.outcome), ['yielded', 'finished']);
    assert.equal(all[1].from_step, all[0].to_step);
  });
});

test('labels from flags and the environment; memory as the host has it', async () => {
  await withServer({ workers: 1, env: { PAWL_WORKER_LABELS: 'room=b,gpu=none' } }, async (s) => {
    const local = await until('the local worker', async () => (await s.workers())[0]);
    assert.deepEqual(local.labels, { room: 'b', gpu: 'none' });
    assert.ok(local.memory_bytes > 2 ** 28 && local.memory_bytes <= os.totalmem() * 1.01, `${local.memory_bytes}`);
    await s.uploadChess();
    const job = await s.submit(chess({ training: { epochs: 1 }, runtime: { resources: { labels: { gpu: 'a=100', room: 'b' } } } }));
    await s.waitJob(job.id, 'told', (j) => /lacks the label gpu=a=100 \(it has gpu=none\)/.test(j.reason ?? ''));
    const w = s.startWorker({ args: ['--label', 'gpu=a=100', '--name', 'fits'] });
    await s.completed(job.id);
    assert.deepEqual((await s.leases(job.id)).map((l) => l.worker), ['fits']);
    assert.equal((await w.ended).code, 0);
    const wrong = await s.startWorker({ args: ['--label', 'gpu'] }).ended;
    assert.equal(wrong.code, 2);
    assert.match(wrong.output, /--label is not KEY=VALUE: gpu/);
    const variable = await s.startWorker({ env: { PAWL_WORKER_LABELS: 'a=1,b' } }).ended;
    assert.equal(variable.code, 2);
    assert.match(variable.output, /PAWL_WORKER_LABELS is not KEY=VALUE,…: b/);
  });
});

test('a probe that local workers cannot read is told to the job that waits for them', async () => {
  await withServer({ workers: 1, env: { PAWL_MEMORY_PROBE: 'fake:start_mb=much' } }, async (s) => {
    await s.uploadChess();
    const job = await s.submit(chess());
    const told = await s.waitJob(job.id, 'told', (j) => /end at once/.test(j.reason ?? ''));
    assert.match(told.reason, /the server's workers end at once: the last one exited with 2 by itself: .*PAWL_MEMORY_PROBE/);
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
  });
});
