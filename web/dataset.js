// dataset.js - one dataset: what its records are like, what to pad them to, and
// what is wrong with some of them.
//
// A sample is shown at once; the count of all records is started by a button and
// followed. With ?job= records are looked at as that job describes them.
import { get, keepLive, Problem, withQuery } from './api.js';
import { attribute, h, text } from './dom.js';
import * as format from './format.js';
import { Histogram } from './histogram.js';
import { uploadHint } from './datasets.js';
import { ProgressBar } from './state.js';

const REFRESH_MS = 3000;
const WAIT_S = 1; // between two looks at how far a count is
const SHARDS = 100; // shown before all of them are asked for

const waste = f => typeof f === 'number' ? `${(f * 100).toFixed(1)} %` : null;

function table(className, heads, rows) {
  return h(`table.${className}`, { role: 'table' },
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads.map(t => h('th', { role: 'columnheader', scope: 'col' }, t)))),
    h('tbody', { role: 'rowgroup' }, rows.map(cells => h('tr', { role: 'row' }, cells.map((c, i) =>
      h('td', { role: 'cell', 'data-head': heads[i] }, c))))));
}

const placeText = p => format.join(', ', p.shard, p.line ? `line ${format.count(p.line)}` : `offset ${format.count(p.offset)}`);

// Into the clipboard; where a page may not (plain HTTP from afar), select it.
async function copy(code, button, announce) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    announce('Copied');
    text(button, 'Copied');
  } catch {
    getSelection().selectAllChildren(code);
    text(button, 'Selected');
    announce('Selected: copy it with your keyboard');
  }
}

// ---- parts of the view -------------------------------------------------------

class Head {
  constructor(name) {
    this.facts = h('dl.facts');
    this.node = h('header.summary', null,
      h('p.crumbs', null, h('a', { href: '#/datasets' }, 'Datasets'), ` / ${name}`),
      h('div.headline', null, h('h1', null, name)), this.facts);
  }

  update(set, census) {
    const by = { dataset: 'the dataset’s description', job: 'the job’s description' };
    const facts = {
      Records: format.count(set.records),
      Shards: format.count(set.shards.length),
      Size: format.bytes(set.bytes),
      'Looked at by': census ? by[census.described_by] ?? 'its lists: it has no description' : null,
      'Bad lines': census ? format.count(census.bad.count) : null,
      Duplicates: census?.duplicates ? format.count(census.duplicates.records) : null,
      'Distinct shapes': census ? `${census.shapes_estimated ? 'about ' : ''}${format.count(census.shapes)}` : null,
      'Mean value': census?.value ? format.value(census.value.mean) : null,
      'Policies off 1': census?.policy ? `${format.count(census.policy.off)} of ${format.count(census.policy.records)}` : null,
    };
    this.facts.replaceChildren(...Object.entries(facts).filter(([, v]) => v !== null).map(([name, v]) =>
      h('div', { 'data-fact': name }, h('dt', null, name), h('dd', null, v))));
  }
}

// How much of it was looked at, and the button that has all of it counted.
class Look {
  constructor(start) {
    this.what = h('p.what');
    this.bar = new ProgressBar();
    this.button = h('button', { type: 'button', onclick: start }, 'Count all records');
    this.wrong = h('p.error', { role: 'alert' });
    this.node = h('section.look', { 'aria-labelledby': 'look-title' },
      h('h2', { id: 'look-title' }, 'Census'), this.what, this.bar.node, this.wrong, this.doing = h('p', null, this.button));
  }

  update(census, progress, wrong) {
    const { sampled } = census ?? {};
    text(this.what, progress ? `Counting: ${format.percent(progress.fraction)} of ${format.bytes(progress.of_bytes)} read.`
      : !census ? 'Nothing was looked at.'
        : census.complete ? format.join(' ', 'All records were counted', census.counted_at && `${format.ago(census.counted_at)}`) + '.'
          : sampled ? `A sample: the beginnings of ${format.count(sampled.shards)} of ${format.count(sampled.of.shards)} shards, `
            + `${format.count(census.records)} of ${format.count(sampled.of.records)} records.`
            : 'A sample.');
    this.bar.node.hidden = !progress;
    this.bar.update(progress?.fraction ?? null, 'running', progress ? format.percent(progress.fraction) : null);
    this.doing.hidden = Boolean(progress) || (census?.complete ?? false);
    text(this.wrong, wrong ?? '');
    this.wrong.hidden = !wrong;
    attribute(this.node, 'data-complete', census?.complete ? 'yes' : 'no');
  }
}

class Lengths {
  constructor() {
    this.plots = new Map();
    this.body = h('div');
    this.node = h('section', { 'aria-labelledby': 'lengths-title', hidden: true },
      h('h2', { id: 'lengths-title' }, 'Lengths'), this.body);
  }

  update(census) {
    const dims = Object.entries(census.dims).filter(([, d]) => d.records > 0);
    for (const [name, plot] of this.plots) {
      if (!census.dims[name]?.records) {
        plot.close();
        plot.node.remove();
        this.plots.delete(name);
      }
    }
    for (const [name, dim] of dims) {
      if (!this.plots.has(name)) {
        this.plots.set(name, new Histogram(name));
        this.body.append(this.plots.get(name).node);
      }
      this.plots.get(name).draw(dim);
    }
    this.node.hidden = dims.length === 0;
  }

  close() {
    for (const plot of this.plots.values())
      plot.close();
  }
}

function advice(census, announce) {
  const a = census.advice;
  const row = (name, one) => {
    const padding = one.padding ?? { mode: 'dynamic' };
    const code = h('code', null, JSON.stringify(padding));
    const button = h('button', { type: 'button', 'aria-label': `Copy the padding: ${name}` }, 'Copy');
    button.addEventListener('click', () => copy(code, button, announce));
    return [name, waste(one.waste), format.count(one.shapes) ?? 'very many', code, button];
  };
  const ladders = Object.entries(a?.ladder ?? {}).map(([k, one]) => row(`ladder of ${k}`, one));
  return h('section', { 'aria-labelledby': 'advice-title', hidden: !a },
    h('h2', { id: 'advice-title' }, 'Padding'),
    h('p.muted', null, 'To be pasted as runtime.padding. Waste: the share of padded entries that hold nothing, in '
      + `micro-batches of ${a?.micro_batch} drawn at random.`
      + (census.described_by ? '' : ' Without a record description dimensions bear the names of lists.')),
    a && table('advice', ['Padding', 'Waste', 'Shapes, at most', 'runtime.padding', ''], [
      row('dynamic', a.dynamic), row('stable, 99 %', a.stable.p99), row('stable, all', a.stable.p100), ...ladders]));
}

function fields(census) {
  const figure = v => typeof v === 'number' ? format.value(v) ?? '' : '';
  const rows = Object.entries(census.fields).map(([name, f]) =>
    [h('b', null, name), format.join(', ', f.kind, f.dim), figure(f.min), figure(f.mean), figure(f.p99), figure(f.max)]);
  return h('section', { 'aria-labelledby': 'fields-title', hidden: !rows.length },
    h('h2', { id: 'fields-title' }, 'Fields'),
    h('p.muted', null, 'Of lists their lengths, of numbers their values.'),
    table('fields', ['Field', 'Kind', 'Least', 'Mean', '99 %', 'Most'], rows));
}

// A list of places with a title that says how many there are in all.
function places(id, title, all, heads, rows) {
  return h('section', { 'aria-labelledby': `${id}-title`, 'data-list': id, hidden: !rows.length },
    h('h2', { id: `${id}-title` }, all > rows.length ? `${title}: the first ${rows.length} of ${format.count(all)}` : `${title}: ${format.count(all)}`),
    table('places', heads, rows));
}

const trouble = census => [
  places('bad', 'Bad lines', census.bad.count, ['Place', 'Field', 'Reason'],
    census.bad.first.map(b => [placeText(b), b.field || '', b.reason])),
  places('duplicates', 'Duplicates', census.duplicates?.records ?? 0, ['Record', 'Is the same as'],
    (census.duplicates?.first ?? []).map(d => [placeText(d), placeText(d.same_as)])),
  places('outliers', 'Unusually long records', census.outliers.length, ['Record', 'Dimension', 'Length'],
    census.outliers.map(o => [placeText(o), o.dim, format.count(o.length)])),
];

function shardTable(set, shards) {
  const base = `/v1/datasets/${set.name}/shards/`;
  return table('shards', ['Shard', 'Records', 'Size', 'Uploaded', 'SHA-256'], shards.map(s => [
    h('a', { href: base + s.name, download: '' }, s.name),
    format.join(', ', `${format.count(s.records)} records`, s.bad ? `${format.count(s.bad)} bad` : null),
    format.join(', ', format.bytes(s.bytes), s.form === 'zstd' ? `${format.bytes(s.stored_bytes)} as zstd` : null),
    format.ago(s.created_at), h('code.digest', null, s.sha256.slice(0, 16))]));
}

function shardList(set) {
  let rows = shardTable(set, set.shards.slice(0, SHARDS));
  const more = h('button', { type: 'button', hidden: set.shards.length <= SHARDS }, `Show all ${format.count(set.shards.length)}`);
  more.addEventListener('click', () => {
    const all = shardTable(set, set.shards);
    rows.replaceWith(all);
    rows = all;
    more.hidden = true;
  });
  return h('section', { 'aria-labelledby': 'shards-title' },
    h('h2', { id: 'shards-title' }, 'Shards'), rows, h('p', null, more),
    h('p.muted', null, 'One more is uploaded like this:'), h('pre', null, uploadHint(set.name)));
}

// JSON with a line for each field.
const byField = record =>
  `{\n${Object.entries(record).map(([name, f]) => `  ${JSON.stringify(name)}: ${JSON.stringify(f)}`).join(',\n')}\n}`;

function description(set) {
  return h('section', { 'aria-labelledby': 'record-title' },
    h('h2', { id: 'record-title' }, 'Record description'),
    set.record
      ? h('pre', { 'data-record': '' }, byField(set.record))
      : h('p.muted', null, 'None is set: uploads are not checked. PUT ', h('code', null, `/v1/datasets/${set.name}`),
        ' with ', h('code', null, '{"record": …}'), ', as in a job, has each shard checked as it arrives.'));
}

// ---- the view ------------------------------------------------------------------

// Of the same shards and the same description a look finds the same.
const identity = set => JSON.stringify([set.shards.map(s => [s.name, s.sha256]), set.record ?? null, set.policy_tolerance ?? null]);

export async function datasetView(main, { id: name, query, signal, announce }) {
  const path = `/v1/datasets/${name}`;
  const job = query.get('job');
  let counting = false, wake = null, wrong = null, census = null, progress = null, shown = null;
  const head = new Head(name);
  const lengths = new Lengths();
  const look = new Look(() => {
    counting = true;
    wrong = null;
    wake?.();
  });
  const rest = h('div.stack'), record = h('div.stack');
  main.replaceChildren(h('p.muted', null, 'Asking the server …'));
  document.title = `${name} · Pawl`;

  const paint = set => {
    head.update(set, census);
    look.update(census, progress, wrong);
    if (census) {
      lengths.update(census);
      rest.replaceChildren(advice(census, announce), ...trouble(census), fields(census));
    }
  };
  // Until the button is pressed, or for so long.
  const idle = () => new Promise(resolve => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      wake = null;
      resolve();
    };
    const timer = setTimeout(end, REFRESH_MS);
    signal.addEventListener('abort', end);
    wake = end;
  });

  // One look; a count that is under way is followed.
  const inspect = async () => {
    const answer = await get(withQuery(`${path}/inspect`, counting ? { job, whole: 1, wait: WAIT_S } : { job }),
      { waits: WAIT_S, signal });
    progress = answer.progress ?? null;
    if (answer.records !== undefined)
      census = answer;
    if (counting && !progress)
      announce('All records were counted');
    counting = progress !== null;
  };

  try {
    await keepLive(signal, async () => {
      const set = await get(path, { signal });
      const now = identity(set);
      const changed = now !== shown;
      if (changed || counting) {
        try {
          await inspect();
        } catch (error) {
          if (!(error instanceof Problem) || error.status === 401 || error.status === 503)
            throw error;
          counting = false;
          progress = null;
          wrong = error.message;
        }
        paint(set);
      }
      if (changed) {
        record.replaceChildren(description(set), shardList(set));
        if (shown === null)
          main.replaceChildren(head.node, look.node, lengths.node, rest, record);
        shown = now;
      }
      if (!counting)
        await idle();
      return 0;
    });
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 404)
      throw error;
    main.replaceChildren(h('h1', null, `There is no dataset ${name}`),
      h('p', null, h('a', { href: '#/datasets' }, 'All datasets')));
  } finally {
    lengths.close();
  }
}
