// Sessions of browsers: what there is, what each does, and a look into one that a person can take over.
//
// What a browser says is hostile: pictures are drawn, and all else becomes text.

import { get, may, part, post } from '../api.js';
import { ask, button, clock, facts, field, h, named, notify, replace, save, say, table } from '../dom.js';
import { words } from './create.js';
import { recordingOf } from './recording.js';

const MAX_LINES = 200;
const MAX_PAGES = 50;
const AGAIN_MS = 5000;
const BUTTONS = ['left', 'middle', 'right'];

/** A conversation with a browser. */
class Conversation {
  constructor(address) {
    this.waiting = new Map();
    this.last = 0;
    this.heard = () => {};
    this.socket = new WebSocket(address);
    this.socket.addEventListener('message', ({ data }) => this.take(data));
    this.open = new Promise((resolve, reject) => {
      this.socket.addEventListener('open', resolve);
      this.socket.addEventListener('close', () => reject(new Error('The browser hung up.')));
    });
    // Who waits for it is told; nobody else is.
    this.open.catch(() => {});
  }

  take(data) {
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      return;
    }
    const waits = this.waiting.get(message?.id);
    if (!waits) {
      if (typeof message?.method === 'string') this.heard(message);
      return;
    }
    this.waiting.delete(message.id);
    if (message.error) waits.reject(new Error(String(message.error.message)));
    else waits.resolve(message.result ?? {});
  }

  call(method, params = {}, sessionId = undefined) {
    const id = (this.last += 1);
    return new Promise((resolve, reject) => {
      if (this.socket.readyState !== WebSocket.OPEN) {
        reject(new Error('The browser hung up.'));
        return;
      }
      this.waiting.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ id, method, params, sessionId }));
    });
  }

  close() {
    this.socket.close();
  }
}

/** Where a session's browser is, at the address of this page. */
export function addressOf(connectUrl, at) {
  const { pathname, search } = new URL(connectUrl);
  return `${at.protocol === 'https:' ? 'wss:' : 'ws:'}//${at.host}${pathname}${search}`;
}

/** What a line of a log says, in few words. */
export function lineOf({ method, params }) {
  const of = (name) => (params?.[name] === undefined ? '' : String(params[name]));
  switch (method) {
    case 'Network.requestWillBeSent': return `${of('method')} ${of('url')}`;
    case 'Network.responseReceived': return `${of('status')} ${of('url')}`;
    case 'Network.loadingFailed': return `failed: ${of('error')} ${of('blocked')}`.trim();
    case 'Network.webSocketCreated': return `WebSocket ${of('url')}`;
    case 'Runtime.consoleAPICalled': return `console.${of('type')}: ${of('text')}`;
    case 'Runtime.exceptionThrown': return `exception: ${of('exception') || of('text')}`;
    case 'Log.entryAdded': return `${of('level')}: ${of('text')} ${of('url')}`.trim();
    case 'offleash.dropped': return `${of('count')} more were not kept`;
    default: return null;
  }
}

/** Draws what a page shows, and gives it what a person does there once that is taken over. */
async function look(session, context, canvas, told) {
  const conversation = new Conversation(addressOf(session.connectUrl, location));
  context.onEnd(() => conversation.close());
  await conversation.open;
  const { targetInfos } = await conversation.call('Target.getTargets');
  const page = targetInfos.filter(({ type }) => type === 'page')[0];
  if (!page) throw new Error('The browser has no page.');
  const { sessionId } = await conversation.call('Target.attachToTarget', { targetId: page.targetId, flatten: true });
  let size = { deviceWidth: 1, deviceHeight: 1 };
  conversation.heard = async ({ method, params, sessionId: of }) => {
    if (method !== 'Page.screencastFrame' || of !== sessionId) return;
    conversation.call('Page.screencastFrameAck', { sessionId: params.sessionId }, sessionId).catch(() => {});
    const bytes = Uint8Array.from(atob(params.data), (one) => one.charCodeAt(0));
    const picture = await createImageBitmap(new Blob([bytes], { type: 'image/jpeg' }));
    size = params.metadata;
    if (canvas.width !== picture.width) canvas.width = picture.width;
    if (canvas.height !== picture.height) canvas.height = picture.height;
    canvas.getContext('2d').drawImage(picture, 0, 0);
    picture.close();
  };
  conversation.socket.addEventListener('close', () => say(told, 'The browser hung up.'));
  await conversation.call('Page.enable', {}, sessionId);
  await conversation.call('Page.startScreencast', { format: 'jpeg', quality: 60, maxWidth: 1280, maxHeight: 800 }, sessionId);
  say(told, 'You look at the first page. Whoever drives it goes on.');

  let taken = false;
  const send = (method, params) => conversation.call(method, params, sessionId).catch((error) => say(told, error.message));
  const mouse = (type) => (event) => {
    if (!taken) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    send('Input.dispatchMouseEvent', {
      type,
      x: ((event.clientX - box.left) / box.width) * size.deviceWidth,
      y: ((event.clientY - box.top) / box.height) * size.deviceHeight,
      button: type === 'mouseMoved' ? 'none' : (BUTTONS[event.button] ?? 'none'),
      clickCount: type === 'mouseMoved' ? 0 : 1,
      deltaX: event.deltaX ?? 0,
      deltaY: event.deltaY ?? 0,
    });
  };
  const key = (type) => (event) => {
    // So that nobody is caught in it who uses no mouse.
    if (!taken || event.key === 'Escape') return;
    event.preventDefault();
    const text = type === 'keyDown' && event.key.length === 1 ? event.key : type === 'keyDown' && event.key === 'Enter' ? '\r' : undefined;
    send('Input.dispatchKeyEvent', { type, key: event.key, code: event.code, windowsVirtualKeyCode: event.keyCode, text });
  };
  canvas.addEventListener('mousedown', (event) => {
    canvas.focus();
    mouse('mousePressed')(event);
  });
  canvas.addEventListener('mouseup', mouse('mouseReleased'));
  canvas.addEventListener('mousemove', mouse('mouseMoved'));
  canvas.addEventListener('wheel', mouse('mouseWheel'), { passive: false });
  canvas.addEventListener('keydown', key('keyDown'));
  canvas.addEventListener('keyup', key('keyUp'));
  return {
    take(now) {
      taken = now;
      say(told, now ? 'Your mouse and keyboard go to the page; Esc leaves it.' : 'You look at the first page. Whoever drives it goes on.');
    },
    open: (url) => conversation.call('Page.navigate', { url }, sessionId),
  };
}

async function sessionView(context, id) {
  const path = `/v1/sessions/${part(id)}`;
  const session = await get(path, { signal: context.signal });
  const runs = session.status === 'RUNNING';
  const told = h('p', { class: 'faint', role: 'status' });
  const canvas = h('canvas', { class: 'browser', width: 640, height: 400, tabindex: '0', role: 'img', 'aria-label': 'What the page shows' });
  const pages = h('div');
  const log = h('div');

  async function draw() {
    const { logs } = await get(`${path}/logs`, { signal: context.signal });
    const rows = logs.slice(-MAX_LINES).reverse().map((one) => [clock(one.timestamp), lineOf(one)]).filter(([, line]) => line !== null);
    replace(log, table('What it did', ['When', 'What'], rows.map(([at, line]) => [at, named(line)]), 'It did nothing.'));
    if (!runs || !may('create')) return;
    const debug = await get(`${path}/debug`, { signal: context.signal });
    replace(pages, table('Pages', ['Title', 'Address'], debug.pages.slice(0, MAX_PAGES).map((page) => [named(page.title), named(page.url)]), 'It has no page.'));
  }

  const again = setInterval(() => draw().catch(() => {}), AGAIN_MS);
  context.onEnd(() => clearInterval(again));
  await draw();

  let seen = [];
  if (runs && session.connectUrl) {
    const watched = look(session, context, canvas, told);
    watched.catch((error) => say(told, error.message));
    let taken = false;
    const take = button('Take over', async () => {
      const view = await watched;
      taken = !taken;
      view.take(taken);
      replace(take, taken ? 'Hand back' : 'Take over');
    });
    seen = [
      h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'Live'), take,
        button('Release', async () => {
          const sure = await ask('Release this session?', h('p', {}, 'Its browser ends. ', session.persist ? 'Its context is saved first.' : 'Nothing of it is kept but its log.'), {
            confirm: 'Release', danger: true, read: () => post(`${path}/release`),
          });
          if (!sure) return;
          notify(sure.message);
          location.hash = '#/browsers';
        })),
      told, canvas, h('h2', {}, 'Pages'), pages,
    ];
  }
  return [
    h('h1', {}, 'Session ', h('span', { class: 'mono' }, session.id)),
    facts([
      ['Status', session.status],
      session.reason && ['Why', named(session.reason)],
      ['Started', clock(session.startedAt)],
      [runs ? 'Ends' : 'Ended', clock(session.endedAt ?? session.expiresAt)],
      ['Context', session.contextId ?? 'none'],
      ['Template', named(session.template)],
      ['Isolated by', session.level],
      ['Began', session.fromPool ? 'with a browser that waited' : 'with a browser of its own'],
      session.proxy && ['Proxy', named(session.proxy)],
      session.browserSandbox !== undefined && ['The browser’s own sandbox', session.browserSandbox ? 'kept' : 'not here'],
    ]),
    seen,
    session.recordSession && recordingOf(context, path),
    h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'What it did'), button('Save HAR', async () => {
      const har = await get(`${path}/har`, { signal: context.signal });
      save(new Blob([JSON.stringify(har, null, 1)], { type: 'application/json' }), `${session.id}.har`);
    })),
    log,
  ];
}

async function createSession() {
  const context = h('input', { type: 'text', spellcheck: 'false' });
  const allow = h('textarea', { rows: 4, spellcheck: 'false' });
  const made = await ask('New session', h('div', {},
    field('Context', context, 'A name: cookies and storage are kept under it. None if empty.'),
    field('Allowed', allow, 'Hosts that pages may reach, one a line. Every public address if empty.')), {
    confirm: 'Create',
    read: async () => {
      const name = context.value.trim();
      if (name) await post('/v1/contexts', { name }).catch((error) => (error.status === 409 ? null : Promise.reject(error)));
      const settings = name ? { context: { id: name, persist: true } } : {};
      return post('/v1/sessions', { browserSettings: settings, allow: words(allow.value) });
    },
  });
  if (made) location.hash = `#/browsers/${part(made.id)}`;
}

export async function browsersView(context, id) {
  if (id) return sessionView(context, id);
  const listed = h('div');

  async function draw() {
    const { sessions } = await get('/v1/sessions', { signal: context.signal });
    replace(listed, table('Sessions of browsers', ['Session', 'Status', 'Template', 'Started', 'Ends', 'Context'], sessions.map((one) => [
      h('a', { href: `#/browsers/${part(one.id)}`, class: 'mono' }, one.id),
      one.status, named(one.template), clock(one.startedAt), clock(one.endedAt ?? one.expiresAt), one.contextId ?? '',
    ]), 'There is no session.'));
  }

  await draw();
  return [
    h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Browsers'),
      may('create') && button('New session', createSession), button('Look again', draw)),
    listed,
  ];
}
