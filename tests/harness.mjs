// harness.mjs - a real pawld, and its workers, for one test file.
//
// Each server has its own state folder and port and is named by a random word in
// its environment, which its workers inherit: that word finds every process that
// belongs to a test, also those that were started by a pawld that is dead by now.
// Whatever way the test ends, none is left behind.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
// The programs under test; deploy/check points this at other builds.
export const bin = process.env.TEST_BIN ?? path.join(root, 'build', 'bin');
export const hasWorker = fs.existsSync(path.join(bin, 'pawl-worker'));
const fixtures = path.join(root, 'tests', 'fixtures');
// A sanitized or busy build takes its time; a hang still ends.
const PATIENCE_MS = Number(process.env.TEST_PATIENCE_S ?? 120) * 1000;

export const sha256 = (data) => createHash('sha256').update(data).digest('hex');

// Random moments that a failed run can repeat: PAWL_SEED=n.
export function randomSource(t) {
  const seed = Number(process.env.PAWL_SEED ?? Math.floor(Math.random() * 2 ** 31));
  t?.diagnostic(`PAWL_SEED=${seed}`);
  let s = seed >>> 0;
  return () => { // mulberry32
    s = (s + 0x6d2b79f5) >>> 0;
    let x = Math.imul(s ^ (s >>> 15), s | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

// Wait for a moment in time, where the moment itself is what a test is about
// (a kill at a random one). Never used to wait for something to happen.
export const moment = (ms) => new Promise((done) => setTimeout(done, ms));

// Ask until the answer is not undefined/false/null.
export async function until(what, ask, { patience_ms = PATIENCE_MS, every_ms = 20 } = {}) {
  const end = Date.now() + patience_ms;
  for (;;) {
    const r = await ask();
    if (r) return r;
    if (Date.now() > end) throw new Error(`waited ${patience_ms / 1000} s for ${what}`);
    await moment(every_ms);
  }
}

// ---- HTTP ------------------------------------------------------------------

export class Answer {
  constructor(status, headers, body) {
    this.status = status;
    this.headers = headers;
    this.body = body;
  }
  get text() { return this.body.toString('utf8'); }
  get json() { return JSON.parse(this.text); }
  // The status asked for, or an error that shows what came instead.
  expect(status) {
    assert.equal(this.status, status, `${this.status} instead of ${status}: ${this.text.slice(0, 2000)}`);
    return this;
  }
  problem(status, pointer) {
    this.expect(status);
    assert.match(this.headers['content-type'] ?? '', /^application\/problem\+json/);
    const p = this.json;
    assert.equal(p.status, status);
    assert.ok(p.title && p.detail, `title and detail: ${this.text}`);
    if (pointer !== undefined) assert.equal(p.pointer, pointer, this.text);
    return p;
  }
}

export function request(url, { method = 'GET', path: target = '/', headers = {}, body, socketPath,
                               timeout_ms = PATIENCE_MS + 60_000, chunked = false } = {}) {
  return new Promise((resolve, reject) => {
    const u = socketPath ? { hostname: 'localhost' } : new URL(url);
    const h = { ...headers };
    if (body !== undefined && !chunked) h['Content-Length'] = Buffer.byteLength(body);
    const req = http.request({ method, path: target, headers: h, host: u.hostname, port: u.port,
                               socketPath, agent: false }, (res) => {
      const parts = [];
      res.on('data', (d) => parts.push(d));
      res.on('end', () => resolve(new Answer(res.statusCode, res.headers, Buffer.concat(parts))));
      res.on('error', reject);
    });
    req.setTimeout(timeout_ms, () => req.destroy(new Error(`no answer in ${timeout_ms} ms: ${method} ${target}`)));
    req.on('error', reject);
    if (body !== undefined) req.write(body);
    req.end();
  });
}

// Lines of an answer that does not end by itself (follow=1, events).
export async function* lines(url, { path: target, headers = {} }) {
  const u = new URL(url);
  const res = await new Promise((resolve, reject) => {
    http.request({ path: target, headers, host: u.hostname, port: u.port, agent: false }, resolve)
      .on('error', reject).end();
  });
  assert.equal(res.statusCode, 200);
  let rest = '';
  try {
    for await (const piece of res) {
      rest += piece.toString('utf8');
      for (let i; (i = rest.indexOf('\n')) >= 0; rest = rest.slice(i + 1)) yield rest.slice(0, i);
    }
    if (rest) yield rest;
  } finally {
    res.destroy();
  }
}

// ---- processes -------------------------------------------------------------

const MARK = 'TEST_RUN_OF';

// Processes whose environment carries one of the words: [{pid, args}].
function marked(words) {
  const found = [];
  for (const pid of fs.readdirSync('/proc')) {
    if (!/^\d+$/.test(pid)) continue;
    try {
      const env = fs.readFileSync(`/proc/${pid}/environ`, 'latin1');
      if (!words.some((w) => env.includes(`${MARK}=${w}\0`))) continue;
      const stat = fs.readFileSync(`/proc/${pid}/stat`, 'latin1');
      if (stat.slice(stat.lastIndexOf(')') + 2)[0] === 'Z') continue;
      const args = fs.readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0').slice(0, -1);
      found.push({ pid: Number(pid), args });
    } catch { /* gone meanwhile, or not ours */ }
  }
  return found;
}

export function signal(pid, name) {
  try {
    process.kill(pid, name);
    return true;
  } catch (e) {
    if (e.code === 'ESRCH') return false;
    throw e;
  }
}

const alive = (pid) => {
  try {
    const stat = fs.readFileSync(`/proc/${pid}/stat`, 'latin1');
    return stat.slice(stat.lastIndexOf(')') + 2)[0] !== 'Z';
  } catch {
    return false;
  }
};
export const gone = (pid) => until(`the end of process ${pid}`, () => !alive(pid), { every_ms: 5 });

const servers = new Set();
function cleanUp() {
  for (const s of servers) s.sweep();
}
process.on('exit', cleanUp);
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(name, () => process.exit(1));

// Environment without PAWL_… of the one who runs the tests.
function cleanEnv(extra) {
  const env = { ...process.env };
  for (const k of Object.keys(env)) if (k.startsWith('PAWL_')) delete env[k];
  return { ...env, ...extra };
}

// ---- the server ------------------------------------------------------------

export class Server {
  // workers: how many pawld keeps alive; env: for it and its workers; bin: folder
  // of the programs; keepDir: leave the state folder to someone else.
  static async start({ workers = 1, args = [], env = {}, dir, programs = bin, listen = ['127.0.0.1:0'] } = {}) {
    const s = new Server();
    s.word = randomUUID();
    s.ownDir = dir === undefined;
    s.dir = dir ?? fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-'));
    s.log = '';
    s.programs = programs;
    s.env = cleanEnv({ ...env, [MARK]: s.word });
    s.args = ['--state', s.dir, '--workers', String(workers), ...listen.flatMap((l) => ['--listen', l]), ...args];
    s.external = new Set();
    servers.add(s);
    await s.launch();
    return s;
  }

  async launch() {
    let out = '';
    const child = spawn(path.join(this.programs, 'pawld'), this.args,
      { env: this.env, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
    this.child = child;
    this.pid = child.pid;
    const exited = new Promise((done) => child.on('close', (code, sig) => done({ code, signal: sig })));
    this.exited = exited;
    child.stdout.on('data', (d) => { out += d; this.log += d; });
    child.stderr.on('data', (d) => { this.log += d; });
    child.on('error', (e) => { this.log += String(e); });
    let end;
    exited.then((e) => { end = e; });
    await until('pawld to listen', () => {
      if (end) throw new Error(`pawld ended with ${JSON.stringify(end)}:\n${this.log.slice(-3000)}`);
      return /^listening on (\S+)/m.test(out) && /^open \S+#login=\S+/m.test(out);
    });
    this.loginUrl = /^open (\S+)/m.exec(out)[1];
    this.url = await until('DIR/url', () => {
      const url = fs.existsSync(`${this.dir}/url`) && fs.readFileSync(`${this.dir}/url`, 'utf8').trim();
      return url && out.includes(`listening on ${url}`) && url;
    });
    this.token = fs.readFileSync(`${this.dir}/token`, 'utf8').trim();
    return this;
  }

  // --- talking to it
  request(method, target, body, headers = {}, more = {}) {
    const h = { Authorization: `Bearer ${this.token}`, ...headers };
    for (const k of Object.keys(h)) if (h[k] === null) delete h[k];
    let data = body;
    if (body !== undefined && typeof body !== 'string' && !Buffer.isBuffer(body)) {
      data = JSON.stringify(body);
      h['Content-Type'] ??= 'application/json';
    }
    return request(this.url, { method, path: target, headers: h, body: data, ...more });
  }
  get cache() { return `${this.dir}-cache`; }
  get(target, headers) { return this.request('GET', target, undefined, headers); }
  post(target, body, headers) { return this.request('POST', target, body, headers); }
  patch(target, body, headers) { return this.request('PATCH', target, body, headers); }
  put(target, body, headers, more) { return this.request('PUT', target, body, headers, more); }
  delete(target, headers) { return this.request('DELETE', target, undefined, headers); }
  lines(target, headers = {}) {
    return lines(this.url, { path: target, headers: { Authorization: `Bearer ${this.token}`, ...headers } });
  }

  async upload(dataset, shards) {
    for (const [name, bytes] of Object.entries(shards)) {
      const r = await this.put(`/v1/datasets/${dataset}/shards/${name}`, bytes, { 'Content-Type': 'application/x-ndjson' });
      assert.ok(r.status === 201 || r.status === 200, `${r.status}: ${r.text}`);
    }
  }
  uploadChess({ dataset = 'chess', shards = 4, records } = {}) {
    return this.upload(dataset, chessShards({ shards, records }));
  }

  async submit(spec) { return (await this.post('/v1/jobs', spec)).expect(201).json; }
  async job(id) { return (await this.get(`/v1/jobs/${id}`)).expect(200).json; }
  async leases(id) { return (await this.get(`/v1/jobs/${id}/leases?limit=1000`)).expect(200).json.items; }
  async workers() { return (await this.get('/v1/workers?limit=1000')).expect(200).json.items; }
  async checkpoints(id) { return (await this.get(`/v1/jobs/${id}/checkpoints?limit=1000`)).expect(200).json.items; }
  // Every checkpoint that is listed can be read whole; the list, oldest first. The
  // next worker saves meanwhile, and only the newest are kept: one that is not
  // listed any more may be gone by the time it is asked for.
  async wholeCheckpoints(id) {
    const list = (await this.checkpoints(id)).sort((a, b) => a.id - b.id);
    for (const c of list) {
      const r = await this.get(`/v1/jobs/${id}/model?checkpoint=${c.id}`);
      if (r.status === 404 && !(await this.checkpoints(id)).some((now) => now.id === c.id)) continue;
      r.expect(200);
    }
    return list;
  }
  manifest(id) { return this.get(`/v1/checkpoints/${id}`).then((r) => r.expect(200).json); }

  // Long-poll the job until `check` of it is true.
  async waitJob(id, what, check, { patience_ms = PATIENCE_MS } = {}) {
    const end = Date.now() + patience_ms;
    let job = await this.job(id);
    while (!check(job)) {
      if (Date.now() > end) throw new Error(`waited for job ${id} to be ${what}: ${JSON.stringify(job)}\n${this.log.slice(-3000)}`);
      if (['completed', 'failed', 'canceled'].includes(job.state))
        throw new Error(`job ${id} is ${job.state} (${job.reason}) and will not be ${what}\n${this.log.slice(-3000)}`);
      job = (await this.get(`/v1/jobs/${id}?wait=5&version=${job.version}`)).expect(200).json;
    }
    return job;
  }
  waitState(id, state, more) { return this.waitJob(id, state, (j) => j.state === state, more); }
  completed(id, more) { return this.waitState(id, 'completed', more); }
  failed(id, more) { return this.waitState(id, 'failed', more); }

  // The lease that is open now, once it is the n-th or later: [lease, worker].
  async openLease(id, nth = 1) {
    return until(`lease ${nth} of job ${id}`, async () => {
      const all = await this.leases(id);
      const open = all.find((l) => !l.outcome);
      if (all.length < nth || !open) {
        const job = await this.job(id);
        if (['completed', 'failed', 'canceled'].includes(job.state)) throw new Error(`job ${id} is ${job.state} (${job.reason})`);
        return null;
      }
      const worker = (await this.workers()).find((w) => w.lease === open.id);
      return worker && { lease: open, worker };
    });
  }

  // What must be the same however a run was stopped: model and losses.
  async result(id) {
    const job = await this.completed(id);
    const model = (await this.get(`/v1/jobs/${id}/model`)).expect(200).body;
    assert.equal(sha256(model), job.model_sha256, 'the model file has the digest that the job names');
    return { job, model: job.model_sha256, series: await this.series(id) };
  }
  async series(id, names = ['loss', 'loss/policy', 'loss/value', 'lr', 'grad_norm']) {
    const csv = (await this.get(`/v1/jobs/${id}/metrics`, { Accept: 'text/csv' })).expect(200).text.trimEnd().split('\n');
    assert.equal(csv.shift().trim(), 'cycle,step,series,value');
    return csv.map((l) => l.trim()).filter((l) => names.includes(l.split(',')[2]));
  }
  // Values of one series in order of steps.
  async values(id, name) {
    return (await this.series(id, [name])).map((l) => l.split(',')).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((c) => c[3]);
  }

  // --- processes
  // Everything that carries this server's word; workers only.
  processes() { return marked([this.word]).filter((p) => p.pid !== process.pid); }
  workerProcesses() { return this.processes().filter((p) => /pawl-worker$/.test(p.args[0] ?? '')); }

  // A worker of the test's own; resolves when it has ended. What it prints is kept.
  // It knows the server's address and token, and gets shards over HTTP into a cache
  // of this server's; with `local` it has the state folder, and reads them there.
  startWorker({ env = {}, args = [], local = false } = {}) {
    const where = local ? ['--state', this.dir] : ['--server', this.url];
    const child = spawn(path.join(this.programs, 'pawl-worker'), [...where, ...args],
      { env: { ...this.env, PAWL_TOKEN: this.token, PAWL_CACHE: this.cache, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
    const w = { pid: child.pid, output: '' };
    child.stdout.on('data', (d) => { w.output += d; });
    child.stderr.on('data', (d) => { w.output += d; });
    w.ended = new Promise((done) => child.on('close', (code, sig) => done({ code, signal: sig, output: w.output })));
    return w;
  }
  // One that takes what is ready now and ends with its lease.
  async runWorker({ args = [], ...more } = {}) { return this.startWorker({ args: ['--once', ...args], ...more }).ended; }

  // kill -9, as a power cut would; then again on the same state.
  async kill9() {
    signal(this.pid, 'SIGKILL');
    await this.exited;
  }
  // SIGTERM, and how it ended.
  async terminate() {
    signal(this.pid, 'SIGTERM');
    return this.exited;
  }
  async stop() {
    if (!servers.has(this)) return;
    signal(this.pid, 'SIGTERM');
    const late = setTimeout(() => this.sweepProcesses(), 40_000);
    await this.exited;
    clearTimeout(late);
    this.sweep();
  }
  sweepProcesses() {
    for (let round = 0; round < 20; round++) {
      const left = this.processes();
      if (!left.length) return;
      for (const p of left) signal(p.pid, 'SIGKILL');
    }
  }
  sweep() {
    this.sweepProcesses();
    servers.delete(this);
    fs.rmSync(this.cache, { recursive: true, force: true, maxRetries: 5 });
    if (this.ownDir) fs.rmSync(this.dir, { recursive: true, force: true, maxRetries: 5 });
  }
}

// One server for the length of a test.
export async function withServer(options, body) {
  const s = await Server.start(options);
  try {
    return await body(s);
  } catch (e) {
    e.message += `\n--- log of pawld\n${s.log.slice(-4000)}`;
    throw e;
  } finally {
    await s.stop();
  }
}

// ---- state folders ---------------------------------------------------------

// A kill takes nothing from the page cache, so a file system in memory will do, and
// spares an fsync's time at each of some thousand commits.
export function scratch() {
  const { bavail, bsize } = fs.existsSync('/dev/shm') ? fs.statfsSync('/dev/shm') : { bavail: 0, bsize: 0 };
  return fs.mkdtempSync(path.join(bavail * bsize > 1 << 30 ? '/dev/shm' : os.tmpdir(), 'pawl-test-'));
}

// Both databases are sound. Looked at in a copy: opening a database mends it, and
// that is for pawld to do.
export function checkFiles(dir) {
  const copy = scratch();
  try {
    for (const db of ['pawl.db', 'checkpoints.db']) {
      for (const tail of ['', '-wal'])
        if (fs.existsSync(`${dir}/${db}${tail}`)) fs.copyFileSync(`${dir}/${db}${tail}`, `${copy}/${db}${tail}`);
      const r = spawnSync('sqlite3', [`${copy}/${db}`, 'PRAGMA integrity_check; PRAGMA foreign_key_check;'], { encoding: 'utf8' });
      assert.equal(r.status, 0, r.stderr);
      assert.equal(r.stdout.trim(), 'ok', `${db}: ${r.stdout}`);
    }
  } finally {
    fs.rmSync(copy, { recursive: true });
  }
}

// ---- a disk of one's own ----------------------------------------------------

// A file system of so many MB in memory, if one may be mounted here (root); null.
export function smallDisk(mb) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-disk-'));
  if (spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${mb}m`, 'tmpfs', dir]).status !== 0) {
    fs.rmdirSync(dir);
    return null;
  }
  const resize = (bytes) => spawnSync('mount', ['-o', `remount,size=${bytes}`, dir]).status === 0;
  return {
    dir,
    // It shrinks to what is used and so many bytes: at one stroke, so that nobody
    // sees it half full.
    fill(leave = 0) {
      for (let tries = 0; ; tries++) {
        const { blocks, bfree, bsize } = fs.statfsSync(dir);
        const used = (blocks - bfree) * bsize;
        if (resize(used + leave)) return;
        assert.ok(tries < 100, 'it grows faster than it can be measured');
      }
    },
    free() { assert.ok(resize(mb * 2 ** 20)); },
    done() {
      spawnSync('umount', ['-l', dir]);
      fs.rmdirSync(dir);
    },
  };
}

// ---- specs and records -----------------------------------------------------

// Merge as RFC 7396 does: null removes.
export function merge(base, patch) {
  const out = structuredClone(base);
  for (const [k, v] of Object.entries(patch)) {
    if (v === null) delete out[k];
    else if (v && typeof v === 'object' && !Array.isArray(v) && out[k] && typeof out[k] === 'object') out[k] = merge(out[k], v);
    else out[k] = structuredClone(v);
  }
  return out;
}

const chessJob = JSON.parse(fs.readFileSync(path.join(fixtures, 'chess', 'job.json'), 'utf8'));
export const chessSpec = (patch = {}) => merge(chessJob, patch);
export const chessLines = () => [0, 1, 2, 3].flatMap((i) => fs.readFileSync(path.join(fixtures, 'chess', `shard-000${i}.jsonl`), 'utf8').trimEnd().split('\n'));
// The first `shards` files, each cut to `records` lines.
export function chessShards({ shards = 4, records } = {}) {
  const out = {};
  for (let i = 0; i < shards; i++) {
    const name = `shard-000${i}.jsonl`;
    let text = fs.readFileSync(path.join(fixtures, 'chess', name), 'utf8');
    if (records) text = text.split('\n').slice(0, records).join('\n') + '\n';
    out[name] = text;
  }
  return out;
}

// A record small enough to read: tokens x, rows legal (one column), a policy
// over them and a value.
export const tinyRecord = {
  x: { kind: 'tokens', dim: 'X', vocab: 16 },
  legal: { kind: 'rows', dim: 'A', columns: [{ vocab: 16 }] },
  policy: { kind: 'target', over: 'legal', loss: 'cross_entropy' },
  value: { kind: 'target', loss: 'mse' },
};
export const tinySpec = (patch = {}) => merge({
  name: 'tiny', kind: 'train',
  model: { type: 'policy_value_transformer', d_model: 8, layers: 1, heads: 2, ff: 16, dropout: 0 },
  record: tinyRecord,
  data: { dataset: 'tiny' },
  training: { epochs: 1, effective_batch: 4, seed: 3, optimizer: { type: 'adamw', lr: 0.01 }, shuffle: { mode: 'buffer', size: 16 } },
  runtime: { device: 'cpu', threads: 1, micro_batch: 4, checkpoint_every: 0 },
}, patch);
export const tiny = (i, more = {}) => ({ x: [i % 16, (i * 7) % 16], legal: [[i % 16], [(i + 1) % 16]], policy: [0.25, 0.75], value: (i % 97) / 97, ...more });
export const jsonl = (records) => records.map((r) => (typeof r === 'string' ? r : JSON.stringify(r)) + '\n').join('');
export const tinyShard = (n) => jsonl(Array.from({ length: n }, (_, i) => tiny(i)));
