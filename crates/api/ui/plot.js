// Plots: a line of the last moments, small in rows and larger with its scale.

import { h, s, say } from './dom.js';

/** The points of a line, left to right, 0 at the bottom and `most` at the top. */
export function points(values, most, width, height, moments) {
  const top = most > 0 ? most : 1;
  const step = width / Math.max(1, moments - 1);
  const first = width - step * (values.length - 1);
  return values
    .map((value, index) => {
      const x = first + step * index;
      const y = height - 1 - Math.min(1, Math.max(0, value / top)) * (height - 2);
      return `${x.toFixed(1)},${y.toFixed(1)}`;
    })
    .join(' ');
}

/** A line without words, for a row; `set(values, most)` draws it. */
export function spark(moments, width = 72, height = 20) {
  const line = s('polyline', { class: 'line', points: '' });
  const element = s('svg', { class: 'spark', viewBox: `0 0 ${width} ${height}`, width, height, 'aria-hidden': 'true' }, line);
  return { element, set: (values, most) => line.setAttribute('points', points(values, most, width, height, moments)) };
}

/** A plot with its name, the value now and the top of its scale. */
export function plot(name, write, moments) {
  const [width, height] = [320, 80];
  const line = s('polyline', { class: 'line', points: '' });
  const area = s('polygon', { class: 'area', points: '' });
  const picture = s('svg', { class: 'plot', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, area, line);
  const [now, top] = [h('span', { class: 'now' }, '–'), h('span', { class: 'top' })];
  const element = h('figure', { class: 'figure' }, h('figcaption', {}, h('span', {}, name), now, top), picture);
  return {
    element,
    set(values, most) {
      const scale = most ?? Math.max(1, ...values) * 1.15;
      const drawn = points(values, scale, width, height, moments);
      line.setAttribute('points', drawn);
      area.setAttribute('points', values.length ? `${drawn.split(',')[0]},${height} ${drawn} ${width},${height}` : '');
      say(now, values.length ? write(values.at(-1)) : '–');
      say(top, most ? `of ${write(most)}` : '');
    },
  };
}
