// The dashboard: login, the frame around the views, and the way from one to another.

import { login, logout, may, session, whenLost } from './api.js';
import { field, h, replace, shown } from './dom.js';
import { stop } from './live.js';
import { stopQuestions } from './questions.js';
import { approvalsView, showCount } from './views/approvals.js';
import { auditView } from './views/audit.js';
import { browsersView } from './views/browsers.js';
import { desktopsView } from './views/desktops.js';
import { keysView } from './views/keys.js';
import { machineView } from './views/machine.js';
import { runView, runsView } from './views/runs.js';
import { sandboxView } from './views/sandbox.js';
import { sandboxesView } from './views/sandboxes.js';
import { snapshotsView } from './views/snapshots.js';
import { templatesView } from './views/templates.js';
import { volumesView } from './views/volumes.js';

const VIEWS = [
  { path: 'sandboxes', word: 'Sandboxes', key: 's', view: sandboxesView, one: sandboxView },
  { path: 'browsers', word: 'Browsers', key: 'b', view: browsersView, one: browsersView },
  { path: 'desktops', word: 'Desktops', key: 'd', view: desktopsView, one: desktopsView },
  { path: 'approvals', word: 'Approvals', key: 'p', view: approvalsView, count: showCount },
  { path: 'runs', word: 'Runs', key: 'r', view: runsView, one: runView, scope: 'admin' },
  { path: 'machine', word: 'Machine', key: 'm', view: machineView },
  { path: 'templates', word: 'Templates', key: 't', view: templatesView },
  { path: 'snapshots', word: 'Snapshots', key: 'n', view: snapshotsView },
  { path: 'volumes', word: 'Volumes', key: 'v', view: volumesView },
  { path: 'audit', word: 'Audit', key: 'a', view: auditView },
  { path: 'keys', word: 'Keys and quotas', key: 'k', view: keysView },
];

/** The views that the key may look at. */
function views() {
  return VIEWS.filter(({ scope }) => !scope || may(scope));
}

const app = document.getElementById('app');
let ending = null;
let shortcuts = {};

// The choice of colours is all that the browser keeps.
const THEMES = ['system', 'dark', 'light'];

function theme(next) {
  let now = 'system';
  try {
    if (next) localStorage.setItem('offleash.theme', next);
    now = localStorage.getItem('offleash.theme') ?? now;
  } catch {
    now = next ?? now;
  }
  if (!THEMES.includes(now)) now = 'system';
  if (now === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = now;
  document.dispatchEvent(new Event('offleash-theme'));
  return now;
}

function themeButton() {
  const element = h('button', { type: 'button', class: 'quiet' });
  const label = (now) => replace(element, `Colours: ${now}`);
  element.addEventListener('click', () => label(theme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length])));
  label(theme());
  return element;
}

function end() {
  ending?.abort();
  ending = null;
  shortcuts = {};
}

function leave(text) {
  end();
  stop();
  stopQuestions();
  logout();
  loginView(text);
}

function loginView(text = '') {
  const input = h('input', {
    type: 'password', name: 'key', autocomplete: 'current-password', required: true, spellcheck: 'false', placeholder: 'e2b_…', maxlength: 200,
  });
  // Managers of passwords keep a name beside the password.
  const name = h('input', { type: 'text', name: 'username', value: 'offleash', autocomplete: 'username', hidden: true, tabindex: -1, 'aria-hidden': 'true' });
  const failure = h('p', { class: 'failure', role: 'alert' }, text);
  const submit = h('button', { type: 'submit', class: 'primary' }, 'Log in');
  const form = h('form', { class: 'login' },
    h('h1', {}, 'offleash'),
    h('p', {}, 'Log in with an API key of this server. ', h('code', {}, 'offleash key create --scope admin'), ' makes one.'),
    name,
    field('API key', input, 'It stays in this page: after a reload you are asked again.'),
    failure,
    h('div', { class: 'actions' }, themeButton(), submit));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    submit.disabled = true;
    failure.textContent = '';
    try {
      await login(input.value.trim());
      input.value = '';
      frame();
      route();
    } catch (error) {
      failure.textContent = shown(error.name === 'TypeError' ? 'The server does not answer, or this is no key.' : error.message);
      submit.disabled = false;
    }
  });
  replace(app, h('main', { id: 'main', tabindex: -1, class: 'center' }, form));
  document.title = 'Log in · offleash';
  input.focus();
}

function frame() {
  const links = views().map(({ path, word, key, count }) => {
    const counted = count && h('span', { class: 'count', hidden: true });
    if (count) count(counted);
    return h('li', {}, h('a', { href: `#/${path}`, 'data-path': path }, h('span', {}, word, counted && ' ', counted), h('kbd', { 'aria-hidden': 'true' }, `g ${key}`)));
  });
  const who = session();
  replace(app,
    h('header', { class: 'bar' },
      h('a', { href: '#/sandboxes', class: 'brand' }, 'offleash'),
      h('span', { class: 'grow' }),
      h('span', { class: 'who' }, `key ${who.key} · ${who.scopes.join(', ')}`),
      h('button', { type: 'button', class: 'quiet', onclick: help }, 'Shortcuts: ?'),
      themeButton(),
      h('button', { type: 'button', class: 'quiet', onclick: () => leave() }, 'Log out')),
    h('nav', { 'aria-label': 'Views' }, h('ul', {}, links)),
    h('main', { id: 'main', tabindex: -1 }));
}

function route() {
  if (!session()) return;
  const parts = location.hash.replace(/^#\/?/, '').split('/').map((one) => {
    try {
      return decodeURIComponent(one);
    } catch {
      return one;
    }
  });
  const [path] = parts;
  const found = views().find((one) => one.path === path);
  if (!found) {
    location.replace('#/sandboxes');
    return;
  }
  end();
  ending = new AbortController();
  const main = document.getElementById('main');
  const context = {
    signal: ending.signal,
    onEnd: (work) => ending.signal.addEventListener('abort', work),
    shortcut: (key, word, work) => (shortcuts[key] = { word, work }),
    main,
  };
  for (const link of document.querySelectorAll('nav a')) {
    if (link.dataset.path === path) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  replace(main, h('p', { class: 'loading' }, 'Loading…'));
  document.title = `${found.word} · offleash`;
  const [, id, tab] = parts;
  const made = id && found.one ? found.one(context, id, tab) : found.view(context, id);
  const signal = ending.signal;
  Promise.resolve(made).then(
    (element) => {
      if (signal.aborted) return;
      replace(main, element);
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    },
    (error) => {
      if (signal.aborted) return;
      replace(main, h('h1', {}, found.word), h('p', { class: 'failure', role: 'alert' }, error.message));
    });
}

function help() {
  const of = (key, word) => h('div', {}, h('dt', {}, h('kbd', {}, key)), h('dd', {}, word));
  const dialog = h('dialog', { 'aria-labelledby': 'help-title' },
    h('h2', { id: 'help-title' }, 'Shortcuts'),
    h('dl', { class: 'keys' },
      of('?', 'This list'),
      views().map(({ key, word }) => of(`g ${key}`, word)),
      Object.entries(shortcuts).map(([key, { word }]) => of(key, word)),
      of('Ctrl+Shift+Esc', 'Out of the terminal')),
    h('div', { class: 'actions' }, h('button', { type: 'button', class: 'primary', onclick: () => dialog.close() }, 'Close')));
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

let pending = false;
document.addEventListener('keydown', (event) => {
  const where = event.target;
  const typing = where instanceof Element && where.closest('input, textarea, select, dialog, .terminal');
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !session()) return;
  if (pending) {
    pending = false;
    const found = views().find((one) => one.key === event.key);
    if (found) {
      event.preventDefault();
      location.hash = `#/${found.path}`;
    }
    return;
  }
  if (event.key === 'g') {
    pending = true;
    setTimeout(() => (pending = false), 1000);
  } else if (event.key === '?') {
    help();
  } else if (shortcuts[event.key]) {
    event.preventDefault();
    shortcuts[event.key].work();
  }
});

addEventListener('hashchange', route);
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  document.getElementById('main').focus();
});
whenLost(() => leave('The server does not know this key any more.'));
theme();
loginView();

