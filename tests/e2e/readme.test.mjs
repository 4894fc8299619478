// What the README tells a reader to type is run as it is printed.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { bin, root, sha256 } from '../harness.mjs';

const readme = fs.readFileSync(path.join(root, 'README.md'), 'utf8');

test('the first round of the README works as printed', { timeout: 300_000 }, () => {
  const block = /^```sh\n([\s\S]*?)^```/m.exec(readme)[1];
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-readme-'));
  fs.mkdirSync(`${dir}/build`);
  fs.symlinkSync(bin, `${dir}/build/bin`);
  for (const name of ['tests', 'deploy']) fs.symlinkSync(path.join(root, name), `${dir}/${name}`);
  try {
    // Job control and a stop at the first error are the reader's eyes. Python is the
    // one that has torch.
    const script = `set -emo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\npython3() { ${python()} "$@"; }\ncurl() { command curl --fail-with-body "$@"; }\n${block}`;
    const r = spawnSync('bash', ['-c', script], { cwd: dir, encoding: 'utf8', timeout: 280_000 });
    assert.equal(r.status, 0, `${r.stdout}\n${r.stderr}`);
    assert.match(r.stdout, /completed/);
    assert.match(r.stdout, /finished/);
    const model = fs.readFileSync(`${dir}/chess.safetensors`);
    assert.match(r.stdout, new RegExp(`model_sha256 +${sha256(model)}`));
    assert.match(fs.readFileSync(`${dir}/metrics.csv`, 'utf8'), /^cycle,step,series,value\r?\n1,1,/);
    assert.match(r.stdout, /value/);
    assert.ok(!fs.existsSync(`${dir}/state/url`), 'the server is stopped');
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});

test('every file that README and ARCHITECTURE name exists', () => {
  for (const page of ['README.md', 'ARCHITECTURE.md']) {
    const text = fs.readFileSync(path.join(root, page), 'utf8');
    for (const [, name] of text.matchAll(/\]\(([^):]+)\)/g)) assert.ok(fs.existsSync(path.join(root, name)), `${page}: ${name}`);
    for (const [, name] of text.matchAll(/`((?:schema|server|worker|web|tests|deploy)\/[^`* {]*)`/g))
      assert.ok(fs.existsSync(path.join(root, name)), `${page}: ${name}`);
  }
});

function python() {
  for (const p of ['/usr/bin/python3', 'python3']) if (spawnSync(p, ['-c', 'import torch']).status === 0) return p;
  throw new Error('no python3 with torch');
}
