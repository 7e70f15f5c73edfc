// What was changed in a sandbox since it was made.

import { get } from '../api.js';
import { changesList } from '../changes.js';
import { button, h, replace } from '../dom.js';

export async function changesTab(context) {
  const place = h('div');
  const path = `${context.path}/changes`;

  async function draw() {
    const list = await get(path, { signal: context.signal });
    replace(place, changesList({ list, path, signal: context.signal }).element);
  }

  await draw();
  return [
    h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'Changed since it was made'), button('Look again', draw)),
    place,
  ];
}
