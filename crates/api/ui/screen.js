// A screen that a person looks at, and may take over.

import { button, h, replace, say } from './dom.js';
import { Viewer, keyNumber } from './rfb.js';

const BUTTONS = [1, 2, 4];
const WHEEL_UP = 8;
const WHEEL_DOWN = 16;
const LOOKS = 'You look at the screen. Whoever drives it goes on.';
const ONLY_LOOKS = 'You look at the screen. This address lets nobody drive it.';
const DRIVES = 'Your mouse and keyboard go to the screen. “Hand back” ends that; Ctrl+Alt+Esc does, too.';

/** The address of a screen's WebSocket, at the address of this page. */
export function addressOf(id, token, at) {
  if (!/^[a-z0-9]{1,64}$/.test(id) || !/^[\w-]{1,200}$/.test(token)) throw new Error('This address names no desktop.');
  return `${at.protocol === 'https:' ? 'wss:' : 'ws:'}//${at.host}/_desktop/${id}?token=${token}`;
}

/** What shows the screen at `address`: elements, `take` where it can be driven, and `end` that hangs up. */
export function screen(address, { drivable = true } = {}) {
  const told = h('p', { class: 'faint', role: 'status' }, 'The screen is asked for.');
  const canvas = h('canvas', { class: 'browser', width: 640, height: 480, tabindex: '0', role: 'img', 'aria-label': 'What the screen shows' });
  const viewer = new Viewer(address, canvas);
  let driven = false;
  const pressed = new Set();
  const take = button('Take over', () => drive(!driven));
  take.disabled = true;

  /** Nothing stays pressed that nobody presses. */
  function letGo() {
    for (const number of pressed) viewer.key(number, false);
    pressed.clear();
  }

  function drive(now) {
    letGo();
    driven = now;
    replace(take, driven ? 'Hand back' : 'Take over');
    say(told, driven ? DRIVES : LOOKS);
    if (driven) canvas.focus();
  }

  viewer.run(() => {
    take.disabled = false;
    say(told, drivable ? LOOKS : ONLY_LOOKS);
  }).catch((error) => {
    driven = false;
    take.disabled = true;
    say(told, error.message);
  });

  const at = (event, buttons) => {
    const box = canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * canvas.width;
    viewer.pointer(x, ((event.clientY - box.top) / box.height) * canvas.height, buttons);
  };
  const held = (event) => BUTTONS.reduce((sum, bit, number) => sum + (event.buttons & [1, 4, 2][number] ? bit : 0), 0);
  const mouse = (event) => {
    if (!driven) return;
    event.preventDefault();
    at(event, held(event));
  };
  const key = (down) => (event) => {
    if (!driven) return;
    // No shortcut of the page is meant.
    event.preventDefault();
    event.stopPropagation();
    if (down && event.key === 'Escape' && event.ctrlKey && event.altKey) {
      drive(false);
      return;
    }
    const number = keyNumber(event);
    if (number === null) return;
    if (down) pressed.add(number);
    else pressed.delete(number);
    viewer.key(number, down);
  };
  canvas.addEventListener('mousedown', (event) => {
    canvas.focus();
    mouse(event);
  });
  canvas.addEventListener('mouseup', mouse);
  canvas.addEventListener('mousemove', mouse);
  canvas.addEventListener('contextmenu', (event) => driven && event.preventDefault());
  canvas.addEventListener('wheel', (event) => {
    if (!driven) return;
    event.preventDefault();
    const now = held(event);
    at(event, now + (event.deltaY < 0 ? WHEEL_UP : WHEEL_DOWN));
    at(event, now);
  }, { passive: false });
  canvas.addEventListener('keydown', key(true));
  canvas.addEventListener('keyup', key(false));
  canvas.addEventListener('blur', letGo);
  return { take: drivable ? take : null, elements: [told, canvas], end: () => viewer.close() };
}
