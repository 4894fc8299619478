// strace.mjs - stop a process at a system call of one's choice.
//
// A point is (thread, system call, n). An undisturbed run under strace tells which
// there are; then one run each has the process killed, or the call fail, right there.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import { signal, until } from '../harness.mjs';

const long = Boolean(process.env.TEST_LONG);

// All that leaves a mark outside the process.
export const CALLS = ['write', 'writev', 'pwrite64', 'pwritev', 'fsync', 'fdatasync', 'ftruncate', 'fallocate',
  'rename', 'renameat', 'unlink', 'sendto', 'sendmsg', 'sendfile', 'shutdown'];
const SIDE = Math.max(1, Math.min(4, os.cpus().length)); // points tried side by side

// Is anybody allowed to trace here? null, or why not.
function noTracing() {
  const r = spawnSync('strace', ['-qq', '-e', 'trace=write', '-e', 'inject=write:signal=SIGKILL:when=1', 'sh', '-c', 'echo no'], { encoding: 'utf8' });
  if (r.error) return `strace cannot be run here (${r.error.code})`;
  if (r.stdout || r.signal !== 'SIGKILL') return `strace may not trace or kill here: ${r.stderr.trim().split('\n')[0] || `status ${r.status}`}`;
  return null;
}
export const skip = noTracing() ?? false;

// strace on one thread (or, without inject, on all of a process, with their calls in
// `file`); resolves when it has attached.
export async function attach(pid, { tid, inject, file }) {
  const args = [...(tid ? ['-p', String(tid)] : ['-f', '-p', String(pid)]), '-o', file ?? '/dev/null',
    '-e', `trace=${inject ? inject.call : CALLS.join(',')}`];
  if (inject) args.push('-e', `inject=${inject.call}:${inject.error ? `error=${inject.error}` : 'signal=SIGKILL'}:when=${inject.n}`);
  const child = spawn('strace', args, { stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '', over = false;
  child.stderr.on('data', (d) => { said += d; });
  const ended = new Promise((done) => child.on('close', () => { over = true; done(); }));
  await until('strace to attach', () => {
    if (over && !/attached/.test(said)) throw new Error(`strace: ${said}`);
    return /attached/.test(said);
  }, { every_ms: 2 });
  return { async detach() { signal(child.pid, 'SIGTERM'); await ended; } };
}

export const threads = (pid) => fs.readdirSync(`/proc/${pid}/task`).map(Number).sort((a, b) => a - b);

// {"thread index/call": how often} of what strace wrote down.
export function counted(file, tids) {
  const counts = {};
  for (const line of fs.readFileSync(file, 'latin1').split('\n')) {
    const m = /^(\d+)\s+(\w+)\(/.exec(line);
    const thread = m && tids.indexOf(Number(m[1]));
    if (m && thread >= 0) counts[`${thread}/${m[2]}`] = (counts[`${thread}/${m[2]}`] ?? 0) + 1;
  }
  return counts;
}
export const pointsOf = (counts) => Object.entries(counts).flatMap(([key, n]) => {
  const [thread, call] = key.split('/');
  return Array.from({ length: n }, (_, i) => ({ thread: Number(thread), call, n: i + 1 }));
});

// A few of each thread and call first, then any: rare calls matter as much.
export function sample(points, size, random) {
  const shuffled = points.map((p) => [random(), p]).sort((a, b) => a[0] - b[0]).map((x) => x[1]);
  const seen = {}, first = [], rest = [];
  for (const p of shuffled) {
    const key = `${p.thread}/${p.call}`;
    seen[key] = (seen[key] ?? 0) + 1;
    (seen[key] <= 2 ? first : rest).push(p);
  }
  return [...first, ...rest].slice(0, size);
}

// Side by side, in order, until all are done or the sample's time is over; how many
// were begun. All that went wrong is told at the end.
export async function each(list, seconds, body) {
  const end = Date.now() + seconds * 1000;
  const wrong = [];
  let begun = 0;
  await Promise.all(Array.from({ length: SIDE }, async () => {
    while (begun < list.length && (long || Date.now() < end)) {
      const p = list[begun++];
      try {
        await body(p);
      } catch (e) {
        wrong.push(`${p.error ?? 'killed'} at ${nameOf(p)}: ${e.stack}`);
      }
    }
  }));
  assert.ok(!wrong.length, `${wrong.length} of ${begun} points: ${wrong.slice(0, 8).join('\n\n')}`);
  return begun;
}
export const nameOf = (p) => `${p.thread === undefined ? '' : `thread ${p.thread}, `}${p.call} ${p.n}${p.workerToo ? ', and the worker' : ''}`;
