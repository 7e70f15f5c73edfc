// Templates: those of the machine, and those that keys built, with their builds.

import { get, may, part, remove } from '../api.js';
import { ask, button, bytes, clock, h, named, notify, pre, replace, shownLines, table } from '../dom.js';
import { createSandbox } from './create.js';

const STATES = { ready: 'good', building: 'warn', waiting: 'dull', error: 'bad' };
const EVERY_MS = 2000;

export async function templatesView(context) {
  const listed = h('div');
  const log = h('div');
  const change = may('create');
  let following = null;

  function follow(template, build) {
    following?.();
    const output = pre('', { role: 'log', 'aria-label': 'What the build says' });
    const state = h('span', { class: 'badge dull' }, 'asking');
    let offset = 0;
    let timer = null;
    let ended = false;
    const look = async () => {
      const path = `/templates/${part(template)}/builds/${part(build)}/status?logsOffset=${offset}&limit=100`;
      const told = await get(path, { signal: context.signal });
      if (ended) return;
      for (const entry of told.logEntries ?? []) output.textContent += `${shownLines(entry.message)}\n`;
      offset += (told.logEntries ?? []).length;
      replace(state, told.status);
      state.className = `badge ${STATES[told.status] ?? 'dull'}`;
      const more = (told.logEntries ?? []).length === 100;
      if (more || !['ready', 'error'].includes(told.status)) timer = setTimeout(() => look().catch(() => {}), more ? 0 : EVERY_MS);
      else draw().catch(() => {});
    };
    following = () => {
      ended = true;
      clearTimeout(timer);
    };
    replace(log, h('h2', {}, 'Build ', h('span', { class: 'mono' }, build), ' ', state), output);
    return look();
  }

  context.onEnd(() => following?.());

  async function draw() {
    const [built, all] = await Promise.all([
      get('/v1/templates', { signal: context.signal }), get('/templates', { signal: context.signal }),
    ]);
    const keyed = new Set(built.templates.map(({ id }) => id));
    const machine = all.filter((one) => !keyed.has(one.templateID));
    const use = (template) => change && button('New sandbox', () => createSandbox({ template }), { class: 'small', 'aria-label': `New sandbox of ${template}` });
    replace(listed,
      h('h2', {}, 'Of keys'),
      table('Templates of keys', ['Template', 'Key', 'Tags', 'Builds', 'Changed', ''], built.templates.map((one) => [
        named(one.name), one.key,
        Object.keys(one.tags).map((tag) => h('div', {}, named(tag))),
        one.builds.slice(0, 5).map((build) => h('div', { class: 'node' },
          h('span', { class: `badge ${STATES[build.status] ?? 'dull'}` }, build.status), ' ', bytes(build.bytes), ' ',
          button('Log', () => follow(one.id, build.id), { class: 'small', 'aria-label': `Log of build ${build.id}` }),
          build.reason && h('div', { class: 'failure' }, named(build.reason)))),
        clock(one.updated_at),
        h('div', { class: 'tools' }, use(one.name), change && button('Remove', async () => {
          const sure = await ask('Remove this template?', h('p', {}, named(one.name), ', with all its builds'), {
            confirm: 'Remove', danger: true, read: async () => {
              await remove(`/v1/templates/${part(one.id)}`);
              return true;
            },
          });
          if (!sure) return;
          notify('It is removed.');
          draw();
        }, { class: 'small' })),
      ]), 'No key has built one.'),
      h('h2', {}, 'Of the machine'),
      table('Templates of the machine', ['Template', 'Build', 'Built', ''], machine.map((one) => [
        named(one.names?.[0] ?? one.templateID), h('span', { class: 'mono' }, named(one.buildID)), clock(one.createdAt), use(one.names?.[0] ?? one.templateID),
      ])));
  }

  await draw();
  return [
    h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Templates'), button('Look again', draw)),
    h('p', { class: 'faint' }, 'A sandbox of a container image is made as template ', h('code', {}, 'image:NAME'), '.'),
    listed, log,
  ];
}
