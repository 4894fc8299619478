// Workers that hang: stopped processes stand for those that are stuck in a driver.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { chessSpec, signal, until, withServer } from '../harness.mjs';

const long = () => chessSpec({ training: { epochs: 40 }, runtime: { checkpoint_every: 8 } });

test('a worker that hangs is killed when its lease is lost, and the stand-by goes on', async () => {
  await withServer({ workers: 1 }, async (s) => {
    await s.uploadChess({ shards: 2 });
    const job = await s.submit(long());
    const first = await s.openLease(job.id);
    await s.waitJob(job.id, 'at step 5', (j) => j.progress.step >= 5);
    signal(first.worker.pid, 'SIGSTOP');
    const second = await s.openLease(job.id, 2);
    assert.notEqual(second.worker.pid, first.worker.pid);
    assert.ok(!fs.existsSync(`/proc/${first.worker.pid}`), 'the first is gone before the second begins');
    assert.match(s.log, /hangs, and its lease is lost: killed/);
    assert.equal((await s.leases(job.id))[0].outcome, 'lost');
    await s.waitJob(job.id, 'further', (j) => j.progress.step > second.lease.from_step);
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    await s.waitState(job.id, 'canceled');
  });
});

test('the server ends, although a worker hangs', async () => {
  await withServer({ workers: 1 }, async (s) => {
    await s.uploadChess({ shards: 2 });
    const job = await s.submit(long());
    const { worker } = await s.openLease(job.id);
    await s.waitJob(job.id, 'at step 5', (j) => j.progress.step >= 5);
    signal(worker.pid, 'SIGSTOP');
    const end = await s.terminate();
    assert.equal(end.code, 0, s.log);
    await until('the worker to be gone', () => !fs.existsSync(`/proc/${worker.pid}`));
  });
});
