// app.js - the page: which view the URL names, who is logged in, and whether
// the server is there.
//
// The view stands in the fragment, query included: #/jobs, #/jobs/7?series=lr.
import { connection, Problem } from './api.js';
import { ago } from './format.js';
import { attribute, h, text } from './dom.js';
import { datasetView } from './dataset.js';
import { datasetsView } from './datasets.js';
import { jobView } from './job.js';
import { jobsView } from './jobs.js';
import { loginByCode, loginForm, takeCode } from './login.js';

const main = document.querySelector('main');
const live = document.querySelector('#live');

const announce = sentence => text(live, sentence);
const go = hash => {
  location.hash = hash;
};

// What the fragment's path names: the first that matches.
const views = [
  { of: /^\/jobs\/(\d+)$/, view: jobView },
  { of: /^\/datasets$/, view: datasetsView },
  { of: /^\/datasets\/([A-Za-z0-9][A-Za-z0-9._-]{0,127})$/, view: datasetView },
  { of: /^/, view: jobsView, path: '/jobs' },
];

function route() {
  const [path, query] = location.hash.slice(1).split('?');
  const { of, view, path: fixed } = views.find(v => v.of.test(path));
  return { view, id: of.exec(path)[1] ?? null, path: fixed ?? path, query: new URLSearchParams(query) };
}

// Which part of the page this is.
function markNavigation(path) {
  for (const link of document.querySelectorAll('nav a'))
    attribute(link, 'aria-current', `#${path}/`.startsWith(`${link.getAttribute('href')}/`) ? 'page' : null);
}

let leave = null; // ends the view that is shown
let hint = null;  // for the login form

async function show() {
  leave?.abort();
  leave = new AbortController();
  const { signal } = leave;
  const { view, id, path, query } = route();
  markNavigation(path);
  // What a view keeps in the URL is no step in the browser's history.
  const keep = values => {
    for (const [name, value] of Object.entries(values))
      query.set(name, value);
    history.replaceState(null, '', `#${path}?${query}`);
  };
  delete main.dataset.version;
  try {
    await view(main, { id, query, signal, go, keep, announce });
  } catch (error) {
    if (signal.aborted)
      return;
    if (error instanceof Problem && error.status === 401) {
      document.title = 'Pawl';
      loginForm(main, hint, show);
      hint = null;
      return;
    }
    main.replaceChildren(h('h1', null, 'This did not work'), h('p.error', null, error.message),
      h('button', { type: 'button', onclick: show }, 'Try again'));
    if (!(error instanceof Problem))
      throw error; // our own mistake: let the console tell
  }
}

async function open() {
  const code = takeCode();
  if (code !== null) {
    try {
      hint = await loginByCode(code);
    } catch (error) {
      hint = `The login link did not work: ${error.message}.`;
    }
  }
  await show();
}

function showConnection() {
  const bar = document.querySelector('#connection');
  document.body.classList.toggle('lost', connection.lost);
  bar.hidden = !connection.lost;
  if (!connection.lost)
    return;
  text(bar.querySelector('span'), connection.seenAt
    ? `No answer from the server; what stands here was heard ${ago(connection.seenAt)}. The page keeps trying.`
    : 'No answer from the server. The page keeps trying.');
}

connection.addEventListener('change', showConnection);
setInterval(showConnection, 5000); // the age of what is shown
document.querySelector('#connection button').addEventListener('click', () => connection.tryNow());
addEventListener('hashchange', open);
open();
