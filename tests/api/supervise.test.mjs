// Which processes the supervisor takes for its own, and what it does with them.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { FakeWorker } from '../fake_worker.mjs';
import { Server, bin, signal, tinyShard, tinySpec, until } from '../harness.mjs';

// pawld with something else beside it in pawl-worker's place.
function programsWith(t, script) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-programs-'));
  t.after(() => fs.rmSync(dir, { recursive: true, force: true }));
  fs.copyFileSync(path.join(bin, 'pawld'), path.join(dir, 'pawld'));
  fs.writeFileSync(path.join(dir, 'pawl-worker'), script, { mode: 0o755 });
  return dir;
}

// A process that stands for a worker, and the claim that such a one would send.
function stranger(s, name) {
  const child = spawn('sleep', ['600'], { stdio: 'ignore' });
  const ended = new Promise((done) => child.on('close', (code, sig) => done(sig)));
  const w = new FakeWorker(s, { name, pid: child.pid });
  w.identity.local = true;
  return { w, pid: child.pid, ended };
}

test('a local worker that claims after the start is adopted: its death is seen, and it ends with the server', async () => {
  const s = await Server.start({ workers: 0 });
  let a, b;
  try {
    await s.upload('tiny', { 'a.jsonl': tinyShard(8) });
    const job = (await s.post('/v1/jobs', tinySpec())).expect(201).json;
    a = stranger(s, 'a');
    (await a.w.claim()).expect(201);
    const started = Date.now();
    // The supervisor looks about once a second; the kill must not come before.
    b = stranger(s, 'b');
    (await b.w.claim({ wait: 3 })).expect(204);
    signal(a.pid, 'SIGKILL');
    const lease = await until('the lease to be lost', async () => (await s.leases(job.id)).find((l) => l.outcome));
    assert.ok(Date.now() - started < 20_000, 'seen, not waited for in silence');
    assert.equal(lease.outcome, 'lost');
    assert.match(lease.reason, /is gone/);
  } finally {
    await s.stop();
    // One that was told to end has done so: sleep takes no time for it.
    for (const w of [a, b]) if (w) signal(w.pid, 'SIGKILL');
    if (b) assert.equal(await b.ended, 'SIGTERM', 'the server told it to end');
  }
});

test('where local workers end at once, the job that waits says so, with their last words', async (t) => {
  const programs = programsWith(t, '#!/bin/sh\necho "pawl-worker: libtorch.so.9: no such file" >&2\nexit 127\n');
  const s = await Server.start({ programs, workers: 1 });
  try {
    await s.upload('tiny', { 'a.jsonl': tinyShard(8) });
    const job = await s.submit(tinySpec());
    const told = await s.waitJob(job.id, 'told why', (j) => /end at once/.test(j.reason ?? ''));
    assert.match(told.reason, /waits for a worker.*the server's workers end at once: the last one exited with 127 by itself: .*libtorch\.so\.9: no such file/);
    const next = await s.submit(tinySpec());
    await s.waitJob(next.id, 'told as well', (j) => /libtorch\.so\.9/.test(j.reason ?? ''));
    // A worker from elsewhere does what they cannot.
    const w = new FakeWorker(s);
    (await w.claim()).expect(201);
    await w.finish();
    await s.completed(job.id);
  } finally {
    await s.stop();
  }
});

// Claims and sends heartbeats, like one whose training hangs in a driver: deaf.
const deaf = `#!${process.execPath}
const fs = require('fs'), http = require('http');
process.on('SIGTERM', () => {});
if (process.argv.includes('--standby')) process.stdin.on('data', go).on('end', () => process.exit(0)); else go();
function post(target, body, then) {
  const url = new URL(fs.readFileSync(process.argv[3] + '/url', 'utf8').trim() + target);
  const r = http.request(url, { method: 'POST', headers: { Authorization: 'Bearer ' + fs.readFileSync(process.argv[3] + '/token', 'utf8').trim(), 'Content-Type': 'application/json' } },
    (a) => { let text = ''; a.on('data', (d) => { text += d; }).on('end', () => then(a.statusCode, text)); });
  r.on('error', () => then(0, ''));
  r.end(JSON.stringify(body));
}
function go() {
  const stat = fs.readFileSync('/proc/self/stat', 'latin1');
  const claim = { worker: { name: 'deaf', pid: process.pid, started: Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]),
    boot: fs.readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim(), local: true, devices: [{ kind: 'cpu' }], library: {} }, claim: 'deaf-' + process.pid, wait: 30 };
  post('/v1/leases', claim, (status, text) => {
    if (status !== 201) return setTimeout(go, 100);
    const { lease } = JSON.parse(text);
    let seq = 0;
    const beat = () => post('/v1/leases/' + lease.id + '/heartbeat', { token: lease.token, stage: 'train', position: { step: 1 }, seq: ++seq }, () => setTimeout(beat, 200));
    beat();
  });
}
`;

test('a worker that sends heartbeats but does not save is killed when the drain timeout is over: its lease is lost, no more', async (t) => {
  const s = await Server.start({ programs: programsWith(t, deaf), workers: 1, args: ['--drain-timeout', '2'] });
  try {
    await s.upload('tiny', { 'a.jsonl': tinyShard(8) });
    const job = await s.submit(tinySpec());
    await s.waitJob(job.id, 'at step 1', (j) => j.progress.step === 1);
    const from = Date.now();
    const end = await s.terminate();
    assert.deepEqual([end.code, end.signal], [0, null], s.log);
    const took = Date.now() - from;
    assert.ok(took >= 1900 && took < 15_000, `it took ${took} ms`);
    assert.match(s.log, /has not saved within the drain timeout: killed/);
    s.args = s.args.map((a, i) => (s.args[i - 1] === '--workers' ? '0' : a));
    await s.launch();
    const lease = (await s.leases(job.id))[0];
    assert.equal(lease.outcome, 'lost');
    assert.match(lease.reason, /did not save in time when the server stopped, and was killed by the server/);
    const after = await s.job(job.id);
    assert.equal(after.state, 'queued');
    assert.deepEqual(after.budgets, { failures: 0, lost: 1, no_progress: 0 });
    const w = new FakeWorker(s);
    (await w.claim()).expect(201);
    await w.finish();
    await s.completed(job.id);
  } finally {
    await s.stop();
  }
});
