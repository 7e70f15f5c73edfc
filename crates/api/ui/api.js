// What is asked of the server. The key is in this module's memory alone: not in a cookie, nor in any storage of the browser.

let key = null;
let who = null;
let onLost = () => {};

/** What the key is and may do, as `GET /v1/usage` says; `null` before the login. */
export function session() {
  return who;
}

export function may(scope) {
  const order = ['read', 'create', 'admin'];
  return Boolean(who?.scopes.some((one) => order.indexOf(one) >= order.indexOf(scope)));
}

export async function login(given) {
  const answer = await fetch('/v1/usage', { headers: { 'X-API-KEY': given }, credentials: 'omit', cache: 'no-store' });
  if (answer.status === 401) throw new Error('This key is not valid.');
  if (!answer.ok) throw await refusal(answer);
  who = await answer.json();
  key = given;
}

export function logout() {
  key = null;
  who = null;
}

/** What is done when the server does not know the key any more. */
export function whenLost(work) {
  onLost = work;
}

/** An answer that says no. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const MAX_MESSAGE = 1000;

async function refusal(answer) {
  let message = `the server answered ${answer.status}`;
  try {
    const body = JSON.parse((await answer.text()).slice(0, 65536));
    if (typeof body.message === 'string') message = body.message.slice(0, MAX_MESSAGE);
  } catch {
    // It is told by its status.
  }
  return new Refusal(answer.status, message);
}

/** A request with the key; `body` is sent as JSON. */
export async function call(method, path, body, { signal, headers = {} } = {}) {
  if (key === null) throw new Refusal(401, 'You are not logged in.');
  const options = { method, signal, cache: 'no-store', credentials: 'omit', redirect: 'error', headers: { 'X-API-KEY': key, ...headers } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers['Content-Type'] = 'application/json';
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refusal(0, 'The server does not answer.');
  }
  if (answer.ok) return answer;
  const told = await refusal(answer);
  if (answer.status === 401) onLost();
  throw told;
}

export async function get(path, options) {
  return (await call('GET', path, undefined, options)).json();
}

export async function post(path, body = {}, options) {
  const answer = await call('POST', path, body, options);
  return answer.status === 204 ? null : answer.json();
}

export async function put(path, body) {
  const answer = await call('PUT', path, body);
  return answer.status === 204 ? null : answer.json();
}

export async function remove(path) {
  await call('DELETE', path);
}

/** A part of a path. */
export const part = encodeURIComponent;
