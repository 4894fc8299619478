// Memory that grows, and processes that are gone.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { bin, chessSpec, jsonl, root, signal, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

test('MEM-01: driver memory that climbs with every new shape pauses the job; the model is as without a threshold', async (t) => {
  // 200 records of lengths 8, 16 … 1600
  const records = jsonl(Array.from({ length: 200 }, (_, i) => ({
    x: Array.from({ length: 8 * (i + 1) }, (__, k) => (i + k) % 16), legal: [[i % 16], [3]], policy: [0.5, 0.5], value: (i % 10) / 10,
  })));
  const spec = (restart) => tinySpec({
    model: { max_length: 1600 },
    training: { effective_batch: 4, shuffle: { size: 50 } },
    runtime: { micro_batch: 1, padding: { mode: 'dynamic' }, restart },
  });
  const env = { PAWL_MEMORY_PROBE: 'fake:start_mb=900,per_shape_mb=64,per_step_mb=0,recommended_mb=25559' };
  await withServer({ env }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': records });
    const whole = await s.result((await s.submit(spec({ device_memory_mb: 0 }))).id);
    assert.equal((await s.leases(whole.job.id)).length, 1);
    const job = await s.submit(spec({ device_memory_mb: 2048 }));
    const got = await s.result(job.id);
    assert.equal(got.model, whole.model);
    assert.deepEqual(got.series, whole.series);
    const leases = await s.leases(job.id);
    t.diagnostic(`${leases.length} leases; peaks of ${leases.map((l) => Math.round(l.peak.device_bytes / 2 ** 20)).join(' ')} MB`);
    assert.ok(leases.length >= 5);
    const yields = leases.filter((l) => l.outcome === 'yielded');
    assert.equal(yields.length, leases.length - 1);
    for (const l of yields) {
      assert.ok(['memory', 'forecast'].includes(l.reason));
      assert.ok(l.peak.device_bytes <= (2048 + 4 * 64) * 2 ** 20, 'stopped at the step that crossed it');
      assert.ok(l.peak.rss_bytes < 1024 * 2 ** 20, 'by the driver\'s figure, not by the RSS');
    }
    // All three levels are kept with the job.
    const memory = (await s.get(`/v1/jobs/${job.id}/memory`)).expect(200).text;
    assert.match(memory, /device_bytes/);
    assert.match(memory, /rss_bytes/);
  });
});

test('RSS as a threshold on the CPU: it pauses, resumes and ends with the same model', async () => {
  await withServer({}, async (s) => {
    await s.uploadChess({ shards: 1 });
    const base = chessSpec({ training: { epochs: 1 }, runtime: { checkpoint_every: 0 } });
    const whole = await s.result((await s.submit(base)).id);
    const [lease] = await s.leases(whole.job.id);
    const rss = lease.peak.rss_bytes / 2 ** 20;
    assert.ok(rss > 50, `${rss} MB`);
    const job = await s.submit({ ...base, runtime: { ...base.runtime, restart: { rss_mb: Math.ceil(rss * 4) } } });
    assert.equal((await s.result(job.id)).model, whole.model);
    assert.equal((await s.leases(job.id)).length, 1, 'a threshold that is never reached stops nothing');
  });
});

test('MEM-05: killed by hand: signal 9, cause unknown', async () => {
  await withServer({}, async (s) => {
    await s.uploadChess({ shards: 1 });
    const job = await s.submit(chessSpec({ training: { epochs: 50 } }));
    const { worker } = await s.openLease(job.id);
    signal(worker.pid, 'SIGKILL');
    const lost = await until('the lost lease', async () => (await s.leases(job.id)).find((l) => l.outcome === 'lost'));
    assert.match(lost.reason, /signal 9/);
    assert.match(lost.reason, /unknown/);
    assert.doesNotMatch(lost.reason, /137/);
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    await s.waitState(job.id, 'canceled');
  });
});

// A folder with pawld and, in pawl-worker's place, a program that claims a
// lease and then does what `then` says.
function withOtherWorker(then) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-bin-'));
  fs.copyFileSync(path.join(bin, 'pawld'), path.join(dir, 'pawld'));
  fs.writeFileSync(path.join(dir, 'pawl-worker'), `#!${process.execPath}
(async () => {
  const { FakeWorker } = await import(${JSON.stringify(path.join(root, 'tests', 'fake_worker.mjs'))});
  const { request } = await import(${JSON.stringify(path.join(root, 'tests', 'harness.mjs'))});
  const fs = await import('node:fs');
  const dir = process.argv[process.argv.indexOf('--state') + 1];
  if (process.argv.includes('--standby'))
    await new Promise((go) => process.stdin.once('data', go).once('end', () => process.exit(0)));
  const url = fs.readFileSync(dir + '/url', 'utf8').trim(), token = fs.readFileSync(dir + '/token', 'utf8').trim();
  const post = (path, body) => request(url, { method: 'POST', path, body: JSON.stringify(body),
    headers: { Authorization: 'Bearer ' + token, 'Content-Type': 'application/json' } });
  const w = new FakeWorker({ post }, { pid: process.pid });
  w.identity.local = true;
  for (;;) {
    const r = await w.claim({ wait: 20 });
    if (r.status === 201) break;
    if (r.status !== 204) process.exit(1);
  }
  ${then}
})();
`, { mode: 0o755 });
  return dir;
}

test('MEM-05: a worker that exits with 137 by itself is not called killed', async () => {
  const programs = withOtherWorker('process.exit(137);');
  try {
    await withServer({ programs }, async (s) => {
      await s.upload('tiny', { 'a.jsonl': tinyShard(8) });
      const job = await s.submit(tinySpec({ limits: { lost: 1 } }));
      const lost = await until('the lost lease', async () => (await s.leases(job.id)).find((l) => l.outcome));
      assert.equal(lost.outcome, 'lost');
      assert.match(lost.reason, /137/);
      assert.doesNotMatch(lost.reason, /signal 9|killed/);
      await s.failed(job.id);
    });
  } finally {
    fs.rmSync(programs, { recursive: true });
  }
});

// A cgroup with a memory limit, of either version, where the kernel lets us make one.
function memoryGroup(mb) {
  const limit = String(mb * 2 ** 20);
  const kinds = [
    { at: '/sys/fs/cgroup', set: { 'memory.max': limit, 'memory.swap.max': '0' } },
    { at: '/sys/fs/cgroup/memory', set: { 'memory.limit_in_bytes': limit } },
  ];
  for (const { at, set } of kinds) {
    const dir = `${at}/pawl-test-${process.pid}`;
    try {
      fs.mkdirSync(dir);
      if (!fs.existsSync(`${dir}/${Object.keys(set)[0]}`)) throw new Error('no memory controller');
      for (const [name, value] of Object.entries(set)) if (fs.existsSync(`${dir}/${name}`)) fs.writeFileSync(`${dir}/${name}`, value);
      return dir;
    } catch {
      try { fs.rmdirSync(dir); } catch { /* was not made */ }
    }
  }
  return null;
}

test('MEM-05: killed by the kernel at a memory limit: confirmed, with the evidence', async (t) => {
  const group = memoryGroup(300);
  if (!group) return t.skip('no cgroup with a memory limit can be made here');
  const programs = withOtherWorker(`
    fs.writeFileSync(${JSON.stringify(`${group}/cgroup.procs`)}, String(process.pid));
    const kept = [];
    for (let i = 0; i < 600; i++) kept.push(Buffer.alloc(1 << 20, 1));
    process.exit(kept.length);
  `);
  try {
    await withServer({ programs }, async (s) => {
      await s.upload('tiny', { 'a.jsonl': tinyShard(8) });
      const job = await s.submit(tinySpec({ limits: { lost: 1 } }));
      const lost = await until('the lost lease', async () => (await s.leases(job.id)).find((l) => l.outcome));
      assert.equal(lost.outcome, 'lost');
      assert.match(lost.reason, /out-of-memory/);
      assert.match(lost.evidence, /Killed process|oom_kill/);
      assert.doesNotMatch(lost.reason, /unknown/);
      await s.failed(job.id);
    });
  } finally {
    fs.rmSync(programs, { recursive: true });
    await until('the group to be empty', () => { try { fs.rmdirSync(group); return true; } catch { return !fs.existsSync(group); } });
  }
});

test('MEM-06: with 5 % of memory left over the peak of training, a save streams instead of taking a copy', async (t) => {
  if (spawnSync('prlimit', ['--version']).error) return t.skip('no prlimit here');
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(160) });
    // a state of 145 MB, several times what is left; long enough for a policy,
    // which comes with a heartbeat, to be heard well before the end
    const spec = tinySpec({ model: { d_model: 512, layers: 4, heads: 4, ff: 2048 }, training: { epochs: 2 }, runtime: { checkpoint_every: 0 } });
    const one = await s.submit(spec);
    assert.equal((await s.runWorker()).code, 0);
    const whole = await s.result(one.id);
    const lines = async (id) => (await s.get(`/v1/jobs/${id}/logs?limit=1000`)).expect(200).json.items.map((l) => l.text);
    assert.ok(!(await lines(one.id)).some((l) => /training waits for its saves/.test(l)));

    const job = await s.submit(spec);
    const w = s.startWorker({ args: ['--once'] });
    await s.waitJob(job.id, 'under way', (j) => j.progress.step >= 5);
    const peak = 1024 * Number(/^VmPeak:\s+(\d+)/m.exec(fs.readFileSync(`/proc/${w.pid}/status`, 'latin1'))[1]);
    const cap = Math.round(peak * 1.05);
    const r = spawnSync('prlimit', ['--pid', String(w.pid), `--as=${cap}`], { encoding: 'utf8' });
    assert.equal(r.status, 0, r.stderr);
    (await s.patch(`/v1/jobs/${job.id}`, { runtime: { checkpoint_every: 1 } })).expect(200);
    const [first] = await until('a checkpoint', async () => { const l = await s.checkpoints(job.id); return l.length && l; });
    const back = await s.patch(`/v1/jobs/${job.id}`, { runtime: { checkpoint_every: 0 } });
    if (back.status !== 409) back.expect(200); // it may be over by now
    assert.ok(first.bytes > peak * 0.05, `${first.bytes} bytes with ${cap - peak} left`);
    const end = await w.ended;
    assert.equal(end.code, 0, end.output);
    const said = await lines(job.id);
    t.diagnostic(said.find((l) => /training waits/.test(l)));
    assert.ok(said.some((l) => /training waits for its saves: the state, \d+ MB, is not copied, for a copy of it wants \d+ MB, .* this process's limits leave \d+ MB$/.test(l)), said.join('\n'));
    const got = await s.result(job.id);
    assert.equal(got.model, whole.model);
    assert.deepEqual(got.series, whole.series);
    assert.equal((await s.leases(job.id)).length, 1);
    await s.wholeCheckpoints(job.id);
  });
});
