// Checkpoints of a sandbox, as the tree that they are.

import { get, may, part, post, remove } from '../api.js';
import { ask, button, bytes, clock, field, h, named, notify, replace } from '../dom.js';

/** The checkpoints below each, by the id of that; `null` has the first ones. */
export function children(checkpoints) {
  const known = new Set(checkpoints.map(({ id }) => id));
  const all = new Map();
  for (const one of checkpoints) {
    const parent = known.has(one.parent) ? one.parent : null;
    all.set(parent, [...(all.get(parent) ?? []), one]);
  }
  return all;
}

export async function checkpointsTab(context) {
  const listed = h('div');
  const change = may('create');

  async function draw() {
    const { checkpoints, current } = await get(`${context.path}/checkpoints`, { signal: context.signal });
    const below = children(checkpoints);
    const node = (one) => h('li', {},
      h('div', { class: 'node' },
        named(one.name ?? one.id),
        one.id === current && h('span', { class: 'badge good' }, 'current'),
        h('span', { class: 'faint' }, `${clock(one.created_at)} · ${bytes(one.bytes)} · ${one.files} files · stood still ${one.held_ms.toFixed(1)} ms`),
        one.automatic && h('span', { class: 'badge dull' }, one.automatic),
        change && button('Restore', async () => {
          const sure = await ask('Put the sandbox back?', h('p', {}, 'Its processes end, and what was written since is gone: ', named(one.name ?? one.id)), {
            confirm: 'Restore', danger: true, read: () => post(`${context.path}/restore`, { checkpoint: one.id }),
          });
          if (!sure) return;
          notify('It is as it was then.');
          await context.again();
          draw();
        }, { class: 'small' }),
        change && button('Remove', async () => {
          await remove(`${context.path}/checkpoints/${part(one.id)}`);
          draw();
        }, { class: 'small' })),
      below.has(one.id) && h('ul', { class: 'tree' }, below.get(one.id).map(node)));
    replace(listed, checkpoints.length
      ? h('ul', { class: 'tree' }, (below.get(null) ?? []).map(node))
      : h('p', { class: 'empty' }, 'There is no checkpoint.'));
  }

  await draw();
  return [
    h('div', { class: 'tools' }, change && button('New checkpoint', async () => {
      const name = h('input', { type: 'text', maxlength: 63 });
      const made = await ask('New checkpoint', field('Name', name, 'Optional'), {
        confirm: 'Make', read: () => post(`${context.path}/checkpoints`, { name: name.value.trim() || undefined }),
      });
      if (made) draw();
    }), button('Look again', draw)),
    listed,
  ];
}
