// datasets.js - the list of datasets.
import { get, keepLive, withQuery } from './api.js';
import { attribute, h, Rows, text } from './dom.js';
import { ago, bytes, count, moment } from './format.js';

const PAGE = 50, MOST = 1000;
const REFRESH_MS = 3000;

// How records get there; also where there is a dataset already.
export const uploadHint = (name = 'NAME') =>
  'curl -H "Authorization: Bearer $(cat DIR/token)" \\\n'
  + `     -T shard-0000.jsonl ${location.origin}/v1/datasets/${name}/shards/`;

function datasetRow(name) {
  const shards = h('td.number', { role: 'cell' });
  const records = h('td.number', { role: 'cell' });
  const size = h('td.number', { role: 'cell' });
  const time = h('time');
  const node = h('tr.set', { role: 'row', 'data-name': name },
    h('td.title', { role: 'cell' }, h('a.name', { href: `#/datasets/${name}` }, name)),
    records, shards, size, h('td.when', { role: 'cell' }, time));
  return {
    node,
    update(set) {
      text(records, `${count(set.records)} records`);
      text(shards, set.shards === 1 ? '1 shard' : `${count(set.shards)} shards`);
      text(size, bytes(set.bytes));
      text(time, ago(set.created_at));
      attribute(time, 'datetime', set.created_at);
      attribute(time, 'title', `created ${moment(set.created_at)}`);
    },
  };
}

export async function datasetsView(main, { query, signal, go }) {
  const body = h('tbody', { role: 'rowgroup' });
  const rows = new Rows(body, datasetRow);
  const table = h('table.jobs', { role: 'table', hidden: true, 'aria-label': 'datasets' },
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' },
      ['Dataset', 'Records', 'Shards', 'Size', 'Created'].map(title => h('th', { role: 'columnheader', scope: 'col' }, title)))),
    body);
  const empty = h('div.empty', { hidden: true },
    h('p', null, 'No datasets yet. A shard of JSON lines is uploaded like this, and makes one:'),
    h('pre', null, uploadHint()));
  const more = h('button', { type: 'button', hidden: true }, 'Show more');
  const waiting = h('p.muted', null, 'Asking the server …');
  main.replaceChildren(h('h1', null, 'Datasets'), waiting, table, empty, h('p', null, more));
  document.title = 'Datasets · Pawl';
  const limit = Math.min(MOST, Math.max(PAGE, Number(query.get('limit')) || PAGE));
  more.addEventListener('click', () => go(`#/datasets?limit=${Math.min(MOST, limit + PAGE)}`));

  await keepLive(signal, async () => {
    const list = await get(withQuery('/v1/datasets', { limit }), { signal });
    rows.update(list.items, set => set.name);
    waiting.remove();
    table.hidden = list.items.length === 0;
    empty.hidden = list.items.length > 0;
    more.hidden = !list.next || limit >= MOST;
    return REFRESH_MS;
  });
}
