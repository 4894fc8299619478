// login.js - who may look: a one-time code from the URL, or the token.
//
// Either is posted once to /v1/login, which answers with an HttpOnly cookie.
// The page keeps neither.
import { get, post, Problem } from './api.js';
import { h, text } from './dom.js';

// Take `#login=CODE` out of the address bar, before anything else can see it or
// the browser remembers it. Returns the code or null.
export function takeCode() {
  const found = /^#login=(.+)$/.exec(location.hash);
  if (!found)
    return null;
  history.replaceState(null, '', `${location.pathname}#/jobs`);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

// Log in by code. null: fine; else a sentence to show above the token field.
export async function loginByCode(code) {
  try {
    await post('/v1/login', { code });
    return null;
  } catch (error) {
    if (!(error instanceof Problem) || error.status >= 500)
      throw error;
  }
  // A used link opened again in a browser that is logged in already is fine.
  try {
    await get('/v1/jobs?limit=1');
    return null;
  } catch (error) {
    if (!(error instanceof Problem))
      throw error;
    return 'This link was used already, or is too old. The token opens the page too.';
  }
}

// The form; calls `done` once the cookie is there.
export function loginForm(main, hint, done) {
  const field = h('input', {
    id: 'token', name: 'token', type: 'password', required: true,
    autocomplete: 'current-password', spellcheck: 'false',
    'aria-describedby': 'login-help login-error',
  });
  const button = h('button.primary', { type: 'submit' }, 'Open');
  const error = h('p.error', { id: 'login-error', role: 'alert' }, hint ?? '');
  const form = h('form.login', {
    async onsubmit(event) {
      event.preventDefault();
      button.disabled = true;
      text(error, '');
      try {
        await post('/v1/login', { token: field.value.trim() });
        field.value = '';
        done();
      } catch (problem) {
        text(error, problem instanceof Problem && problem.status < 500
          ? 'That is not this server’s token.'
          : `The server could not be asked: ${problem.message}.`);
        field.select();
      } finally {
        button.disabled = false;
      }
    },
  },
  h('h1', null, 'Pawl'),
  h('p.muted', { id: 'login-help' },
    'Paste the server’s token. It lies in the file ', h('code', null, 'token'),
    ' of its state folder. Or open the link that pawld printed when it started.'),
  h('label', { for: 'token' }, 'Token'),
  h('div.field', null, field, button),
  error);
  main.replaceChildren(form);
  field.focus();
}
