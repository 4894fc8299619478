// bad_lines.mjs - lines that are no records of tinyRecord (harness.mjs), and what
// must be said of each: of the same line the same, when a shard is uploaded to a
// dataset with a description and when a job trains on it.
import zlib from 'node:zlib';
import { spawnSync } from 'node:child_process';
import { tiny } from './harness.mjs';

const line = (patch) => JSON.stringify({ ...tiny(5), ...patch });
const without = (key) => { const r = tiny(5); delete r[key]; return JSON.stringify(r); };
const value = (text) => line().replace(/"value":[^}]*/, `"value":${text}`);
const more = (text) => `{${text},${line().slice(1)}`;
const nested = (n) => `${'['.repeat(n)}${']'.repeat(n)}`;

// [what, the line, field that is to blame or '', what the reason says]
export const badLines = [
  ['truncated JSON', line().slice(0, -9), null, /./],
  ['not an object', '[1,2,3]', '', /not a JSON object but a list/],
  ['a bare word', 'record', '', /not a JSON object/],
  ['two records on a line', line() + line(), '', /text after the record/],
  ['wrong type: a string for a list', line({ x: '1,2' }), 'x', /x is a string/],
  ['wrong type: a fraction for an index', line({ x: [1.5] }), 'x', /x\[0\] is 1\.5/],
  ['wrong type: a list for a number', line({ value: [0.5] }), 'value', /value is a list/],
  ['wrong type: null', line({ x: null }), 'x', /x is null/],
  ['missing field x', without('x'), 'x', /no field "x"/],
  ['missing field policy', without('policy'), 'policy', /no field "policy"/],
  ['missing field value', without('value'), 'value', /no field "value"/],
  ['a record of another schema', '{"board":[1,2],"move":3,"score":0.5}', 'legal', /no field "legal"/],
  ['index beyond vocab', line({ x: [16] }), 'x', /x\[0\] is 16, vocab is 16/],
  ['index beyond vocab in a row', line({ legal: [[16], [1]] }), 'legal', /legal\[0\]\[0\] is 16/],
  ['negative index', line({ x: [-1] }), 'x', /negative/],
  ['an index beyond 2^64', line().replace('"x":[5', '"x":[123456789012345678901234567890'), 'x', /vocab is 16/],
  ['NaN', value('NaN'), 'value', /NaN/],
  ['an infinity', value('-Infinity'), 'value', /-Infinity/],
  ['a number that overflows', value('1e999'), 'value', /1e999, too large/],
  ['a number that overflows in an ignored field', more('"id":-1e999'), '', /too large/],
  ['a value beyond 1', value('1.5'), 'value', /between -1 and 1/],
  ['a row of the wrong width', line({ legal: [[1, 2], [3]] }), 'legal', /legal\[0\] has 2 columns/],
  ['a row that is no list', line({ legal: [1, 2] }), 'legal', /legal\[0\] is 1/],
  ['no candidates', line({ legal: [], policy: [] }), null, /./],
  ['policy of another length', line({ policy: [1] }), 'policy', /1 entries, legal has 2 rows/],
  ['policy with a negative entry', line({ policy: [1.5, -0.5] }), 'policy', /negative/],
  ['policy not summing to 1', line({ policy: [0.4, 0.4] }), 'policy', /sums to 0\.8, must be 1 within 0\.01/],
  ['policy summing to just beyond the tolerance', line({ policy: [0.5, 0.5102] }), 'policy', /sums to 1\.0102/],
  ['policy of zeros', line({ policy: [0, 0] }), 'policy', /sums to 0/],
  ['a repeated key', line().replace('}', ',"value":0}'), 'value', /key "value" is repeated/],
  ['a repeated key, once escaped', line().replace('}', ',"\\u0076alue":0}'), 'value', /key "value" is repeated/],
  ['a repeated key of an ignored field', more('"id":1,"id":2'), '', /key "id" is repeated/],
  ['nested too deep', more(`"id":${nested(64)}`), '', /nested deeper than 64 levels/],
  ['a million brackets', '['.repeat(1_000_000), '', /not a JSON object but a list/],
  ['a million brackets in an ignored field', `{"id":${'['.repeat(1_000_000)}`, '', /nested deeper than 64 levels/],
  ['invalid UTF-8', Buffer.from(line({ id: '\u00ff' }), 'latin1'), '', /not valid UTF-8 \(byte 0xff at byte \d+\)/],
  ['invalid UTF-8 in an ignored field', Buffer.concat([Buffer.from('{"id":"'), Buffer.from([0xc3, 0x28]), Buffer.from(`",${line().slice(1)}`)]), '', /not valid UTF-8/],
  ['a NUL byte', more('"id":"a\0b"'), '', /NUL byte at byte \d+/],
  ['a control character', more('"id":"a\x01b"'), '', /control character/],
  ['half a surrogate pair', more('"id":"\\ud800"'), '', /half a surrogate pair/],
  ['the other half', more('"id":"\\udc00\\ud800"'), '', /half a surrogate pair/],
  ['half a surrogate pair in a key', more('"\\udfff":1'), '', /half a surrogate pair/],
  ['a mark in the middle', `\ufeff${line()}`, '', /byte-order mark/],
];

// And lines that look odd, and are records.
export const oddLines = [
  ['a CR at its end', `${line()}\r`],
  ['blanks around it', ` \t${line()} \t\r`],
  ['a number too small for a float', value('1e-400')],
  ['minus zero', value('-0.0')],
  ['all digits of a double', value('0.1000000000000000055511151231257827021181583404541015625')],
  ['an integer beyond 2^64 in an ignored field', more('"id":123456789012345678901234567890')],
  ['a surrogate pair', more('"id":"\\ud83d\\ude00"')],
  ['characters beyond the first plane', more('"id":"\u{1f600}"')],
  ['an escaped NUL in an ignored field', more('"id":"a\\u0000b"')],
  ['nested as deep as may be', more(`"id":${nested(63)}`)],
  ['an escaped name', line().replace('"value"', '"\\u0076al\\u0075e"')],
  ['a policy within the tolerance', line({ policy: [0.5, 0.509] })],
  ['inputs without entries', line({ x: [] })],
];

// ---- one text, however it is sent ----

export function zstd(bytes, ...options) {
  const r = spawnSync('zstd', ['-q', '-c', ...options], { input: bytes, maxBuffer: 2 ** 30 });
  if (r.status !== 0) throw new Error(`zstd: ${r.error ?? r.stderr}`);
  return r.stdout;
}
// zstd frames of so many bytes of text each, and a seek table behind them.
export function seekable(bytes, frame = 65536) {
  const text = Buffer.from(bytes), parts = [], table = [];
  for (let at = 0; at < text.length; at += frame) {
    const piece = text.subarray(at, at + frame), packed = zstd(piece, '--check');
    const entry = Buffer.alloc(8);
    entry.writeUInt32LE(packed.length, 0);
    entry.writeUInt32LE(piece.length, 4);
    parts.push(packed);
    table.push(entry);
  }
  const head = Buffer.alloc(8), foot = Buffer.alloc(9);
  head.writeUInt32LE(0x184d2a5e, 0);
  head.writeUInt32LE(8 * table.length + 9, 4);
  foot.writeUInt32LE(table.length, 0);
  foot.writeUInt32LE(0x8f92eab1, 5);
  return Buffer.concat([...parts, head, ...table, foot]);
}
export const forms = {
  plain: { name: 'a.jsonl', pack: (b) => Buffer.from(b) },
  gz: { name: 'a.jsonl.gz', pack: (b) => zlib.gzipSync(b) },
  zst: { name: 'a.jsonl.zst', pack: (b) => zstd(b) },
  seekable: { name: 'a.jsonl.zst', pack: (b) => seekable(b, Math.max(200, Math.ceil(b.length / 3))) },
};
