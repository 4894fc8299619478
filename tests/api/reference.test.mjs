// REFERENCE.md says what the programs do.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { root, withServer } from '../harness.mjs';

const page = fs.readFileSync(path.join(root, 'REFERENCE.md'), 'utf8');
const block = (name) => new RegExp('^```json ' + name + '\\n([^]*?)^```', 'm').exec(page)[1];

test('every call stands in the reference, and no other', () => {
  const code = fs.readFileSync(path.join(root, 'server/routes.c'), 'utf8');
  const served = [...code.matchAll(/READ\("(\S+)"/g)].map((m) => `GET ${m[1]}`)
    .concat([...code.matchAll(/WRITE\("(\w+)", "(\S+)"/g)].map((m) => `${m[1]} ${m[2]}`))
    .concat([...code.matchAll(/\{"(\w+)", "(\S+)"/g)].map((m) => `${m[1]} ${m[2]}`))
    .filter((r) => !/ \/v1\/leases/.test(r));
  const told = [...page.matchAll(/^\| `([A-Z]+ \/\S*)` \|/gm)].map((m) => m[1]);
  assert.ok(served.length > 30, `${served.length} routes found`);
  assert.deepEqual(told.sort(), served.sort());
});

test('the spec of the reference resolves to what it says, and its record is one', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('toy', { 'a.jsonl': block('record') });
    const answer = (await s.post('/v1/jobs?dry_run=1', JSON.parse(block('spec')))).expect(200).json;
    assert.deepEqual(answer.spec, JSON.parse(block('resolved')));
    assert.equal(answer.records, 1);
  });
});
