// How fast the queue and the store are, as ratios to what SQLite and the disk give
// in the same run:
//
//   node tests/bench/queue.mjs [--jobs N] [--dir FOLDER]
//
// Durable claims (each committed with synchronous=FULL, its lease ended at once) per
// second through HTTP with 32 clients, next to bare SQLite's one writer; their p99,
// idle and while a 1 GB state is being saved; save and load of a 600 MB state next to plain write + fsync and to
// bare SQLite with the same settings; pages of 10,000 jobs, curves of a million points, and the server's memory
// with both. Figures, no test: not part of deploy/check. Those of claims want both cores for themselves.
//
//   --only claims,busy,states,lists
import { execFile } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { Server, bin, tinyShard, tinySpec } from '../harness.mjs';

const option = (name, otherwise) => {
  const i = process.argv.indexOf(`--${name}`);
  return i < 0 ? otherwise : process.argv[i + 1];
};
const JOBS = Number(option('jobs', 6000));
const only = option('only', 'claims,busy,states,lists').split(',');
const CLIENTS = 32;
const FLIGHT = 8; // chunks under way at a time, as in worker/flight.h
const dir = fs.mkdtempSync(path.join(option('dir', os.tmpdir()), 'pawl-bench-'));
process.on('exit', () => fs.rmSync(dir, { recursive: true, force: true }));

const run = promisify(execFile);
async function bench(args, input) {
  const p = run(path.join(bin, 'bench_queue'), args.map(String), { maxBuffer: 1 << 24 });
  p.child.stdin.end(input ?? '');
  return JSON.parse((await p).stdout);
}
const scratch = (name) => {
  const at = path.join(dir, name);
  fs.mkdirSync(at);
  return at;
};
const gone = (at) => fs.rmSync(at, { recursive: true, force: true });

function machine() {
  const cpu = os.cpus();
  const load = os.loadavg().map((x) => x.toFixed(1)).join(' ');
  return `${cpu.length} × ${cpu[0].model}, ${(os.totalmem() / 2 ** 30).toFixed(0)} GB, ${os.type()} ${os.release()}, load ${load}`;
}
const say = (what, value, more = '') => console.log(`${what.padEnd(58)} ${String(value).padStart(9)}  ${more}`);

// The round in the middle, by its p99.
const middle = (rounds) => [...rounds].sort((a, b) => a.p99_ms - b.p99_ms)[Math.floor(rounds.length / 2)];

console.log(machine());

// ---- claims ----
async function withJobs(n, body, spec = tinySpec()) {
  const state = scratch('state');
  const s = await Server.start({ dir: state, workers: 0 });
  try {
    await s.upload('tiny', { 'a.jsonl': tinyShard(40) });
    const submitted = await bench(['jobs', s.url, s.token, CLIENTS, n], JSON.stringify(spec));
    return await body(s, submitted);
  } finally {
    await s.kill9();
    s.sweep();
    gone(state);
  }
}

let idle = null; // the busy part compares itself with it
async function claims() {
  const bare = await bench(['bare-claims', scratch('bare'), 3]);
  idle = await withJobs(JOBS, async (s, submitted) => {
    say(`jobs submitted per second, ${CLIENTS} clients`, submitted.per_s);
    // The same rows once more, for the transaction alone.
    await s.terminate();
    const copy = path.join(dir, 'copy');
    fs.cpSync(s.dir, copy, { recursive: true });
    await s.launch();
    // in rounds: of a moment in which others want the cores, one round tells
    const rounds = [];
    for (let left = JOBS; left >= 1000; left -= 1000) rounds.push(await bench(['claims', s.url, s.token, CLIENTS, 1000]));
    const r = { ...middle(rounds), rounds: rounds.map((x) => x.per_s), alone: await bench(['noun-claims', copy]) };
    gone(copy);
    return r;
  });
  const bareAgain = await bench(['bare-claims', scratch('bare-again'), 3]);
  const ceiling = (bare.per_s + bareAgain.per_s) / 2;
  say("SQLite's one writer, bare UPDATE … RETURNING, FULL, per second", ceiling.toFixed(0), `${bare.per_s} before, ${bareAgain.per_s} after`);
  say('lease_claim() without HTTP, a commit each, per second', idle.alone.claims_only_per_s, `${(idle.alone.claims_only_per_s / ceiling).toFixed(2)} of it`);
  say(`claims and their releases through HTTP, ${CLIENTS} clients, per s`, 2 * idle.per_s,
    `${(2 * idle.per_s / ceiling).toFixed(2)} of it (goal 0.5); claims a second in each round: ${idle.rounds.join(' ')}`);
  say('  claims: p50 / p99 / max, ms', `${idle.p50_ms} / ${idle.p99_ms} / ${idle.max_ms}`);
}

async function busy() {
  const r = await withJobs(JOBS, async (s) => {
    // idle and busy rounds in turn: the machine is not the same all the time
    const idles = [], rounds = [], saves = [];
    for (let left = JOBS - 4; left >= 1500; ) {
      idles.push(await bench(['claims', s.url, s.token, CLIENTS, 500]));
      left -= 500;
      let saved = null;
      const save = bench(['save', s.url, s.token, 1024, FLIGHT]).then((x) => { saved = x; });
      await new Promise((ok) => { setTimeout(ok, 500); }); // its bytes are being made
      while (!saved && left >= 500) {
        rounds.push(await bench(['claims', s.url, s.token, CLIENTS, 500]));
        left -= 500;
      }
      await save;
      saves.push(saved);
    }
    return { idle: middle(idles), round: middle(rounds), n: rounds.length, worst: Math.max(...rounds.map((x) => x.p99_ms)), max: Math.max(...rounds.map((x) => x.max_ms)), saves };
  });
  say('claims and releases per second while 1 GB is being saved', 2 * r.round.per_s, `${r.n} rounds of 500; ${2 * r.idle.per_s} between the saves`);
  say('  p99 of the middle round / of the worst / max, ms', `${r.round.p99_ms} / ${r.worst} / ${r.max}`,
    `${(r.round.p99_ms / r.idle.p99_ms).toFixed(1)} × that between the saves, ${r.idle.p99_ms} (goal: under 20 ms and 3 ×)`);
  say('  those saves, MB/s', r.saves.map((x) => x.mb_per_s).join(' '));
}

// ---- states ----
async function states() {
  const MB = 600;
  const files = [], bares = [], saves = [], wide = [], loads = [];
  for (let i = 0; i < 3; i++) { // in turn: disks have moods
    const at = scratch(`round-${i}`);
    files.push(await bench(['bare-file', at, MB]));
    bares.push(await bench(['bare-sqlite', at, MB]));
    gone(at);
    await withJobs(2, async (s) => {
      const saved = await bench(['save', s.url, s.token, MB, 1]);
      saves.push(saved);
      loads.push(await bench(['load', s.url, s.token, saved.checkpoint]));
    });
    await withJobs(1, async (s) => { wide.push(await bench(['save', s.url, s.token, MB, FLIGHT])); });
  }
  const of = (list, key) => list.map((r) => r[key]).sort((a, b) => a - b)[Math.floor(list.length / 2)];
  const saved = of(saves, 'mb_per_s'), loaded = of(loads, 'mb_per_s');
  const folded = of(bares, 'folded_mb_per_s'), read = of(bares, 'read_mb_per_s');
  say(`write + fsync of ${MB} MB, MB/s (of 3 the middle)`, of(files, 'write_mb_per_s'), `read ${of(files, 'read_mb_per_s')}`);
  say('bare SQLite, 64 KiB pages, FULL, a commit per MiB, MB/s', folded, `with its WAL folded in; read ${read}`);
  say('save through pawld, as a worker sends it, MB/s', of(wide, 'mb_per_s'), `${(of(wide, 'mb_per_s') / folded).toFixed(2)} of bare SQLite (goal 0.7), ${(of(wide, 'mb_per_s') / of(files, 'write_mb_per_s')).toFixed(2)} of the file`);
  say('save through pawld, one chunk at a time, MB/s', saved, `${(saved / folded).toFixed(2)} of bare SQLite`);
  say('load through pawld, MB/s', loaded, `${(loaded / read).toFixed(2)} of bare SQLite, ${(loaded / of(files, 'read_mb_per_s')).toFixed(2)} of the file`);
}

// ---- lists and series ----
const STEPS = 200000, SERIES = ['loss', 'loss/policy', 'loss/value', 'lr', 'grad_norm'];

// A lease that reports a million points and 40,000 samples, as a worker would.
async function fill(s) {
  const post = async (at, body) => {
    const r = await fetch(s.url + at, { method: 'POST', headers: { Authorization: `Bearer ${s.token}`, 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
    if (!r.ok) throw new Error(`${at}: ${r.status} ${await r.text()}`);
    return r.json();
  };
  const worker = { name: 'w', host: 'h', pid: 7, started: 7, boot: 'b', devices: [{ kind: 'cpu' }], cpus: 2, version: '1', library: { libtorch: 'none' } };
  const { lease } = await post('/v1/leases', { worker, claim: 'fill', wait: 0 });
  const began = Date.now();
  for (let step = 0, seq = 1; step < STEPS; step += 500, seq++) {
    const metrics = [], memory = [];
    for (let i = step + 1; i <= step + 500; i++) {
      metrics.push([i, Object.fromEntries(SERIES.map((name) => [name, Math.fround(Math.random())]))]);
      if (i % 5 === 0) memory.push({ step: i, at_ms: 1.7e12 + i * 20, rss_bytes: 1e9 + i, allocated_bytes: 5e8 });
    }
    await post(`/v1/leases/${lease.id}/heartbeat`, { token: lease.token, stage: 'train', seq, position: { step: step + 500, epoch: 0, records: 4, micro_batches: step }, metrics, memory, logs: [] });
  }
  say('metric points taken in per second, 2,500 and 100 samples a beat', (STEPS * SERIES.length / (Date.now() - began) * 1000).toFixed(0));
  return lease.job;
}

async function lists() {
  const spec = tinySpec({ training: { epochs: 50000 } });
  await withJobs(10000, async (s) => {
    const job = await fill(s);
    const rss = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${s.child.pid}/status`, 'latin1'))[1]) / 1024;
    let most = 0;
    for (const at of ['/v1/jobs', '/v1/jobs?cursor=5000', '/v1/jobs?state=failed', '/v1/jobs?q=none', '/v1/jobs?label=team:blue', `/v1/jobs/${job}`,
      `/v1/jobs/${job}/metrics`, `/v1/jobs/${job}/metrics?series=loss&points=500`, `/v1/jobs/${job}/memory`, `/v1/jobs/${job}/leases`, `/v1/jobs/${job}/events`, `/v1/jobs/${job}/logs`]) {
      const ms = [];
      let bytes = 0;
      for (let i = 0; i < 31; i++) {
        const began = performance.now();
        bytes = (await (await fetch(s.url + at, { headers: { Authorization: `Bearer ${s.token}` } })).arrayBuffer()).byteLength;
        ms.push(performance.now() - began);
        most = Math.max(most, rss());
      }
      ms.sort((a, b) => a - b);
      say(`GET ${at}, ms`, ms[15].toFixed(1), `${ms[0].toFixed(1)} to ${ms[30].toFixed(1)}, ${bytes} bytes (goal: under 20 ms)`);
    }
    say("the server's memory meanwhile at most, MB", most.toFixed(1), '(goal: under 40)');
  }, spec);
}

if (only.includes('claims')) await claims();
if (only.includes('busy')) await busy();
if (only.includes('states')) await states();
if (only.includes('lists')) await lists();
console.log(machine());
