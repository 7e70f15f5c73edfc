// Runs whose changes are kept: what each changed, and what of that is written back.

import { get, part, post } from '../api.js';
import { changesList } from '../changes.js';
import { ask, button, clock, facts, h, named, notify, replace, table } from '../dom.js';

const STATES = { running: 'good', kept: 'warn', crashed: 'bad', damaged: 'bad' };

export async function runsView(context) {
  const all = h('input', { type: 'checkbox' });
  const listed = h('div');

  async function draw() {
    const { runs } = await get(`/v1/runs${all.checked ? '?all=true' : ''}`, { signal: context.signal });
    replace(listed, table('Runs', ['Run', 'State', 'Started', 'Command', 'Directory'], runs.map((one) => [
      h('a', { href: `#/runs/${part(one.id)}`, class: 'mono' }, one.id),
      h('span', { class: `badge ${STATES[one.state] ?? 'dull'}` }, one.state),
      clock(one.started_at),
      h('span', { class: 'mono' }, named(one.command.join(' '))),
      one.workspace ? named(one.workspace) : '',
    ]), 'No run keeps changes.'));
  }

  all.addEventListener('change', () => draw().catch((error) => notify(error.message, 'bad')));
  await draw();
  return [
    h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Runs'),
      h('label', {}, all, ' Those that are over, too'), button('Look again', draw)),
    h('p', { class: 'faint' }, 'What ', h('code', {}, 'offleash run'), ' changed is kept here until it is applied or dropped.'),
    listed,
  ];
}

export async function runView(context, id) {
  const path = `/v1/runs/${part(id)}`;
  const place = h('div');
  const outcome = h('div', { role: 'status' });
  let chosen = new Set();
  let list = null;
  const about = (await get('/v1/runs?all=true', { signal: context.signal })).runs.find((one) => one.id === id);
  const applies = ['kept', 'crashed'].includes(about?.state);
  const apply = button('Apply the chosen', () => confirmed([...chosen]), { class: 'primary', disabled: true });

  function paths(changes) {
    const encoded = changes.filter((one) => one.path_base64).map((one) => one.path_base64);
    const plain = changes.filter((one) => !one.path_base64).map((one) => one.path);
    return { paths: plain.length ? plain : undefined, paths_base64: encoded.length ? encoded : undefined };
  }

  async function confirmed(changes) {
    const held = changes.filter((one) => one.held_back);
    const meant = h('input', { type: 'checkbox' });
    const done = await ask(`Write ${changes.length} ${changes.length === 1 ? 'change' : 'changes'} back?`, h('div', {},
      h('p', {}, 'To ', named(about?.workspace ?? 'the host'), '. All of them, or none if something is in the way.'),
      held.length > 0 && h('div', { class: 'field' },
        h('p', {}, `${held.length} of them are held back:`),
        h('ul', {}, held.slice(0, 10).map((one) => h('li', {}, named(one.path), ': ', named(one.held_back)))),
        h('label', {}, meant, ' These are meant, too'))), {
      confirm: 'Apply',
      read: () => post(`${path}/apply`, { ...paths(changes), exactly: true, held_back: meant.checked }),
    });
    if (!done) return;
    notify(`${done.applied.length} changes are written back.`);
    replace(outcome, done.refused.length > 0 && table('Not applied', ['Path', 'Why'], done.refused.map((one) => [named(one.path), named(one.why)])));
    if (done.pending === 0) location.hash = '#/runs';
    else await draw();
  }

  async function discard() {
    const sure = await ask('Drop all changes of this run?', h('p', {}, 'They are lost. What was applied stays.'), {
      confirm: 'Drop', danger: true, read: async () => {
        await post(`${path}/discard`, {});
        return true;
      },
    });
    if (!sure) return;
    notify('The changes are dropped.');
    location.hash = '#/runs';
  }

  async function draw() {
    chosen = new Set();
    list = await get(`${path}/changes`, { signal: context.signal });
    const tell = () => {
      apply.disabled = chosen.size === 0;
      replace(apply, chosen.size ? `Apply the chosen (${chosen.size})` : 'Apply the chosen');
    };
    const { element, draw: again } = changesList({ list, path: `${path}/changes`, signal: context.signal, chosen: applies ? chosen : null, onChoice: tell });
    const every = (work) => () => {
      work();
      again();
      tell();
    };
    tell();
    replace(place, applies && h('div', { class: 'tools' },
      h('button', { type: 'button', class: 'small', onclick: every(() => list.changes.forEach((one) => !one.held_back && chosen.add(one))) }, 'Choose all but what is held back'),
      h('button', { type: 'button', class: 'small', onclick: every(() => chosen.clear()) }, 'Choose none')), element);
  }

  await draw();
  return [
    h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Run ', h('span', { class: 'mono' }, id)), applies && apply,
      ['kept', 'crashed', 'damaged'].includes(about?.state) && button('Drop all', discard, { class: 'danger' })),
    facts([
      ['State', about?.state ?? 'over'], about && ['Command', h('span', { class: 'mono' }, named(about.command.join(' ')))],
      about?.workspace && ['Directory', named(about.workspace)], about && ['Started', clock(about.started_at)],
    ]),
    outcome, place,
  ];
}
