// The weights are of use outside: model.py, which knows torch and nothing of
// Pawl, gives what the worker gives.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { bin, chessLines, chessSpec, jsonl, root, tiny, tinySpec, withServer } from '../harness.mjs';

const python = ['/usr/bin/python3', 'python3'].find((p) => spawnSync(p, ['-c', 'import torch']).status === 0);

function both(s, model, records) {
  fs.writeFileSync(`${s.dir}/model.safetensors`, model);
  fs.writeFileSync(`${s.dir}/records.jsonl`, records);
  const input = fs.readFileSync(`${s.dir}/records.jsonl`);
  const run = (program, args) => {
    const r = spawnSync(program, args, { input, encoding: 'utf8', maxBuffer: 64 << 20 });
    assert.equal(r.status, 0, r.stderr);
    return r.stdout.trimEnd().split('\n').map((l) => JSON.parse(l));
  };
  return [
    run(path.join(bin, 'pawl-worker'), ['predict', '--model', `${s.dir}/model.safetensors`]),
    run(python, [path.join(root, 'deploy/examples/model.py'), `${s.dir}/model.safetensors`]),
  ];
}

function near(a, b) {
  assert.equal(a.length, b.length);
  let worst = 0;
  a.forEach((x, i) => {
    assert.equal(x.policy.length, b[i].policy.length);
    x.policy.forEach((p, k) => { worst = Math.max(worst, Math.abs(p - b[i].policy[k])); });
    if ('value' in x || 'value' in b[i]) worst = Math.max(worst, Math.abs(x.value - b[i].value));
    assert.ok(Math.abs(x.policy.reduce((m, n) => m + n, 0) - 1) < 1e-4, 'a policy sums to 1');
  });
  return worst;
}

test('model.py and the worker agree within 1e-5, on chess records of all shapes', async (t) => {
  await withServer({}, async (s) => {
    await s.uploadChess();
    const job = await s.submit(chessSpec({ training: { epochs: 2, optimizer: { lr: 0.003 } } }));
    await s.completed(job.id);
    const model = (await s.get(`/v1/jobs/${job.id}/model`)).expect(200).body;
    const records = chessLines().filter((_, i) => i % 13 === 0);
    const [worker, py] = both(s, model, records.join('\n') + '\n');
    assert.equal(worker.length, records.length);
    const worst = near(worker, py);
    t.diagnostic(`largest difference ${worst}`);
    assert.ok(worst < 1e-5, `${worst}`);
    // What the records say of the answer is not asked for.
    const bare = records.map((line) => { const { policy, value, ...rest } = JSON.parse(line); return JSON.stringify(rest); });
    assert.deepEqual(both(s, model, bare.join('\n') + '\n')[0], worker);
    // It learned something that the records know: better than a guess.
    const loss = (p) => records.reduce((sum, line, i) => sum - JSON.parse(line).policy.reduce((m, q, k) => m + q * Math.log(p[i].policy[k] + 1e-9), 0), 0) / records.length;
    const guess = records.reduce((sum, line) => sum + Math.log(JSON.parse(line).policy.length), 0) / records.length;
    assert.ok(loss(worker) < guess, `${loss(worker)} against ${guess}`);
  });
});

test('so they do with empty inputs, numbers and rows of mixed columns', async () => {
  await withServer({}, async (s) => {
    const record = {
      x: { kind: 'tokens', dim: 'X', vocab: 16 },
      n: { kind: 'numbers', size: 3 },
      legal: { kind: 'rows', dim: 'A', columns: [{ vocab: 16 }, { scale: 10 }] },
      policy: { kind: 'target', over: 'legal', loss: 'cross_entropy' },
      value: { kind: 'target', loss: 'mse' },
    };
    const rec = (i) => ({ ...tiny(i), x: i % 3 ? [i % 16] : [], n: [i, -i, 0.5], legal: [[i % 16, i], [1, 2.5], [3, -7]], policy: [0.2, 0.3, 0.5] });
    const text = jsonl(Array.from({ length: 24 }, (_, i) => rec(i)));
    await s.upload('mixed', { 'a.jsonl': text });
    const job = await s.submit({ ...tinySpec({ data: { dataset: 'mixed' } }), record });
    await s.completed(job.id);
    const [worker, py] = both(s, (await s.get(`/v1/jobs/${job.id}/model`)).body, text);
    assert.ok(near(worker, py) < 1e-5);
  });
});
