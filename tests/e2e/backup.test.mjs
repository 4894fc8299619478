// A copy of the state while jobs run, and what a second server makes of it.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { FakeWorker, madeUp } from '../fake_worker.mjs';
import { chessSpec, merge, Server, sha256, smallDisk, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

const sqlite = (file, ...sql) => {
  const r = spawnSync('sqlite3', [file, ...sql], { encoding: 'utf8', maxBuffer: 2 ** 28 });
  assert.equal(r.status, 0, r.stderr);
  return r.stdout.trim();
};

// As README says: curl … /v1/backup | tar x
async function backup(s, dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-'))) {
  const child = spawn('bash', ['-c', 'set -o pipefail; curl -fsS -H "Authorization: Bearer $TOKEN" "$URL/v1/backup" | tar x -C "$0"', dir],
    { env: { ...process.env, TOKEN: s.token, URL: s.url }, stdio: ['ignore', 'inherit', 'pipe'] });
  let said = '';
  child.stderr.on('data', (d) => { said += d; });
  const code = await new Promise((done) => child.on('close', done));
  assert.equal(code, 0, said);
  return dir;
}
function sound(dir) {
  for (const db of ['pawl.db', 'checkpoints.db'])
    assert.equal(sqlite(`${dir}/${db}`, 'PRAGMA integrity_check; PRAGMA foreign_key_check'), 'ok', db);
  // whatever a manifest names is there, whole
  const r = spawnSync('python3', ['-c', `
import sqlite3, sys, hashlib
db = sqlite3.connect(sys.argv[1] + '/pawl.db')
ch = sqlite3.connect(sys.argv[1] + '/checkpoints.db')
named = {r[0] for r in db.execute('SELECT sha256 FROM checkpoint_chunks')}
there = {}
for sha, data in ch.execute('SELECT sha256, data FROM chunks'):
    assert hashlib.sha256(data).digest() == sha
    there[sha] = len(data)
assert named == set(there), (len(named), len(there))
print(len(named))
`, dir], { encoding: 'utf8' });
  assert.equal(r.status, 0, r.stderr);
  return Number(r.stdout);
}

test('a copy taken under load, with a job half-way, comes to the same model on another server', async (t) => {
  await withServer({ workers: 1 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const spec = chessSpec({ training: { epochs: 8 }, runtime: { checkpoint_every: 4 } });
    const whole = await s.result((await s.submit(merge(spec, { name: 'whole', runtime: { checkpoint_every: 0 } }))).id);
    const job = await s.submit(spec);
    await s.waitJob(job.id, 'at step 10', (j) => j.progress.step >= 10);

    // claims, heartbeats, saves, uploads and removals beside it
    let stop = false, saves = 0;
    const loads = [0, 1, 2].map(async (n) => {
      while (!stop) {
        const set = `set-${n}`;
        await s.upload(set, { 'a.jsonl': tinyShard(24 + n) });
        const side = await s.submit(tinySpec({ name: set, data: { dataset: set }, priority: 5, runtime: { resources: { labels: { only: set } } } }));
        (await s.post(`/v1/jobs/${side.id}/cancel`)).expect(200);
        (await s.delete(`/v1/jobs/${side.id}`)).expect(204);
        (await s.delete(`/v1/datasets/${set}`)).expect(204);
        saves++;
      }
    });
    const copies = [];
    try {
      copies.push(...await Promise.all([backup(s), backup(s)])); // two at once
    } finally {
      stop = true;
      await Promise.all(loads);
    }
    const during = await s.job(job.id);
    t.diagnostic(`${saves} rounds beside; the job is at step ${during.progress.step} of ${during.progress.steps}`);
    assert.equal(during.state, 'running', 'the copies were taken while it ran');
    assert.deepEqual(fs.readdirSync(`${s.dir}/tmp`), []);
    assert.equal((await s.result(job.id)).model, whole.model, 'the job itself never noticed');

    await Promise.all(copies.map(async (dir) => {
      t.diagnostic(`a copy of ${sound(dir)} chunks`);
      assert.deepEqual(fs.readdirSync(dir).sort(), ['checkpoints.db', 'datasets', 'pawl.db'], 'no token, no log');
      assert.equal(sqlite(`${dir}/pawl.db`, 'SELECT count(*) FROM sessions'), '0');
      const r = await Server.start({ workers: 1, dir, args: ['--lease', '4'] });
      try {
        assert.notEqual(r.token, s.token);
        const before = await r.job(job.id);
        assert.ok(before.progress.step >= 8 && before.state !== 'completed', JSON.stringify(before.progress));
        const got = await r.result(job.id);
        assert.equal(got.model, whole.model);
        assert.deepEqual(got.series, whole.series);
        assert.equal(got.job.exact.tier, 'bit');
        const leases = await r.leases(job.id);
        assert.ok(leases.length >= 2 && leases.at(-1).id > 1_000_000, 'ids that the other server will not hand out');
        assert.ok(leases.at(-1).from_step > 0, 'it went on, and did not begin anew');
      } catch (e) {
        e.message += `\n${r.log.slice(-2000)}`;
        throw e;
      } finally {
        await r.stop();
        fs.rmSync(dir, { recursive: true, force: true });
      }
    }));
  });
});

test('without its end a copy is refused, and what came of it is not taken for a state', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(24) });
    const job = await s.submit(tinySpec());
    const f = new FakeWorker(s);
    (await f.claim()).expect(201);
    (await f.checkpoint(await f.save(1))).expect(201);
    const tar = (await s.get('/v1/backup')).expect(200).body;
    for (const cut of [0.5, 0.97]) {
      const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-'));
      try {
        fs.writeFileSync(`${dir}/part.tar`, tar.subarray(0, Math.floor(tar.length * cut)));
        assert.notEqual(spawnSync('tar', ['xf', `${dir}/part.tar`, '-C', dir]).status, 0);
        const r = spawnSync(`${s.programs}/pawld`, ['--state', dir, '--workers', '0', '--listen', '127.0.0.1:0'], { encoding: 'utf8', timeout: 30_000 });
        assert.equal(r.status, 1, r.stdout);
        assert.match(r.stderr, /pawl\.db is (missing or empty|damaged)/);
      } finally {
        fs.rmSync(dir, { recursive: true, force: true });
      }
    }
    assert.ok(job);
  });
});

test('a disk too full for the copy is told with the number of bytes, and nothing is left on it', async (t) => {
  const disk = smallDisk(60);
  if (!disk) return t.skip('no disk can be mounted here');
  try {
    const dir = `${disk.dir}/state`;
    await withServer({ workers: 0, dir }, async (s) => {
      await s.upload('tiny', { 'a.jsonl': tinyShard(24) });
      await s.submit(tinySpec({ runtime: { keep: 100 } }));
      const f = new FakeWorker(s);
      (await f.claim()).expect(201);
      // 4 states of 5 MB leave less than another 20 MB and the reserve
      for (let step = 1; step <= 4; step++)
        (await f.checkpoint(await f.save(step, { tensors: madeUp(step, 1_300_000) }))).expect(201);
      const p = (await s.get('/v1/backup')).problem(507);
      assert.match(p.detail, /checkpoints\.db/);
      assert.ok(p.missing_bytes > 0 && p.detail.includes(`${p.missing_bytes} bytes are missing`), JSON.stringify(p));
      assert.deepEqual(fs.readdirSync(`${dir}/tmp`), []);
      // with as much room as it asked for, it goes
      spawnSync('mount', ['-o', `remount,size=${60 + Math.ceil(p.missing_bytes / 2 ** 20) + 1}m`, disk.dir]);
      const tar = (await s.get('/v1/backup')).expect(200);
      assert.ok(tar.body.length > 20e6);
      assert.deepEqual(fs.readdirSync(`${dir}/tmp`), []);
      assert.equal(sha256(tar.body.subarray(257, 262)), sha256(Buffer.from('ustar')));
    });
  } finally {
    disk.done();
  }
});
