// Pictures of a session's pages, or of a desktop's screen, played again. What a picture shows is hostile: it is drawn, and nothing of it is run.

import { get } from '../api.js';
import { button, clock, field, h, replace, say } from '../dom.js';

const LONGEST_PAUSE_MS = 1000;

/** Pictures in the order in which they were made, with the page that each is of. */
export function framesOf({ frames }) {
  return (frames ?? []).filter(({ timestamp, data }) => Number.isFinite(timestamp) && typeof data === 'string');
}

/** How long the picture at `place` is shown until the next one: as long as it was there, but no pause is longer than a second. */
export function pauseAfter(frames, place) {
  const next = frames[place + 1];
  return next ? Math.min(Math.max(next.timestamp - frames[place].timestamp, 0), LONGEST_PAUSE_MS) : 0;
}

async function draw(canvas, { data }, type) {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], { type }));
  if (canvas.width !== picture.width) canvas.width = picture.width;
  if (canvas.height !== picture.height) canvas.height = picture.height;
  canvas.getContext('2d').drawImage(picture, 0, 0);
  picture.close();
}

function player(context, frames, { type, label }) {
  const canvas = h('canvas', { class: 'browser', width: 640, height: 400, role: 'img', 'aria-label': label });
  const told = h('p', { class: 'faint', role: 'status' });
  const place = h('input', { type: 'range', min: 0, max: frames.length - 1, value: 0, step: 1 });
  let timer = null;
  let shown = 0;

  async function show(number) {
    shown = number;
    place.value = String(number);
    const frame = frames[number];
    say(told, `Picture ${number + 1} of ${frames.length}, ${clock(frame.timestamp)}`);
    // One that is none is passed over.
    await draw(canvas, frame, type).catch(() => say(told, `Picture ${number + 1} of ${frames.length} cannot be shown.`));
  }

  function stop() {
    clearTimeout(timer);
    timer = null;
    replace(play, 'Play');
  }

  function goOn() {
    if (shown + 1 >= frames.length) {
      stop();
      return;
    }
    timer = setTimeout(async () => {
      await show(shown + 1);
      if (timer !== null) goOn();
    }, pauseAfter(frames, shown));
  }

  const play = button('Play', async () => {
    if (timer !== null) {
      stop();
      return;
    }
    if (shown + 1 >= frames.length) await show(0);
    replace(play, 'Stop');
    goOn();
  });
  place.addEventListener('input', () => {
    stop();
    show(Number(place.value));
  });
  context.onEnd(stop);
  show(0);
  return [h('div', { class: 'tools' }, h('div', { class: 'grow' }, field('Picture', place)), play), told, canvas];
}

/** Pictures of pages. */
export const OF_PAGES = { type: 'image/jpeg', label: 'What the page showed' };
/** Pictures of a screen. */
export const OF_SCREEN = { type: 'image/png', label: 'What the screen showed' };

/** What is recorded of a session or a desktop, shown when somebody asks for it. */
export function recordingOf(context, path, what = OF_PAGES) {
  const seen = h('div');
  return [
    h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'Recording'), button('Show recording', async () => {
      const frames = framesOf(await get(`${path}/recording`, { signal: context.signal }));
      replace(seen, frames.length ? player(context, frames, what) : h('p', { class: 'faint' }, 'There is no picture.'));
    })),
    seen,
  ];
}
