// panels.js - the quiet parts of a job's view: its model and its settings.
import { attribute, h, text } from './dom.js';

// The finished model: its digest, and the file itself.
export class ModelPanel {
  constructor(id) {
    this.digest = h('code.digest');
    this.node = h('section.model', { hidden: true, 'aria-labelledby': 'model-title' },
      h('h2', { id: 'model-title' }, 'Model'),
      h('p', null,
        h('a.button', { href: `/v1/jobs/${id}/model`, download: '' }, 'Download model.safetensors')),
      h('p', null, h('span.label', null, 'SHA-256 '), this.digest));
  }

  update(job) {
    this.node.hidden = !job.model_sha256;
    text(this.digest, job.model_sha256);
  }
}

// {"restart": {"rss_mb": 900}} → [["restart.rss_mb", "900"]]
function flat(object, prefix = '') {
  return Object.entries(object ?? {}).flatMap(([key, value]) =>
    value !== null && typeof value === 'object' && !Array.isArray(value)
      ? flat(value, `${prefix}${key}.`)
      : [[prefix + key, typeof value === 'string' ? value : JSON.stringify(value)]]);
}

// Numbers that stand for something else (schema/spec.h), in words.
function inWords([key, value]) {
  if (value === '-1')
    return [key, 'the device’s default'];
  if (value === '0' && key.startsWith('restart.'))
    return [key, 'off'];
  if (value === '0' && key === 'threads')
    return [key, 'auto'];
  return [key, value];
}

export class RuntimePanel {
  constructor() {
    this.pairs = h('dl.pairs');
    this.signature = h('code.digest');
    this.node = h('section', { 'aria-labelledby': 'runtime-title' },
      h('h2', { id: 'runtime-title' }, 'Runtime policy'), this.pairs,
      h('p', null, h('span.label', { title: 'SHA-256 of everything that may change the result' },
        'Resume signature '), this.signature));
  }

  update(job) {
    text(this.signature, job.signature);
    const rows = [...flat(job.runtime).map(inWords), ...flat(job.labels, 'label ')];
    const now = JSON.stringify(rows);
    if (this.now === now)
      return;
    this.now = now;
    this.pairs.replaceChildren(...rows.map(([key, value]) =>
      h('div', null, h('dt', null, key), h('dd', null, value))));
    attribute(this.pairs, 'hidden', rows.length === 0 ? '' : null);
  }
}
