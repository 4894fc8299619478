// job.js - one job: how far, how well, who trained it and why they stopped.
import { get, keepLive, pages, Problem, withQuery } from './api.js';
import { attribute, h, text } from './dom.js';
import * as format from './format.js';
import { stepsText, sweepText } from './jobs.js';
import { LeaseList, leaseMarks, LeaseTable } from './leases.js';
import { MemoryPanel } from './memory.js';
import { Charts } from './charts.js';
import { ModelPanel, RuntimePanel } from './panels.js';
import { Steps } from './metrics.js';
import { ProgressBar, StateLabel } from './state.js';

const WAIT_S = 25;
const REST_MS = 700; // between two rounds: a job may change many times a second

export const ended = state => ['completed', 'failed', 'canceled'].includes(state);

// What a worker does right now (schema/wire.h).
const stages = { load: 'loading', first_step: 'at its first step', train: 'training',
  validate: 'validating', save: 'saving' };

function exactText(exact) {
  if (!exact)
    return null;
  const tier = exact.tier === 'bit'
    ? 'bit-exact: the same bytes as a run that never stopped'
    : format.join(': ', exact.since_step != null
      ? `order-exact since step ${format.count(exact.since_step)}` : 'order-exact', exact.reason);
  return format.join('. ', tier, exact.inexact_steps
    ? `${format.count(exact.inexact_steps)} steps came out otherwise when they were trained again`
    : null);
}

// {"S": {"count": 3, "longest": 90}} → "S: 3, at most 90"
function exceededText(exceeded) {
  const parts = Object.entries(exceeded ?? {}).map(([dim, { count, longest }]) =>
    `${dim}: ${format.count(count)}, at most ${format.count(longest)}`);
  return parts.length ? parts.join('; ') : null;
}

// Jobs that it comes after: an id, or {job, when} (REFERENCE.md).
function afterText(after) {
  return after?.length ? after.map(a => a.job ? `#${a.job} (any end)` : `#${a}`).join(', ') : null;
}

// The head of the view: name, state, reason, and the figures of the moment.
class Summary {
  constructor(id) {
    this.name = h('h1');
    this.state = new StateLabel('.large');
    this.reason = h('p.reason');
    this.bar = new ProgressBar();
    this.facts = h('dl.facts');
    this.values = new Map();
    this.node = h('header.summary', null,
      h('p.crumbs', null, h('a', { href: '#/jobs' }, 'Jobs'), ` / #${id}`),
      h('div.headline', null, this.name, this.state.node), this.reason,
      this.bar.node, this.facts);
  }

  // A fact whose value is not known is left out.
  fact(name, value) {
    let dd = this.values.get(name);
    if (!dd) {
      dd = h('dd');
      this.values.set(name, dd);
      this.facts.append(h('div', { 'data-fact': name }, h('dt', null, name), dd));
    }
    dd.parentNode.hidden = value === null;
    text(dd, value);
  }

  // What it trains on never changes; a dataset can be looked at.
  data(job) {
    const { dataset, root } = job.spec?.data ?? {};
    if (this.values.has('Data') || (!dataset && !root))
      return;
    this.fact('Data', root ? `files below ${root}` : '');
    if (dataset)
      this.values.get('Data').append(h('a', { href: `#/datasets/${dataset}?job=${job.id}` }, dataset));
  }

  update(job) {
    const p = job.progress ?? {};
    const running = job.state === 'running';
    text(this.name, job.name || `Job ${job.id}`);
    this.state.update(job.state);
    text(this.reason, job.reason);
    this.reason.hidden = !job.reason;
    this.bar.update(p.steps ? p.fraction : null, job.state, stepsText(p));
    this.fact('Progress', stepsText(p));
    this.fact('Worker', job.lease
      ? format.join(', ', job.lease.worker, stages[job.lease.stage] ?? job.lease.stage) : null);
    this.fact('Epochs done', job.spec?.training
      ? `${format.count(p.epoch)} of ${format.count(job.spec.training.epochs)}` : null);
    this.fact('Records', p.records_total
      ? `${format.count(p.records)} of ${format.count(p.records_total)}` : null);
    this.data(job);
    this.fact('Speed', running ? format.perSecond(p.records_per_s) : null);
    this.fact('Time left', running ? format.duration(p.eta_s) : null);
    this.fact('Took', ended(job.state) && job.started_at && job.ended_at
      ? format.duration(format.secondsBetween(job.started_at, job.ended_at)) : null);
    this.fact('Exactness', exactText(job.exact));
    this.fact('Records skipped', job.data?.skipped ? format.count(job.data.skipped) : null);
    this.fact('Policies renormalised', job.data?.renormalised ? format.count(job.data.renormalised) : null);
    this.fact('Longer than foreseen', exceededText(job.data?.exceeded));
    this.fact('Parameters', format.count(job.parameters));
    this.fact('Sweep', job.sweep
      ? `#${job.sweep.id}: ${sweepText(job.sweep)}` : null);
    this.fact('Comes after', afterText(job.after));
    this.fact('Not before', job.not_before_at ? format.moment(job.not_before_at) : null);
    this.fact('Created', format.moment(job.created_at));
    this.fact('Started', format.moment(job.started_at));
    this.fact('Ended', format.moment(job.ended_at));
    const share = p.steps ? format.percent(p.fraction) : null;
    document.title = format.join(' · ', running ? share : job.state,
      job.name || `job ${job.id}`, 'Pawl');
  }
}

// Lengths of the job's cycles; one that is not split into cycles needs no call.
async function stepsOf(job, signal) {
  const p = job.progress ?? {};
  if ((p.cycles ?? 1) <= 1 && (p.cycle ?? 1) <= 1)
    return new Steps([{ number: 1, steps: p.steps }]);
  const cycles = [];
  for await (const { items } of pages(`/v1/jobs/${job.id}/cycles`, {}, { signal }))
    cycles.push(...items);
  return new Steps(cycles);
}

export async function jobView(main, { id, query, signal, keep, announce }) {
  const summary = new Summary(id);
  const charts = new Charts(id, query.get('series'), names => keep({ series: names }));
  const memory = new MemoryPanel(id, charts);
  const list = new LeaseList(id);
  const table = new LeaseTable();
  const model = new ModelPanel(id);
  const runtime = new RuntimePanel();
  main.replaceChildren(h('p.muted', null, 'Asking the server …'));

  let version = null, state = null;
  try {
    await keepLive(signal, async atOnce => {
      const job = await get(withQuery(`/v1/jobs/${id}`,
        atOnce ? {} : { wait: WAIT_S, version }),
      { waits: WAIT_S, signal });
      const [steps, leases] = await Promise.all([
        stepsOf(job, signal),
        list.load(signal),
      ]);
      const marks = leaseMarks(leases, (cycle, step) => steps.of(cycle, step));
      await Promise.all([
        charts.load(steps, marks, signal),
        memory.load(leases, steps, marks, signal),
      ]);
      summary.update(job);
      table.update(leases);
      model.update(job);
      runtime.update(job);
      if (version === null)
        main.replaceChildren(summary.node, model.node, charts.node, table.node,
          memory.node, runtime.node);
      if (state !== null && state !== job.state)
        announce(format.join('. ', `${job.name || `Job ${id}`} is ${job.state}`, job.reason));
      state = job.state;
      version = job.version;
      attribute(main, 'data-version', version);
      return REST_MS;
    });
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 404)
      throw error;
    main.replaceChildren(h('h1', null, `There is no job #${id}`),
      h('p', null, h('a', { href: '#/jobs' }, 'All jobs')));
  } finally {
    charts.close();
    memory.close();
  }
}
