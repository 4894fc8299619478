// jobs.js - the list: what runs, how far, and why the rest waits.
import { get, keepLive, withQuery } from './api.js';
import { attribute, h, Rows, text } from './dom.js';
import { ago, count, duration, join, moment, percent, perSecond } from './format.js';
import { ProgressBar, StateLabel } from './state.js';

const PAGE = 50, MOST = 1000;
const REFRESH_MS = 1500;

export function stepsText(p) {
  if (!p)
    return null;
  const steps = p.steps ? `step ${count(p.step)} of ${count(p.steps)}`
    : p.step ? `step ${count(p.step)}` : null;
  const cycle = p.cycles > 1 || p.cycle > 1
    ? `cycle ${p.cycle}${p.cycles ? ` of ${p.cycles}` : ''}` : null;
  return join(' · ', cycle, steps, p.steps ? percent(p.fraction) : null);
}

// What sets a job of a sweep apart: "seed 3, lr 0.01".
export function sweepText(sweep) {
  if (!sweep)
    return null;
  const name = pointer => pointer.split('/').at(-1).replaceAll('~1', '/').replaceAll('~0', '~');
  return Object.entries(sweep.values)
    .map(([pointer, v]) => `${name(pointer)} ${typeof v === 'string' ? v : JSON.stringify(v)}`)
    .join(', ');
}

function jobRow(id) {
  const state = new StateLabel();
  const name = h('a.name', { href: `#/jobs/${id}` });
  const reason = h('p.reason');
  const number = h('span.id');
  const bar = new ProgressBar();
  const steps = h('span.steps');
  const rate = h('td.rate', { role: 'cell' });
  const left = h('td.left', { role: 'cell' });
  const time = h('time');
  const node = h('tr.job', { role: 'row', 'data-id': id },
    h('td.state-cell', { role: 'cell' }, state.node),
    h('td.title', { role: 'cell' },
      h('div', null, name, number), reason),
    h('td.progress', { role: 'cell' }, bar.node, steps),
    rate, left, h('td.when', { role: 'cell' }, time));
  return {
    node,
    update(job) {
      const p = job.progress ?? {};
      const moves = job.state === 'running';
      state.update(job.state);
      attribute(node, 'data-state', job.state);
      text(name, job.name || `job ${id}`);
      text(number, join(' · ', `#${id}`, sweepText(job.sweep)));
      text(reason, job.reason);
      reason.hidden = !job.reason;
      const label = stepsText(p);
      bar.update(p.steps ? p.fraction : null, job.state, label);
      text(steps, label ?? 'not started');
      text(rate, moves ? perSecond(p.records_per_s) ?? '—' : '');
      text(left, moves ? join(' ', duration(p.eta_s), p.eta_s != null ? 'left' : null) ?? '—' : '');
      text(time, ago(job.created_at));
      attribute(time, 'datetime', job.created_at);
      attribute(time, 'title', `created ${moment(job.created_at)}`);
    },
  };
}

const head = ['State', 'Job', 'Progress', 'Speed', 'Time left', 'Created'];

export async function jobsView(main, { query, signal, go }) {
  const body = h('tbody', { role: 'rowgroup' });
  const rows = new Rows(body, jobRow);
  const table = h('table.jobs', { role: 'table', hidden: true, 'aria-label': 'jobs' },
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' },
      head.map(title => h('th', { role: 'columnheader', scope: 'col' }, title)))),
    body);
  const empty = h('div.empty', { hidden: true },
    h('p', null, 'No jobs yet. One is submitted like this:'),
    h('pre', null, 'curl -H "Authorization: Bearer $(cat DIR/token)" \\\n'
      + `     --json @job.json ${location.origin}/v1/jobs`));
  const more = h('button', { type: 'button', hidden: true }, 'Show more');
  const waiting = h('p.muted', null, 'Asking the server …');
  main.replaceChildren(h('h1', null, 'Jobs'), waiting, table, empty, h('p', null, more));
  document.title = 'Jobs · Pawl';

  const limit = Math.min(MOST, Math.max(PAGE, Number(query.get('limit')) || PAGE));
  more.addEventListener('click', () => go(`#/jobs?limit=${Math.min(MOST, limit + PAGE)}`));
  // Up and down walk the list, as Tab does.
  body.addEventListener('keydown', event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const links = [...body.querySelectorAll('a.name')];
    const to = step && links[links.indexOf(document.activeElement) + step];
    if (to) {
      event.preventDefault();
      to.focus();
    }
  });

  await keepLive(signal, async () => {
    const list = await get(withQuery('/v1/jobs', { limit }), { signal });
    rows.update(list.items, job => job.id);
    waiting.remove();
    table.hidden = list.items.length === 0;
    empty.hidden = list.items.length > 0;
    more.hidden = !list.next || limit >= MOST;
    return REFRESH_MS;
  });
}
