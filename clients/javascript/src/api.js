// Requests to a server, and what their answers mean.

import http from 'node:http'
import https from 'node:https'
import path from 'node:path'
import { answers, ensure, shortPath, usualState } from './daemon.js'
import { DaemonError, FileNotFoundError, InvalidArgumentError, SandboxNotRunningError, TimeoutError, ofAnswer } from './errors.js'
import { FrameReader, frame } from './frames.js'
import { authorities, hostOfEnvironment, keyOf, neededKeyOf } from './logins.js'
import { REQUEST_TIMEOUT_MS } from './requests.js'

/** How often a request is sent again that the server says to send again. */
const MAX_RETRIES = 3
/** The longest that is waited before that, seconds. */
const MAX_RETRY_WAIT = 10
/** How often the server shows that a stream without news is alive, seconds. */
const KEEPALIVE = 50
/** A request of these can be sent twice. */
const REPEATABLE = ['GET', 'PUT', 'DELETE']

const known = new Map()

/**
 * The server that is named, by options, OFFLEASH_URL or OFFLEASH_HOST; else one of this user that runs; else one of its own.
 * `unix:PATH` is a server's socket, `api.sock` in its state directory. A key is an option, OFFLEASH_API_KEY, or what
 * `offleash login` kept.
 */
export async function openApi({ url, apiKey, requestTimeoutMs } = {}) {
  const named = url || process.env.OFFLEASH_URL
  const key = apiKey || process.env.OFFLEASH_API_KEY
  const host = named ? undefined : hostOfEnvironment()
  let target
  if (host) {
    target = { url: host, apiKey: key || neededKeyOf(host), ca: process.env.OFFLEASH_CA }
  } else if (!named) {
    const usual = path.join(usualState(), 'api.sock')
    const isPrivate = !(await answers(usual))
    target = { socketPath: shortPath(isPrivate ? await ensure() : usual), isPrivate }
  } else if (named.startsWith('unix:')) {
    target = { socketPath: shortPath(named.slice('unix:'.length)) }
  } else if (/^https?:\/\//.test(named)) {
    const url = named.replace(/\/+$/, '')
    target = { url, apiKey: key || keyOf(url), ca: process.env.OFFLEASH_CA }
  } else {
    throw new InvalidArgumentError(`\`${named}\` is no address of a server`, { hint: 'as in `http://127.0.0.1:3000`' })
  }
  const kept = JSON.stringify([target, requestTimeoutMs])
  if (!known.has(kept)) known.set(kept, new Api(target, requestTimeoutMs))
  return known.get(kept)
}

/** A server. */
export class Api {
  #target
  #timeoutMs
  #agent
  #base
  #place = null

  constructor(target, timeoutMs = REQUEST_TIMEOUT_MS) {
    this.#target = target
    this.#timeoutMs = timeoutMs
    this.#base = new URL(target.url ?? 'http://localhost')
    const isTls = this.#base.protocol === 'https:'
    const options = { keepAlive: true, scheduling: 'lifo' }
    this.#agent = isTls ? new https.Agent({ ...options, ca: authorities() }) : new http.Agent(options)
  }

  /** Where ports of its sandboxes are reached, as it says of one of them. */
  async place(sandboxId) {
    if (!this.#place) {
      const detail = await this.ask('GET', `/sandboxes/${sandboxId}`)
      const url = this.#target.url ?? (await this.ask('GET', '/v1/version')).url
      this.#place = { domain: detail.domain ?? 'localhost', url }
    }
    return this.#place
  }

  /** Sends JSON, and answers with what comes back: JSON, or null. */
  async ask(method, where, body, options = {}) {
    const headers = { ...options.headers }
    if (body !== undefined) headers['Content-Type'] = 'application/json'
    const content = body === undefined ? undefined : JSON.stringify(body)
    const bytes = await this.bytes(method, where, { ...options, headers, content })
    return bytes.length ? JSON.parse(bytes.toString()) : null
  }

  /** Sends a request, again where that is of use, and answers with the body; throws what the server refuses. */
  async bytes(method, where, options = {}) {
    for (let tries = 0; ; tries++) {
      const answer = await this.#reached(method, where, options)
      const body = await collected(answer)
      if (answer.statusCode < 400) return body
      const retries = answer.headers['should-retry'] === 'true' && tries < MAX_RETRIES
      if (!retries) throw ofAnswer(answer.statusCode, body.toString(), options.notFound)
      const seconds = Math.min(Number(answer.headers['retry-after'] ?? 1) || 1, MAX_RETRY_WAIT)
      await new Promise((resolve) => setTimeout(resolve, seconds * 1000))
    }
  }

  /** An answer that comes in pieces, which may be `silenceMs` apart. */
  async stream(method, where, options = {}) {
    const answer = await this.#reached(method, where, { ...options, timeoutMs: options.silenceMs })
    if (answer.statusCode >= 400) throw ofAnswer(answer.statusCode, (await collected(answer)).toString(), options.notFound)
    return answer
  }

  // An answer, of a server that is started again if it was ours and has ended.
  async #reached(method, where, options) {
    try {
      return await this.#send(method, where, options)
    } catch (error) {
      const mayRepeat = REPEATABLE.includes(method) || options.headers?.['Idempotency-Key']
      const notConnected = ['ECONNREFUSED', 'ENOENT'].includes(error.code)
      if (error instanceof TimeoutError || !(mayRepeat || notConnected)) throw this.#unreached(error)
    }
    if (this.#target.isPrivate) {
      this.#place = null
      await ensure()
    }
    try {
      return await this.#send(method, where, options)
    } catch (error) {
      throw this.#unreached(error)
    }
  }

  #unreached(error) {
    if (error instanceof TimeoutError) return error
    const where = this.#target.url ?? this.#target.socketPath
    const hint = /ISSUER_CERT|SELF_SIGNED|VERIFY_LEAF/.test(error.code)
      ? 'OFFLEASH_CA names a file with authorities (PEM) that are trusted beside the usual ones'
      : 'is `offleash serve` running there?'
    return new DaemonError(`the server at \`${where}\` is not reached: ${error.message}`, { hint, cause: error })
  }

  #send(method, where, { headers = {}, content, timeoutMs = this.#timeoutMs }) {
    const own = this.#target.apiKey ? { 'X-API-KEY': this.#target.apiKey } : {}
    const length = content === undefined ? 0 : Buffer.byteLength(content)
    const module = this.#base.protocol === 'https:' ? https : http
    const request = module.request({
      method,
      path: this.#base.pathname.replace(/\/$/, '') + where,
      headers: { ...own, ...headers, 'Content-Length': length },
      agent: this.#agent,
      // From before the connection on.
      timeout: timeoutMs || undefined,
      ...(this.#target.socketPath
        ? { socketPath: this.#target.socketPath }
        : { hostname: this.#base.hostname.replace(/^\[|\]$/g, ''), port: this.#base.port }),
    })
    return new Promise((resolve, reject) => {
      request.once('response', resolve)
      request.once('error', reject)
      request.once('timeout', () => request.destroy(new TimeoutError(`the server was silent for ${timeoutMs} ms`)))
      request.end(content)
    })
  }
}

async function collected(answer) {
  const pieces = []
  try {
    for await (const piece of answer) pieces.push(piece)
  } catch (error) {
    throw cut(error)
  }
  return Buffer.concat(pieces)
}

const cut = (error) =>
  error instanceof TimeoutError
    ? error
    : new SandboxNotRunningError('the answer was cut: the sandbox or the server has ended', { cause: error })

/** The lines of an answer, as they come. */
export async function* linesOf(answer) {
  let rest = ''
  answer.setEncoding('utf8')
  try {
    for await (const piece of answer) {
      const lines = (rest + piece).split('\n')
      rest = lines.pop()
      yield* lines
    }
  } catch (error) {
    throw cut(error)
  }
  if (rest) yield rest
}

/** The file and process services of one sandbox. */
export class Services {
  #headers

  constructor(api, sandboxId, token) {
    this.api = api
    this.#headers = { 'E2b-Sandbox-Id': sandboxId, 'E2b-Sandbox-Port': '49983' }
    if (token) this.#headers['X-Access-Token'] = token
  }

  /** What a request to them has, as a user. */
  headers(user, more = {}) {
    const as = user ? { Authorization: `Basic ${Buffer.from(`${user}:`).toString('base64')}` } : {}
    return { ...this.#headers, ...as, ...more }
  }

  /** Calls a method that has one answer. */
  async call(method, message, { user, requestTimeoutMs, notFound } = {}) {
    const headers = this.headers(user, { 'Connect-Protocol-Version': '1' })
    return (await this.api.ask('POST', `/${method}`, message, { headers, timeoutMs: requestTimeoutMs, notFound })) ?? {}
  }

  /** The messages that a method answers with, as they come; `disconnect()` of them hears no more. */
  events(method, message, options = {}) {
    const following = { answer: null, isOver: false }
    const events = this.#events(method, message, options, following)
    events.disconnect = () => {
      following.isOver = true
      following.answer?.destroy()
    }
    return events
  }

  async *#events(method, message, { user, timeoutMs, notFound }, following) {
    const headers = this.headers(user, {
      'Connect-Protocol-Version': '1',
      'Content-Type': 'application/connect+json',
      'Keepalive-Ping-Interval': String(KEEPALIVE),
      ...(timeoutMs ? { 'Connect-Timeout-Ms': String(Math.max(1, Math.round(timeoutMs))) } : {}),
    })
    const reader = new FrameReader(notFound)
    const options = { headers, content: frame(message), silenceMs: 3 * KEEPALIVE * 1000, notFound }
    const answer = await this.api.stream('POST', `/${method}`, options)
    following.answer = answer
    try {
      for await (const piece of answer) yield* reader.feed(piece)
    } catch (error) {
      if (following.isOver) return
      throw ['ECONNRESET', 'ERR_STREAM_PREMATURE_CLOSE'].includes(error.code) ? cut(error) : error
    } finally {
      if (!answer.complete) answer.destroy()
    }
    if (!reader.ended && !following.isOver) throw cut()
  }
}

/** What `files` throws where there is nothing. */
export const ofFiles = { notFound: FileNotFoundError }
