// A disk that fills up while a job trains: what is kept, what is said, and how it
// goes on. DIR lies on a file system of its own, in memory.
import test from 'node:test';
import assert from 'node:assert/strict';
import { chessSpec, merge, signal, smallDisk, until, withServer } from '../harness.mjs';

const MiB = 2 ** 20;
const SPARE = 16 * MiB; // the last of the disk, for heartbeats and releases; a WAL may give back some
const events = async (s, id, kind) => (await s.get(`/v1/jobs/${id}/events?limit=1000`)).expect(200).json.items.filter((e) => e.kind === kind);
const spec = chessSpec({ training: { epochs: 10 }, runtime: { checkpoint_every: 4 }, limits: { failures: 1, lost: 1, no_progress: 1 } });

async function onDisk(t, options, body) {
  const disk = smallDisk(50);
  if (!disk) return t.skip('no file system can be mounted here (needs root)');
  try {
    let whole;
    await withServer({}, async (s) => {
      await s.uploadChess({ shards: 1 });
      whole = await s.result((await s.submit(spec)).id);
    });
    await withServer({ ...options, dir: `${disk.dir}/state` }, async (s) => {
      await s.uploadChess({ shards: 1 });
      await body(s, disk, whole);
    });
  } finally {
    disk.done();
  }
}
const saved = (s, id) => until('a checkpoint', async () => { const l = await s.checkpoints(id); return l.length && l; });

test('RES-05: a disk that is full when a state is to be saved: the state before it stays, training goes on, the job waits for room and ends as if nothing had happened', { timeout: 600_000 }, async (t) => {
  await onDisk(t, { workers: 1 }, async (s, disk, whole) => {
    const job = await s.submit(spec);
    await saved(s, job.id);
    disk.fill(4 * MiB);
    // put off, with the number, while training goes on
    const told = await s.waitJob(job.id, 'told that there is no room', (j) => /^no room/.test(j.reason ?? ''));
    assert.equal(told.state, 'running');
    const [, of, missing, kept] = /^no room for the checkpoint of step (\d+): (\d+) bytes are missing; step (\d+)'s is kept$/.exec(told.reason) ?? assert.fail(told.reason);
    assert.ok(Number(missing) > MiB && Number(of) > Number(kept), told.reason);
    assert.equal(told.parked, null);
    const before = await s.checkpoints(job.id);
    assert.equal(Math.max(...before.map((c) => c.step)), Number(kept));
    await s.waitJob(job.id, 'further', (j) => j.progress.step >= Number(of) + 5);
    const [lease] = await s.leases(job.id);
    assert.equal(lease.outcome, null, 'heartbeats get through');
    assert.deepEqual((await s.checkpoints(job.id)).map((c) => c.id), before.map((c) => c.id));
    await s.wholeCheckpoints(job.id);
    assert.equal((await events(s, job.id, 'no_room')).length, 1, 'told once');

    // all is trained, and there is no room to keep it
    const parked = await s.waitJob(job.id, 'parked', (j) => j.parked);
    t.diagnostic(parked.reason);
    assert.equal(parked.state, 'queued');
    assert.equal(parked.cycle_state, 'waiting');
    assert.match(parked.reason, new RegExp(`^waits for room on disk for the checkpoint of step ${whole.job.progress.steps}: \\d+ bytes are missing; step ${kept}'s is kept$`));
    assert.ok(parked.reason.includes(String(parked.parked.missing_bytes)));
    assert.ok(Date.parse(parked.parked.since_at) <= Date.now());
    assert.deepEqual(parked.budgets, { failures: 0, lost: 0, no_progress: 0 });
    const [ended] = await s.leases(job.id);
    assert.equal(ended.outcome, 'failed');
    assert.equal(ended.error.code, 'no_space');
    assert.ok(ended.error.missing_bytes > MiB);
    assert.equal((await events(s, job.id, 'parked')).length, 1);

    // a restart changes nothing about it; a little room is not enough
    await s.terminate();
    await s.launch();
    assert.ok((await s.job(job.id)).parked);
    disk.free();
    disk.fill(SPARE + 512 * 1024);
    const less = await s.waitJob(job.id, 'told how much is missing by now', (j) => j.parked.missing_bytes < parked.parked.missing_bytes);
    assert.ok(less.reason.includes(String(less.parked.missing_bytes)));
    assert.equal((await s.leases(job.id)).length, 1);

    disk.free();
    const got = await s.result(job.id);
    assert.equal(got.model, whole.model);
    assert.deepEqual(got.series, whole.series);
    assert.equal((await events(s, job.id, 'unparked')).length, 1);
    const leases = await s.leases(job.id);
    assert.equal(leases.length, 2);
    assert.equal(leases[1].from_step, Number(kept), 'never back to scratch');
    assert.equal(got.job.parked, null);
  });
});

test('a worker that is told to end finds no room: its cycle is parked, and another goes on when there is', { timeout: 600_000 }, async (t) => {
  await onDisk(t, { workers: 0 }, async (s, disk, whole) => {
    const job = await s.submit(merge(spec, { runtime: { checkpoint_every: 0, restart: { every_micro_batches: 4 } } }));
    assert.equal((await s.runWorker()).code, 0);
    const [first] = await saved(s, job.id);
    (await s.patch(`/v1/jobs/${job.id}`, { runtime: { restart: { every_micro_batches: 0 } } })).expect(200);
    const w = s.startWorker({ args: ['--once'] });
    await s.waitJob(job.id, 'further', (j) => j.progress.step > first.step + 1);
    disk.fill(4 * MiB);
    signal(w.pid, 'SIGTERM');
    assert.equal((await w.ended).code, 0);
    const parked = await s.job(job.id);
    assert.ok(parked.parked.missing_bytes > 0, parked.reason);
    assert.equal((await s.runWorker()).code, 0); // nothing to do
    assert.equal((await s.leases(job.id)).length, 2);
    await s.wholeCheckpoints(job.id);
    disk.free();
    await s.waitJob(job.id, 'ready', (j) => /there is room again/.test(j.reason ?? ''));
    assert.equal((await s.runWorker()).code, 0);
    const got = await s.result(job.id);
    assert.equal(got.model, whole.model);
    assert.deepEqual(got.series, whole.series);
  });
});

test('what is freed while the worker still waits saves its state', { timeout: 600_000 }, async (t) => {
  await onDisk(t, { workers: 0 }, async (s, disk, whole) => {
    const job = await s.submit(merge(spec, { runtime: { checkpoint_every: 0 } }));
    const w = s.startWorker({ args: ['--once'] });
    await s.waitJob(job.id, 'under way', (j) => j.progress.step >= 1);
    disk.fill(4 * MiB);
    // all steps are trained, then it asks
    await s.waitJob(job.id, 'told that there is no room', (j) => /^no room .*there is none before it$/.test(j.reason ?? ''));
    disk.free();
    assert.equal((await w.ended).code, 0);
    const got = await s.result(job.id);
    assert.equal(got.model, whole.model);
    assert.equal((await s.leases(job.id)).length, 1);
  });
});
