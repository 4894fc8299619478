// How fast a state of 600 MB is saved and loaded through the whole path: a real
// worker, HTTP, pawld, checkpoints.db on disk. As ratios to what the disk and
// SQLite give in the same run, next to torch.save of the same tensors; and for
// how long training stands still, or is slower, because of a save.
//
//   node tests/bench/save.mjs [--rounds N] [--mb N] [--dir FOLDER] [--python PROGRAM]
//
// Figures, no test: not part of deploy/check. All that is written is new to the
// disk each time, and bare SQLite's WAL checkpoints are counted.
import { execFile, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { Server, bin, tinyShard, tinySpec, until } from '../harness.mjs';

const option = (name, otherwise) => {
  const i = process.argv.indexOf(`--${name}`);
  return i < 0 ? otherwise : process.argv[i + 1];
};
const ROUNDS = Number(option('rounds', 5));
const MB = Number(option('mb', 600));
const PYTHON = option('python', '/usr/bin/python3');
const dir = fs.mkdtempSync(path.join(option('dir', os.tmpdir()), 'pawl-bench-'));
process.on('exit', () => fs.rmSync(dir, { recursive: true, force: true }));

const scratch = (name) => {
  const at = path.join(dir, name);
  fs.mkdirSync(at);
  return at;
};
const gone = (at) => fs.rmSync(at, { recursive: true, force: true });
const run = promisify(execFile);
const bench = async (...args) => JSON.parse((await run(path.join(bin, 'bench_queue'), args.map(String))).stdout);
const middle = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const sum = (list) => list.reduce((a, b) => a + b, 0);
function machine() {
  const cpu = os.cpus();
  const load = os.loadavg().map((x) => x.toFixed(1)).join(' ');
  return `${cpu.length} × ${cpu[0].model}, ${(os.totalmem() / 2 ** 30).toFixed(0)} GB, ${os.type()} ${os.release()}, load ${load}`;
}
const say = (what, value, more = '') => console.log(`${what.padEnd(62)} ${String(value).padStart(9)}  ${more}`);
console.log(machine());

// A model whose state (weights and two moments, float32) takes MB: wide, and the
// records as short as can be, so that steps are short and saving shows.
const LAYERS = Math.max(1, Math.round(MB * 2 ** 20 / 12 / (12 * 768 * 768)));
const wide = (runtime) => tinySpec({
  model: { d_model: 768, layers: LAYERS, heads: 12, ff: 3072 },
  training: { effective_batch: 4, epochs: 1, shuffle: { mode: 'none', size: null } },
  runtime: { micro_batch: 4, threads: Number(option('threads', Math.min(2, os.cpus().length))), ...runtime },
});

// A job with a worker of its own; the lines it logged, the seconds of each step.
async function train(records, runtime, { env = {}, leases = 1, then } = {}) {
  const s = await Server.start({ dir: scratch('state'), workers: 0 });
  try {
    await s.upload('tiny', { 'a.jsonl': tinyShard(records) });
    const job = await s.submit(wide(runtime));
    for (let i = 0; i < leases; i++) {
      const w = await s.runWorker({ env });
      if (w.code !== 0) throw new Error(w.output);
    }
    const logs = (await s.get(`/v1/jobs/${job.id}/logs?limit=1000`)).expect(200).json.items.map((l) => l.text);
    const speed = (await s.values(job.id, 'records_per_s')).map(Number);
    const checkpoints = await s.checkpoints(job.id);
    return { logs, steps: speed.map((v) => 4 / v), bytes: checkpoints.at(-1).bytes, more: then && await then(s, job, checkpoints) };
  } finally {
    await s.kill9();
    s.sweep();
    gone(s.dir);
  }
}
const saves = (logs) => logs.map((l) => /^saved step (\d+) in ([\d.]+) s, of which training stood still for ([\d.]+) s/.exec(l))
  .filter(Boolean).map(([, step, took, still]) => ({ step: Number(step), took: Number(took), still: Number(still) }));
const loads = (logs) => logs.map((l) => /^loaded checkpoint \d+ in ([\d.]+) s/.exec(l)).filter(Boolean).map((m) => Number(m[1]));

// ---- one after the other, in turns: disks have moods ----
const file = [], sqlite = [], streamed = [], copied = [], loaded = [], torchSave = [], torchLoad = [];
const stood = [], slowed = [], micro = [];
let bytes = 0;
for (let i = 0; i < ROUNDS; i++) {
  const at = scratch('bare');
  file.push(await bench('bare-file', at, MB));
  sqlite.push(await bench('bare-sqlite', at, MB));
  gone(at);

  // Streamed: the probe leaves no memory for a copy. Then another lease loads.
  const a = await train(4 * 6, { checkpoint_every: 3, restart: { every_micro_batches: 4 } }, { env: { PAWL_MEMORY_PROBE: 'fake:available_mb=1' }, leases: 2 });
  bytes = a.bytes;
  streamed.push(saves(a.logs)[0].took);
  loaded.push(loads(a.logs)[0]);

  // Copied, and written while training goes on: long enough to see how it goes without.
  const b = await train(4 * 160, { checkpoint_every: 20, keep: 2 });
  const done = saves(b.logs).find((x) => x.step === 20);
  copied.push(done.took);
  stood.push(done.still);
  const quiet = middle(b.steps.slice(4, 20));
  // steps while the first save was under way
  let left = done.took - done.still, n = 20;
  while (left > 0 && n < b.steps.length) left -= b.steps[n++];
  slowed.push(Math.max(0, sum(b.steps.slice(20, n)) - (n - 20) * quiet));
  micro.push(quiet);

  // The same bytes by torch.save and torch.load.
  const p = scratch('torch');
  const r = spawnSync(PYTHON, ['-c', `
import json, os, sys, time, torch
n = int(sys.argv[2]) // 12
gen = torch.Generator().manual_seed(5)
part = lambda: {f't{i}': torch.randn(n // 64, generator=gen) for i in range(64)}
state = {'model': part(), 'exp_avg': part(), 'exp_avg_sq': part()}
t = time.monotonic()
with open(sys.argv[1], 'wb') as f:
    torch.save(state, f); f.flush(); os.fsync(f.fileno())
saved = time.monotonic() - t
t = time.monotonic(); torch.load(sys.argv[1]); loaded = time.monotonic() - t
print(json.dumps({'saved': saved, 'loaded': loaded}))
`, `${p}/state.pt`, String(bytes)], { encoding: 'utf8' });
  if (r.status === 0) {
    const t = JSON.parse(r.stdout);
    torchSave.push(t.saved);
    torchLoad.push(t.loaded);
  }
  gone(p);
}

// ---- figures ----
const mb = bytes / 2 ** 20;
const rate = (list) => mb / middle(list);
const folded = middle(sqlite.map((r) => r.folded_mb_per_s)), disk = middle(file.map((r) => r.write_mb_per_s));
// Each round next to its own ceiling, and the middle of these ratios.
const ratio = (list, of) => middle(list.map((took, i) => mb / took / of[i])).toFixed(2);
const ceilings = sqlite.map((r) => r.folded_mb_per_s);
say(`write + fsync of ${MB} MB, MB/s (of ${ROUNDS} the middle)`, disk.toFixed(0));
say('bare SQLite, the same settings, a commit per MiB, its WAL folded, MB/s', folded.toFixed(0));
say(`save of ${mb.toFixed(0)} MB streamed, through the whole path, MB/s`, rate(streamed).toFixed(0), `${ratio(streamed, ceilings)} of bare SQLite (goal 0.7), ${ratio(streamed, file.map((r) => r.write_mb_per_s))} of the file`);
say('save of it from a copy while training goes on, MB/s', rate(copied).toFixed(0), `${ratio(copied, ceilings)} of bare SQLite`);
if (torchSave.length) say('torch.save + fsync of such tensors, MB/s', rate(torchSave).toFixed(0), `the streamed save is ${(rate(streamed) / rate(torchSave)).toFixed(2)} of it`);
say('load through the whole path, digests checked, MB/s', rate(loaded).toFixed(0), `${ratio(loaded, sqlite.map((r) => r.read_mb_per_s))} of bare SQLite's read, ${ratio(loaded, file.map((r) => r.read_mb_per_s))} of the file's`);
if (torchLoad.length) say('torch.load of such tensors, MB/s', rate(torchLoad).toFixed(0), `the load is ${(rate(loaded) / rate(torchLoad)).toFixed(2)} of it`);
say('training stands still for a save from a copy, s', middle(stood).toFixed(3), `a micro-batch takes ${middle(micro).toFixed(3)} s`);
say('and steps beside the save take longer, in all s', middle(slowed).toFixed(3));
const stall = (middle(stood) + middle(slowed)) / (5000 * middle(micro));
say('stall at one save per 5,000 micro-batches', `${(100 * stall).toFixed(2)} %`, `goal under 1 %; of it standing still ${(100 * middle(stood) / (5000 * middle(micro))).toFixed(3)} %`);
console.log(machine());
