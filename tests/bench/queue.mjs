// How fast the queue and the store are, as ratios to what SQLite and the disk give
// in the same run:
//
//   node tests/bench/queue.mjs [--jobs N] [--dir FOLDER]
//
// Durable claims (each committed with synchronous=FULL, its lease ended at once) per
// second through HTTP with 32 clients, next to bare SQLite's one writer; their p99,
// idle and while a 1 GB state is being saved; save and load of a 600 MB state next to plain write + fsync and to
// bare SQLite with the same settings. Figures, no test: not part of deploy/check.
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
const CLIENTS = 32;
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

console.log(machine());

// ---- claims ----
async function withJobs(n, body) {
  const state = scratch('state');
  const s = await Server.start({ dir: state, workers: 0 });
  try {
    await s.upload('tiny', { 'a.jsonl': tinyShard(40) });
    const submitted = await bench(['jobs', s.url, s.token, CLIENTS, n], JSON.stringify(tinySpec()));
    return await body(s, submitted);
  } finally {
    await s.kill9();
    s.sweep();
    gone(state);
  }
}

const bare = await bench(['bare-claims', scratch('bare'), 3]);
const idle = await withJobs(JOBS, async (s, submitted) => {
  say(`jobs submitted per second, ${CLIENTS} clients`, submitted.per_s);
  // The same rows once more, for the transaction alone.
  await s.terminate();
  const copy = path.join(dir, 'copy');
  fs.cpSync(s.dir, copy, { recursive: true });
  await s.launch();
  const r = await bench(['claims', s.url, s.token, CLIENTS, JOBS]);
  r.alone = await bench(['noun-claims', copy]);
  gone(copy);
  return r;
});
const bareAgain = await bench(['bare-claims', scratch('bare-again'), 3]);
const ceiling = (bare.per_s + bareAgain.per_s) / 2;
say("SQLite's one writer, bare UPDATE … RETURNING, FULL, per second", ceiling.toFixed(0), `${bare.per_s} before, ${bareAgain.per_s} after`);
say('lease_claim() without HTTP, a commit each, per second', idle.alone.claims_only_per_s, `${(idle.alone.claims_only_per_s / ceiling).toFixed(2)} of it`);
say(`claims and their releases through HTTP, ${CLIENTS} clients, per s`, 2 * idle.per_s, `${(2 * idle.per_s / ceiling).toFixed(2)} of it (goal 0.5), ${idle.per_s} claims`);
say('  claims: p50 / p99 / max, ms', `${idle.p50_ms} / ${idle.p99_ms} / ${idle.max_ms}`);

const busy = await withJobs(JOBS, async (s) => {
  let saved = null;
  const save = bench(['save', s.url, s.token, 1024, 1]).then((r) => { saved = r; });
  const rounds = [];
  // claims come in rounds, for as long as the save takes
  for (let left = JOBS - 1; !saved && left >= 500; left -= 500) rounds.push(await bench(['claims', s.url, s.token, CLIENTS, 500]));
  const during = rounds.length;
  await save;
  const worst = (key) => Math.max(...rounds.map((r) => r[key]));
  const sum = rounds.reduce((a, r) => a + r.seconds, 0);
  return { saved, during, per_s: Math.round(rounds.length * 500 / sum), p99_ms: [...rounds.map((r) => r.p99_ms)].sort((a, b) => a - b)[Math.floor(during / 2)], worst: worst('p99_ms'), max_ms: worst('max_ms') };
});
say('claims and releases per second while 1 GB is being saved', 2 * busy.per_s, `${busy.during} rounds of 500`);
say('  p99 of the middle round / of the worst / max, ms', `${busy.p99_ms} / ${busy.worst} / ${busy.max_ms}`,
  `${(busy.p99_ms / idle.p99_ms).toFixed(1)} × idle p99 (goal: under 20 ms and 3 ×)`);
say('  that save, MB/s', busy.saved.mb_per_s);

// ---- states ----
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
  await withJobs(1, async (s) => { wide.push(await bench(['save', s.url, s.token, MB, 4])); });
}
const middle = (list, key) => list.map((r) => r[key]).sort((a, b) => a - b)[Math.floor(list.length / 2)];
const saved = middle(saves, 'mb_per_s'), loaded = middle(loads, 'mb_per_s');
const folded = middle(bares, 'folded_mb_per_s'), read = middle(bares, 'read_mb_per_s');
say(`write + fsync of ${MB} MB, MB/s (of 3 the middle)`, middle(files, 'write_mb_per_s'), `read ${middle(files, 'read_mb_per_s')}`);
say('bare SQLite, 64 KiB pages, FULL, a commit per MiB, MB/s', folded, `with its WAL folded in; read ${read}`);
say('save through pawld, four chunks under way, MB/s', middle(wide, 'mb_per_s'), `${(middle(wide, 'mb_per_s') / folded).toFixed(2)} of bare SQLite`);
say('save through pawld, MB/s', saved, `${(saved / folded).toFixed(2)} of bare SQLite (goal 0.7), ${(saved / middle(files, 'write_mb_per_s')).toFixed(2)} of the file`);
say('load through pawld, MB/s', loaded, `${(loaded / read).toFixed(2)} of bare SQLite, ${(loaded / middle(files, 'read_mb_per_s')).toFixed(2)} of the file`);
console.log(machine());
