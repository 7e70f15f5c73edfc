// The screen of a desktop, for whoever has its address: `#ID/TOKEN`, which no browser sends to anybody. Where `/view` follows, the
// token lets nobody drive, and there is nothing to take over.

import { h, replace } from './dom.js';
import { addressOf, screen } from './screen.js';

const main = document.getElementById('main');
let shown = null;

function show() {
  shown?.end();
  shown = null;
  const [id, token, how] = location.hash.slice(1).split('/');
  try {
    shown = screen(addressOf(id, token ?? '', location), { drivable: how !== 'view' });
  } catch (error) {
    replace(main, h('h1', {}, 'Desktop'), h('p', { class: 'failure', role: 'alert' }, error.message));
    return;
  }
  replace(main, h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Desktop ', h('span', { class: 'mono' }, id)), shown.take ?? []), shown.elements);
}

window.addEventListener('hashchange', show);
show();
