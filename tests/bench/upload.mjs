// How fast shards are taken in: through HTTP on loopback, by curl, with and without
// a record description, plain and compressed; beside a copy of the same file and
// its SHA-256. And by how much the server grows with a shard of many GB.
//
//   node tests/bench/upload.mjs [--rounds N] [--mb N] [--gb N] [--dir FOLDER]
//
// Figures, no test: not part of deploy/check. MB are 10^6 bytes of text. Beside the
// time stands what processor time of the server a shard took.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { Server, chessLines, chessSpec } from '../harness.mjs';

const option = (name, otherwise) => {
  const i = process.argv.indexOf(`--${name}`);
  return i < 0 ? otherwise : process.argv[i + 1];
};
const ROUNDS = Number(option('rounds', 3));
const MB = Number(option('mb', 500));
const GB = Number(option('gb', 4));
const dir = fs.mkdtempSync(path.join(option('dir', os.tmpdir()), 'pawl-bench-'));
process.on('exit', () => fs.rmSync(dir, { recursive: true, force: true }));

const run = promisify(execFile);
const middle = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
function machine() {
  const cpu = os.cpus();
  const load = os.loadavg().map((x) => x.toFixed(1)).join(' ');
  return `${cpu.length} × ${cpu[0].model}, ${(os.totalmem() / 2 ** 30).toFixed(0)} GB, ${os.type()} ${os.release()}, load ${load}`;
}
console.log(machine());

// Chess records, no two alike.
const text = path.join(dir, 'a.jsonl');
{
  const lines = chessLines().map((l) => JSON.parse(l));
  const fd = fs.openSync(text, 'w');
  for (let n = 0, i = 0; n < MB * 1e6;) {
    let piece = '';
    for (; piece.length < 8e6; i++) {
      const r = lines[i % lines.length];
      piece += `${JSON.stringify({ ...r, value: Math.sin(i) })}\n`;
    }
    n += fs.writeSync(fd, piece);
  }
  fs.closeSync(fd);
}
const bytes = fs.statSync(text).size;
await run('gzip', ['-1', '-k', text]);
await run('zstd', ['-q', '-3', text]);

const s = await Server.start({ dir: path.join(dir, 'state'), workers: 0 });
const proc = (name) => fs.readFileSync(`/proc/${s.pid}/${name}`, 'utf8');
const cpu = () => { // seconds
  const f = proc('stat').split(') ')[1].split(' ');
  return (Number(f[11]) + Number(f[12])) / 100;
};
const kb = (name) => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(proc('status'))[1]);

const timed = async (file, args) => {
  const begin = performance.now();
  await run(file, args);
  return (performance.now() - begin) / 1000;
};
const curl = (target, file) => timed('curl', ['-sSf', '-H', `Authorization: Bearer ${s.token}`, '-T', file, `${s.url}${target}`]);
let number = 0;
async function upload(dataset, file) {
  const before = cpu();
  const target = `/v1/datasets/${dataset}/shards/${number++}-${path.basename(file)}`;
  const took = await curl(target, file);
  const used = cpu() - before;
  (await s.delete(target)).expect(204);
  return { took, used };
}

const record = chessSpec().record;
(await s.request('PUT', '/v1/datasets/checked', { record })).expect(201);
const ways = {
  'plain, as it is': ['free', text],
  'plain, each record decoded': ['checked', text],
  'gzip, each record decoded': ['checked', `${text}.gz`],
  'zstd, each record decoded': ['checked', `${text}.zst`],
};
const got = Object.fromEntries(Object.keys(ways).map((k) => [k, []])), copy = [], sum = [];
try {
  for (let i = 0; i < ROUNDS; i++) {
    copy.push(await timed('dd', [`if=${text}`, `of=${dir}/copy`, 'bs=1M', 'conv=fsync']));
    fs.rmSync(`${dir}/copy`);
    sum.push(await timed('openssl', ['dgst', '-sha256', text]));
    for (const [what, way] of Object.entries(ways)) got[what].push(await upload(...way));
  }
  const rate = (list) => bytes / 1e6 / middle(list);
  const say = (what, list, used) => console.log(`${what.padEnd(30)} ${rate(list).toFixed(0).padStart(6)} MB/s  ${(rate(list) / rate(copy)).toFixed(2).padStart(5)} of a copy` +
    (used ? `  ${(bytes / 1e6 / middle(used)).toFixed(0).padStart(6)} MB a second of processor` : ''));
  console.log(`${(bytes / 1e6).toFixed(0)} MB of text, median of ${ROUNDS}`);
  say('copy, fsync', copy);
  say('SHA-256', sum);
  for (const [what, list] of Object.entries(got)) say(what, list.map((x) => x.took), list.map((x) => x.used));

  // A shard of many GB, checked; what the server holds at most while it comes.
  const piece = fs.readFileSync(text).subarray(0, 64e6);
  const whole = piece.subarray(0, piece.lastIndexOf(10) + 1);
  const times = Math.ceil(GB * 2 ** 30 / whole.length);
  const rest = kb('VmRSS');
  fs.writeFileSync(`/proc/${s.pid}/clear_refs`, '5'); // the peak begins anew
  const begin = performance.now();
  const child = spawn('curl', ['-sSf', '-o', `${dir}/answer`, '-H', `Authorization: Bearer ${s.token}`, '-T', '-', `${s.url}/v1/datasets/checked/shards/large.jsonl`], { stdio: ['pipe', 'inherit', 'inherit'] });
  const ended = once(child, 'close');
  for (let i = 0; i < times; i++) if (!child.stdin.write(whole)) await once(child.stdin, 'drain');
  child.stdin.end();
  await ended;
  const seconds = (performance.now() - begin) / 1000;
  const made = JSON.parse(fs.readFileSync(`${dir}/answer`, 'utf8'));
  if (made.bytes !== times * whole.length) throw new Error(JSON.stringify(made));
  console.log(`${(made.bytes / 2 ** 30).toFixed(2)} GiB, ${made.records} records, checked: ${(made.bytes / 1e6 / seconds).toFixed(0)} MB/s; the server grew by ${((kb('VmHWM') - rest) / 1024).toFixed(1)} MB at most`);
} finally {
  await s.kill9();
  s.sweep();
}
