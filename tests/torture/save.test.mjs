// Kill what writes, fill the disk it writes to, again and again at moments that
// a seed picks: what can be read afterwards is whole, and the result the same.
// A sample in deploy/check; `--long` draws more.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { chessSpec, moment, randomSource, signal, smallDisk, tinyShard, until, withServer } from '../harness.mjs';

const rounds = process.env.TEST_LONG ? 100 : 8;
// A checkpoint after every step: most of the time is saving.
const spec = (epochs) => chessSpec({ training: { epochs }, runtime: { checkpoint_every: 1 }, limits: { lost: 10_000, no_progress: 10_000 } });

for (const whom of ['the worker', 'pawld', 'both']) {
  test(`kill -9 of ${whom} at random moments while it saves`, { timeout: 1_200_000 }, async (t) => {
    const random = randomSource(t);
    await withServer({}, async (s) => {
      await s.uploadChess({ shards: 1 });
      const whole = await s.result((await s.submit(spec(3))).id);
      const job = await s.submit(spec(3));
      let killed = 0;
      for (let round = 1; round <= rounds; round++) {
        if ((await s.job(job.id)).state === 'completed') break;
        let open;
        try { open = await s.openLease(job.id); } catch { break; }
        // Mostly once it trains: workers that die before they save anything wait longer
        // and longer for the next one.
        if (random() < 0.8) await until('a step', async () => (await s.leases(job.id)).some((l) => l.id === open.lease.id && (l.outcome || l.to_step > l.from_step)));
        await moment(random() * 150);
        if (whom !== 'pawld' && signal(open.worker.pid, 'SIGKILL')) killed++;
        if (whom !== 'the worker') {
          await s.kill9();
          killed++;
          await s.launch();
        }
        const list = await s.wholeCheckpoints(job.id);
        const at = Math.max(0, ...list.map((c) => c.step));
        const next = await until('the next lease', async () => {
          const j = await s.job(job.id);
          if (j.state === 'completed') return { from_step: Infinity };
          return (await s.leases(job.id)).find((l) => !l.outcome && (whom === 'pawld' || l.id > open.lease.id));
        });
        if (whom !== 'pawld') assert.ok(next.from_step >= at, `checkpoint at ${at}, resumed at ${next.from_step}`);
      }
      const got = await s.result(job.id);
      t.diagnostic(`${killed} kills, ${(await s.leases(job.id)).length} leases`);
      assert.equal(got.model, whole.model);
      assert.deepEqual(got.series, whole.series);
    });
  });
}

test('a disk that fills up while saving: the checkpoint before it stays, the job goes on when there is room', { timeout: 600_000 }, async (t) => {
  const disk = smallDisk(48);
  if (!disk) return t.skip('no tmpfs can be mounted here (needs root)');
  try {
    let whole;
    await withServer({}, async (s) => {
      await s.uploadChess({ shards: 1 });
      whole = await s.result((await s.submit(spec(3))).id);
    });
    await withServer({ dir: `${disk.dir}/state` }, async (s) => {
      await s.uploadChess({ shards: 1 });
      const job = await s.submit(spec(3));
      await s.waitJob(job.id, 'past its first checkpoint', (j) => j.progress.step >= 2);
      // All that is left of the disk goes to somebody else.
      disk.fill();
      // Uploads say so, with the status for it, and leave nothing.
      const r = await s.put('/v1/datasets/more/shards/a.jsonl', tinyShard(50_000));
      assert.ok([507, 500, 503].includes(r.status), `${r.status} ${r.text}`);
      assert.ok(!fs.existsSync(`${s.dir}/datasets/more/a.jsonl`));
      await moment(500);
      disk.free();
      const end = await until('the end of the job', async () => {
        const j = await s.job(job.id);
        if (j.state === 'failed') { // a full disk may use up the budget: the state is kept
          t.diagnostic(j.reason);
          await s.wholeCheckpoints(job.id);
          (await s.post(`/v1/jobs/${job.id}/retry`)).expect(200);
        }
        return j.state === 'completed' && j;
      });
      assert.equal(end.model_sha256, whole.model);
      assert.deepEqual(await s.series(job.id), whole.series);
      const leases = await s.leases(job.id);
      t.diagnostic(leases.map((l) => `${l.from_step}-${l.to_step} ${l.outcome} (${l.reason})`).join('; '));
      leases.slice(1).forEach((l) => assert.ok(l.from_step > 0, 'never back to scratch'));
    });
  } finally {
    disk.done();
  }
});
