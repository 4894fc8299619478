// A state folder that an older version left, under today's programs.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { bin, root, Server, sha256, signal, until } from '../harness.mjs';
import { stateJobs } from '../fixtures/state_jobs.mjs';

// Folders that versions of then left: schema 1, and schema 4 with a job that was
// running when the power went.
const states = [1, 4].map((schema) => {
  const folder = path.join(root, 'tests', 'fixtures', `state-v${schema}`);
  return { schema, folder, expected: JSON.parse(fs.readFileSync(path.join(folder, 'expected.json'), 'utf8')) };
});
const { folder: old, expected } = states[0];
const sqlite = (file, ...sql) => {
  const r = spawnSync('sqlite3', [file, ...sql], { encoding: 'utf8', maxBuffer: 2 ** 28 });
  assert.equal(r.status, 0, r.stderr);
  return r.stdout.trim();
};
const version = (file) => Number(sqlite(file, 'PRAGMA user_version'));

function copyOf(folder, where = os.tmpdir()) {
  const dir = fs.mkdtempSync(path.join(where, 'pawl-test-'));
  fs.cpSync(folder, dir, { recursive: true });
  return dir;
}

// A server on a copy of an old state, which goes with it.
async function withOld(folder, options, body) {
  const dir = copyOf(folder);
  let s;
  try {
    s = await Server.start({ workers: 0, dir, ...options });
    return await body(s);
  } catch (e) {
    if (s) e.message += `\n--- log of pawld\n${s.log.slice(-3000)}`;
    throw e;
  } finally {
    await s?.stop();
    fs.rmSync(dir, { recursive: true, force: true });
  }
}

for (const { schema, folder, expected } of states) test(`a state of schema ${schema} goes on: what was queued, and what was half done, come to the model of then`, async (t) => {
  await withOld(folder, { args: ['--lease', '2'] }, async (s) => { // what ran had a worker elsewhere
    const was = expected.jobs;
    for (const [name, j] of Object.entries(was)) {
      const now = await s.job(j.id);
      if (name === 'running') now.state = j.state; // its worker is gone: it may have been seen to be
      for (const field of ['name', 'kind', 'state', 'signature', 'priority', 'created_at', 'started_at', 'ended_at', 'model_sha256'])
        assert.deepEqual(now[field], j[field], `${name}: ${field}`);
      assert.equal(now.progress.step, j.progress.step);
    }
    // what was answered then: series to the last digit, the model's bytes, states
    const done = was.interrupted.id;
    assert.deepEqual((await s.result(done)).series, expected.series);
    for (const [name, list] of Object.entries(expected.checkpoints)) {
      const now = await s.checkpoints(was[name].id);
      assert.deepEqual(now.map((c) => [c.id, c.digest, c.step]), list.map((c) => [c.id, c.digest, c.step]), name);
      for (const c of now) (await s.get(`/v1/checkpoints/${c.id}/state`)).expect(200);
    }
    // a key of then gets the answer of then
    const again = await s.post('/v1/jobs', { ...stateJobs.spec, name: 'queued', priority: 5 }, { 'Idempotency-Key': 'k-queued' });
    assert.equal(again.expect(201).json.id, was.queued.id);

    (await s.post(`/v1/jobs/${was.paused.id}/resume`)).expect(200);
    const fresh = await s.submit({ ...stateJobs.spec, name: 'fresh' });
    await until('all to be trained', async () => {
      await s.runWorker();
      return ['completed', 'failed'].includes((await s.job(fresh.id)).state);
    });
    const whole = await s.result(fresh.id);
    const [lease] = await s.leases(fresh.id);
    const [resumed] = (await s.leases(was.paused.id)).slice(-1);
    assert.equal(resumed.from_step, 4, 'from the state that was saved then');
    assert.equal((await s.result(was.queued.id)).model, whole.model);
    assert.deepEqual((await s.result(was.queued.id)).series, whole.series);
    // The same bits as then need the same machine; another one says so.
    const same = Object.keys(expected.fingerprint).every((k) => JSON.stringify(lease.fingerprint[k]) === JSON.stringify(expected.fingerprint[k]));
    t.diagnostic(same ? 'as on the machine of then' : 'on another machine than then');
    const paused = await s.result(was.paused.id);
    assert.equal(paused.job.exact.tier, same ? 'bit' : 'order');
    if (same) {
      assert.equal(whole.model, expected.model);
      assert.deepEqual(whole.series, expected.series);
      assert.equal(paused.model, expected.model);
    }
    if (was.running) {
      await until('what ran to be trained', async () => (await s.job(was.running.id)).state === 'completed' || (await s.runWorker(), false));
      const leases = await s.leases(was.running.id);
      assert.deepEqual(leases.map((l) => [l.outcome, l.from_step]), [['yielded', 0], ['lost', 4], ['finished', 4]]);
      const end = await s.result(was.running.id);
      assert.equal(end.job.exact.tier, same ? 'bit' : 'order');
      if (same) {
        assert.equal(end.model, expected.model);
        assert.deepEqual(end.series, expected.series);
      }
    }
    // shards as they were uploaded: the same text again is no other one, other text is
    for (const { name } of (await s.get('/v1/datasets')).expect(200).json.items) {
      for (const file of fs.readdirSync(`${folder}/datasets/${name}`)) {
        const at = `/v1/datasets/${name}/shards/${file}`;
        const bytes = fs.readFileSync(`${folder}/datasets/${name}/${file}`);
        assert.deepEqual((await s.get(at)).expect(200).body, bytes);
        (await s.put(at, bytes)).expect(200);
        (await s.put(at, Buffer.concat([bytes, bytes]))).expect(409);
      }
    }
    // the one behind a failed job still waits, and goes when that is retried: its data is still bad
    assert.equal((await s.job(was.behind.id)).state, 'queued');
    assert.match((await s.job(was.behind.id)).reason, new RegExp(`job ${was.broken.id}\\b`));
  });
});

for (const { schema, folder, expected } of states) test(`the state before the upgrade is kept, as the version of schema ${schema} can open it`, async () => {
  await withOld(folder, {}, async (s) => {
    await s.terminate();
    const copy = `${s.dir}/pawl.db.v${schema}`;
    assert.ok(version(`${s.dir}/pawl.db`) > schema);
    assert.equal(version(copy), schema);
    assert.equal(sqlite(copy, '.dump'), sqlite(`${folder}/pawl.db`, '.dump'), 'row for row');
    assert.equal(sqlite(copy, 'PRAGMA integrity_check'), 'ok');
    // put back it is an old state again, and can be upgraded once more
    fs.rmSync(`${s.dir}/pawl.db`);
    fs.copyFileSync(copy, `${s.dir}/pawl.db`);
    await s.launch();
    assert.equal((await s.job(expected.jobs.queued.id)).state, 'queued');
  });
});

test('a newer state is refused by name and left as it is', async () => {
  const dir = copyOf(old);
  try {
    sqlite(`${dir}/pawl.db`, 'PRAGMA user_version = 41');
    const before = sha256(fs.readFileSync(`${dir}/pawl.db`));
    const r = spawnSync(`${bin}/pawld`, ['--state', dir, '--workers', '0', '--listen', '127.0.0.1:0'], { encoding: 'utf8', timeout: 30_000 });
    assert.equal(r.status, 1);
    assert.match(r.stderr, /pawl\.db was written by a newer pawld \(schema 41;/);
    assert.equal(r.stdout, '');
    assert.equal(sha256(fs.readFileSync(`${dir}/pawl.db`)), before);
    assert.deepEqual(fs.readdirSync(dir).filter((f) => /pawl\.db\.v/.test(f)), []);
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});

// Killed at any system call that writes, cuts, syncs or renames: the old state or
// the new one, and the next start makes the new one of it.
test('an upgrade killed half-way leaves the old state or the new one', async (t) => {
  const tried = spawnSync('strace', ['-qq', '-e', 'inject=write:signal=SIGKILL:when=1', 'sh', '-c', 'echo no']);
  if (tried.signal !== 'SIGKILL') return t.skip('strace is not here, or may not kill');
  const calls = 'pwrite64,write,fsync,fdatasync,ftruncate,rename,unlink';
  const was = sqlite(`${old}/pawl.db`, '.dump');
  const count = { old: 0, new: 0 };
  const stride = process.env.TEST_LONG ? 1 : 3;
  for (let n = 1; ; n += stride) {
    const dir = copyOf(old, fs.existsSync('/dev/shm') ? '/dev/shm' : os.tmpdir());
    try {
      // -D: the child is pawld itself, and strace its grandchild
      const child = spawn('strace', ['-D', '-f', '-qq', '-o', '/dev/null', '-e', `trace=${calls}`, '-e', `inject=${calls}:signal=SIGKILL:when=${n}`,
        `${bin}/pawld`, '--state', dir, '--workers', '0', '--listen', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'inherit'] });
      let said = '';
      child.stdout.on('data', (d) => { said += d; if (/^open /m.test(said)) signal(child.pid, 'SIGTERM'); });
      await new Promise((done) => child.on('close', done));
      const v = version(`${dir}/pawl.db`);
      const dump = sqlite(`${dir}/pawl.db`, '.dump');
      if (v === 1) { count.old++; assert.equal(dump, was, `call ${n}: version 1, but changed`); }
      else {
        count.new++;
        assert.equal(sqlite(`${dir}/pawl.db.v1`, '.dump'), was, `call ${n}: the copy`);
      }
      assert.equal(sqlite(`${dir}/pawl.db`, 'PRAGMA integrity_check'), 'ok');
      const s = await Server.start({ workers: 0, dir });
      try {
        assert.equal((await s.job(expected.jobs.queued.id)).state, 'queued');
        assert.equal(sqlite(`${dir}/pawl.db.v1`, '.dump'), was);
        assert.deepEqual(fs.readdirSync(dir).filter((f) => /part$/.test(f)), []);
      } finally { await s.stop(); }
      if (/^open /m.test(said)) break;
    } finally {
      fs.rmSync(dir, { recursive: true, force: true });
    }
  }
  t.diagnostic(`${count.old} old, ${count.new} new`);
  assert.ok(count.old >= 3 && count.new >= 1, JSON.stringify(count));
});
