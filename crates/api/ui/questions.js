// What waits for a person's answer, asked for again and again while somebody looks, for the menu and the view.

import { get } from './api.js';

const EVERY_MS = 3000;
const MAX_WAIT_MS = 30000;

const watchers = new Set();
let latest = null;
let timer = null;
let wait = EVERY_MS;
let generation = 0;

/** Calls `work` with each list, and with the one that is there; gives what ends that. */
export function watchQuestions(work) {
  watchers.add(work);
  if (latest) work(latest);
  timer ??= setTimeout(look, 0);
  return () => watchers.delete(work);
}

/** Looks now. */
export function askAgain() {
  clearTimeout(timer);
  return look();
}

export function stopQuestions() {
  generation += 1;
  clearTimeout(timer);
  timer = null;
  latest = null;
  watchers.clear();
}

async function look() {
  const mine = generation;
  if (document.visibilityState === 'visible' && watchers.size) {
    try {
      const { approvals } = await get('/v1/approvals');
      if (mine !== generation) return;
      latest = { approvals, at: Date.now() };
      wait = EVERY_MS;
    } catch (error) {
      if (mine !== generation) return;
      latest = { approvals: latest?.approvals ?? [], at: latest?.at ?? Date.now(), failure: error.message };
      wait = Math.min(wait * 2, MAX_WAIT_MS);
    }
    for (const work of [...watchers]) work(latest);
  }
  clearTimeout(timer);
  timer = setTimeout(look, wait);
}

document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible' && watchers.size) askAgain();
});
