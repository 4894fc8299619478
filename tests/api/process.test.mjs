import test from 'node:test';
import assert from 'node:assert/strict';
import { execFile, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { FakeWorker } from '../fake_worker.mjs';
import { Server, bin, hasWorker, request, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

const pawld = (args, env = {}) => spawnSync(path.join(bin, 'pawld'), args, { encoding: 'utf8', timeout: 60_000, env: { ...process.env, ...env } });
const folder = () => fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-'));

test('--version and --help answer and end', () => {
  const v = pawld(['--version']);
  assert.equal(v.status, 0);
  assert.match(v.stdout, /\d+\.\d+\.\d+/);
  const h = pawld(['--help']);
  assert.equal(h.status, 0);
  for (const flag of ['--state', '--listen', '--workers', '--data-root']) assert.ok(h.stdout.includes(flag), flag);
});

test('unknown flags, bad values and unknown config keys are errors that name them', () => {
  const dir = folder();
  try {
    for (const [args, word] of [
      [['--state', dir, '--wrokers', '2'], '--wrokers'],
      [['--state', dir, '--workers', 'two'], 'workers'],
      [['--state', dir, '--workers', '-1'], 'workers'],
      [['--state', dir, '--listen', '127.0.0.1:99999'], '99999'],
      [['--state', dir, '--listen', 'nowhere'], 'nowhere'],
      [['--state', dir, 'stray'], 'stray'],
      [['--state'], '--state'],
    ]) {
      const r = pawld(args);
      assert.notEqual(r.status, 0, args.join(' '));
      assert.equal(r.signal, null);
      assert.ok(r.stderr.includes(word), `${args.join(' ')}: ${r.stderr}`);
    }
    fs.writeFileSync(`${dir}/pawl.json`, '{"wrokers": 2}');
    const r = pawld(['--state', dir, '--config', `${dir}/pawl.json`]);
    assert.notEqual(r.status, 0);
    assert.match(r.stderr, /wrokers/);
  } finally {
    fs.rmSync(dir, { recursive: true });
  }
});

test('an unknown PAWL_ variable is a warning, not an error', async () => {
  await withServer({ workers: 0, env: { PAWL_WROKERS: '3' } }, async (s) => {
    assert.match(s.log, /PAWL_WROKERS/);
    (await s.get('/v1/jobs')).expect(200);
  });
});

test('a second pawld on the same state is refused, and the first goes on', async () => {
  await withServer({ workers: 0 }, async (s) => {
    const url = fs.readFileSync(`${s.dir}/url`, 'utf8');
    const r = pawld(['--state', s.dir, '--listen', '127.0.0.1:0', '--workers', '0']);
    assert.notEqual(r.status, 0);
    assert.match(r.stderr, /pawld/);
    assert.equal(fs.readFileSync(`${s.dir}/url`, 'utf8'), url);
    (await s.get('/v1/jobs')).expect(200);
  });
});

test('a port that is taken is an error that names it', async () => {
  await withServer({ workers: 0 }, async (s) => {
    const dir = folder();
    const { port } = new URL(s.url);
    const r = pawld(['--state', dir, '--listen', `127.0.0.1:${port}`, '--workers', '0']);
    fs.rmSync(dir, { recursive: true });
    assert.notEqual(r.status, 0);
    assert.ok(r.stderr.includes(port), r.stderr);
  });
});

test('a database of a newer version is refused and left alone', async () => {
  const dir = folder();
  const s = await Server.start({ workers: 0, dir });
  try {
    await s.upload('tiny', { 'a.jsonl': tinyShard(4) });
    await s.submit(tinySpec());
    await s.terminate();
    const set = (v) => spawnSync('python3', ['-c', `import sqlite3; c = sqlite3.connect(${JSON.stringify(`${dir}/pawl.db`)}); print(c.execute("PRAGMA user_version").fetchone()[0]); c.execute("PRAGMA user_version = ${v}"); c.commit()`], { encoding: 'utf8' }).stdout.trim();
    const version = set(9999);
    const r = pawld(['--state', dir, '--listen', '127.0.0.1:0', '--workers', '0']);
    assert.notEqual(r.status, 0);
    assert.match(r.stderr, /newer/);
    assert.equal(set(version), '9999');
    await s.launch();
    assert.equal((await s.get('/v1/jobs')).json.items.length, 1);
  } finally {
    await s.stop();
    fs.rmSync(dir, { recursive: true, force: true });
  }
});

test('SIGTERM ends it cleanly, url and all; SIGKILL loses nothing that was answered', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(20) });
    const job = await s.submit(tinySpec());
    const w = new FakeWorker(s);
    (await w.claim()).expect(201);
    const digest = (await w.checkpoint(await w.save(2))).expect(201).json.digest;
    await s.kill9();
    await s.launch();
    // The worker kept its lease over the restart.
    (await w.heartbeat({ position: w.position(3) })).expect(200);
    const [c] = await s.checkpoints(job.id);
    assert.equal(c.digest, digest);
    await w.finish();
    assert.equal((await s.job(job.id)).state, 'completed');
    assert.deepEqual(await s.terminate(), { code: 0, signal: null });
    assert.ok(!fs.existsSync(`${s.dir}/url`));
    await s.launch();
    assert.equal((await s.job(job.id)).state, 'completed');
  });
});

test('a server whose state is taken away stops, rather than accept what it cannot keep', async () => {
  await withServer({ workers: 0 }, async (s) => {
    fs.renameSync(`${s.dir}/pawl.db`, `${s.dir}/elsewhere.db`);
    let end;
    s.exited.then((e) => { end = e; });
    await until('pawld to stop', () => end);
    assert.equal(end.code, 1);
    assert.match(s.log, /pawl\.db was removed or replaced/);
    fs.renameSync(`${s.dir}/elsewhere.db`, `${s.dir}/pawl.db`);
    await s.launch();
  });
});

test('a Unix socket serves as well', async () => {
  const dir = folder();
  await withServer({ workers: 0, listen: ['127.0.0.1:0', `unix:${dir}/pawl.sock`] }, async (s) => {
    const r = await request(null, { socketPath: `${dir}/pawl.sock`, path: '/v1/jobs', headers: { Authorization: `Bearer ${s.token}`, Host: 'localhost' } });
    r.expect(200);
    (await request(null, { socketPath: `${dir}/pawl.sock`, path: '/v1/jobs', headers: { Host: 'localhost' } })).problem(401);
  });
  assert.ok(!fs.existsSync(`${dir}/pawl.sock`));
  fs.rmSync(dir, { recursive: true });
});

if (hasWorker) {
  const ldd = async (program) => (await promisify(execFile)('ldd', [path.join(bin, program)])).stdout;
  const nm = async (program, ...flags) => (await promisify(execFile)('nm', [...flags, path.join(bin, program)], { maxBuffer: 64 << 20 })).stdout;

  test('pawld pulls in no libtorch', async () => {
    assert.doesNotMatch(await ldd('pawld'), /lib(torch|c10|openblas|dnnl)/);
    assert.doesNotMatch(await nm('pawld'), /trainer_new|_ZN(5torch|3c10|2at)/);
  });

  test('pawl-worker says at once, and not with status 0, what no waiting will mend', () => {
    for (const [args, word] of [
      [['--state', '/nonexistent'], /--state is not a folder/],
      [['--server', 'ftp://x'], /--server is neither/],
      [['--server', 'http://127.0.0.1:1', '--token-file', '/nonexistent'], /--token-file cannot be read/],
      [['--server', 'http://127.0.0.1:1'], /--token-file or PAWL_TOKEN/],
    ]) {
      const r = spawnSync(path.join(bin, 'pawl-worker'), args, { encoding: 'utf8', timeout: 60_000 });
      assert.equal(r.status, 2, args.join(' '));
      assert.match(r.stderr, word);
    }
  });

  test('pawl-worker fails when no server ever answered', () => {
    const r = spawnSync(path.join(bin, 'pawl-worker'), ['--server', 'http://127.0.0.1:1'], { encoding: 'utf8', timeout: 60_000, env: { ...process.env, PAWL_TOKEN: 'x' } });
    assert.equal(r.status, 1);
    assert.match(r.stderr, /127\.0\.0\.1:1/);
  });

  test('pawl-worker opens no database', async () => {
    // libtorch's own dependencies may bring SQLite along; the worker refers to none of it.
    assert.doesNotMatch(await nm('pawl-worker', '-D', '-u'), /sqlite3_/);
    assert.doesNotMatch(await nm('pawl-worker'), /sqlite3_|store_open/);
    const needed = (await promisify(execFile)('readelf', ['-d', path.join(bin, 'pawl-worker')])).stdout.match(/NEEDED.*/g).join('\n');
    assert.doesNotMatch(needed, /sqlite|microhttpd/);
    assert.match(needed, /torch/);
  });
}
