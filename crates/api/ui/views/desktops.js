// Desktops: what there is, a look at the screen of one that a person can take over, and what was recorded of it.

import { get, may, part, post } from '../api.js';
import { ask, button, clock, facts, field, h, named, notify, replace, table } from '../dom.js';
import { addressOf, screen } from '../screen.js';
import { words } from './create.js';
import { OF_SCREEN, recordingOf } from './recording.js';

/** The token in the address of a stream. */
function tokenIn(url) {
  return new URL(url).hash.split('/')[1] ?? '';
}

async function desktopView(context, id) {
  const path = `/v1/desktops/${part(id)}`;
  const desktop = await get(path, { signal: context.signal });
  const runs = desktop.status === 'RUNNING';
  let live = [];
  if (runs && desktop.stream_url) {
    const seen = screen(addressOf(desktop.id, tokenIn(desktop.stream_url), location));
    context.onEnd(() => seen.end());
    const release = button('Release', async () => {
      const sure = await ask('Release this desktop?', h('p', {}, 'Its programs end. Nothing of it is kept but its recording.'), {
        confirm: 'Release', danger: true, read: () => post(`${path}/release`),
      });
      if (!sure) return;
      notify('The desktop was released.');
      location.hash = '#/desktops';
    });
    live = [h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'Live'), seen.take, release), seen.elements];
  }
  return [
    h('h1', {}, 'Desktop ', h('span', { class: 'mono' }, desktop.id)),
    facts([
      ['Status', desktop.status],
      desktop.reason && ['Why', named(desktop.reason)],
      ['Started', clock(desktop.created_at)],
      [runs ? 'Ends' : 'Ended', clock(desktop.ended_at ?? desktop.expires_at)],
      ['Screen', `${desktop.width} × ${desktop.height}`],
      ['Template', named(desktop.template)],
      ['Isolated by', desktop.level],
    ]),
    live,
    desktop.record && recordingOf(context, path, OF_SCREEN),
  ];
}

async function createDesktop() {
  const allow = h('textarea', { rows: 4, spellcheck: 'false' });
  const record = h('input', { type: 'checkbox' });
  const made = await ask('New desktop', h('div', {},
    field('Allowed', allow, 'Hosts that it may reach, one a line. Every public address if empty.'),
    field('Record', record, 'Pictures of the screen are kept.')), {
    confirm: 'Create',
    read: () => post('/v1/desktops', { allow: words(allow.value), record: record.checked }),
  });
  if (made) location.hash = `#/desktops/${part(made.id)}`;
}

export async function desktopsView(context, id) {
  if (id) return desktopView(context, id);
  const listed = h('div');

  async function draw() {
    const { desktops } = await get('/v1/desktops', { signal: context.signal });
    replace(listed, table('Desktops', ['Desktop', 'Status', 'Template', 'Started', 'Ends'], desktops.map((one) => [
      h('a', { href: `#/desktops/${part(one.id)}`, class: 'mono' }, one.id),
      one.status, named(one.template), clock(one.created_at), clock(one.ended_at ?? one.expires_at),
    ]), 'There is no desktop.'));
  }

  await draw();
  return [
    h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Desktops'),
      may('create') && button('New desktop', createDesktop), button('Look again', draw)),
    listed,
  ];
}
