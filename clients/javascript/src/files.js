// Files in a sandbox.

import { createHash } from 'node:crypto'
import { ofFiles } from './api.js'
import { ConflictError, FileNotFoundError, InvalidArgumentError } from './errors.js'

const TYPES = { FILE_TYPE_FILE: 'file', FILE_TYPE_DIRECTORY: 'dir', FILE_TYPE_SYMLINK: 'symlink' }

function entryOf(entry) {
  return {
    name: entry.name ?? '',
    type: entry.isSymlink ? 'symlink' : TYPES[entry.type],
    path: entry.path ?? '',
    size: Number(entry.size ?? 0),
    mode: entry.mode ?? 0,
    permissions: entry.permissions ?? '',
    owner: entry.owner ?? '',
    group: entry.group ?? '',
    modifiedTime: entry.modifiedTime ? new Date(entry.modifiedTime) : undefined,
    symlinkTarget: entry.symlinkTarget,
  }
}

// Files are asked for as the user of the query; other services ask the headers for it.
const target = (path, user) => `/files?${new URLSearchParams({ path, ...(user && { username: user }) })}`

/** Files in a sandbox. Relative paths begin in the user's home. */
export class Files {
  #services

  constructor(services) {
    this.#services = services
  }

  /** A file, as `text`, `bytes`, `blob` or `stream`; throws `FileNotFoundError` where there is none. */
  async read(path, { format = 'text', user, requestTimeoutMs } = {}) {
    const options = { headers: this.#services.headers(), timeoutMs: requestTimeoutMs, ...ofFiles }
    if (format === 'stream') return this.#services.api.stream('GET', target(path, user), { ...options, silenceMs: 120_000 })
    const bytes = await this.#services.api.bytes('GET', target(path, user), options)
    if (format === 'text') return bytes.toString()
    if (format === 'bytes') return new Uint8Array(bytes)
    if (format === 'blob') return new Blob([bytes])
    throw new InvalidArgumentError(`format: \`${format}\` is none of \`text\`, \`bytes\`, \`blob\` and \`stream\``)
  }

  /** Writes a file, or several (`[{ path, data }]`); directories on the way to it are made. */
  async write(path, data, options) {
    if (Array.isArray(path)) return this.writeFiles(path, data)
    const headers = this.#services.headers(undefined, { 'Content-Type': 'application/octet-stream' })
    const content = await bytesOf(data)
    const about = { headers, content, timeoutMs: options?.requestTimeoutMs }
    return JSON.parse((await this.#services.api.bytes('POST', target(path, options?.user), about)).toString())[0]
  }

  /** Writes several files. */
  async writeFiles(files, options) {
    const written = []
    for (const { path, data } of files) written.push(await this.write(path, data, options))
    return written
  }

  /** What is in a directory, and below it to a depth. */
  async list(path, { depth = 1, ...options } = {}) {
    const { entries = [] } = await this.#call('ListDir', { path, depth }, options)
    return entries.map(entryOf)
  }

  /** Whether there is anything at a path. */
  async exists(path, options) {
    try {
      await this.#call('Stat', { path }, options)
    } catch (error) {
      if (error instanceof FileNotFoundError) return false
      throw error
    }
    return true
  }

  /** What is at a path. */
  async getInfo(path, options) {
    return entryOf((await this.#call('Stat', { path }, options)).entry)
  }

  /** Removes a file, or a directory with all that is in it. */
  async remove(path, options) {
    await this.#call('Remove', { path }, options)
  }

  /** Moves something. */
  async rename(oldPath, newPath, options) {
    return entryOf((await this.#call('Move', { source: oldPath, destination: newPath }, options)).entry)
  }

  /** Makes a directory, and those on the way to it; answers whether it was not there. */
  async makeDir(path, options) {
    try {
      await this.#call('MakeDir', { path }, options)
    } catch (error) {
      if (error instanceof ConflictError) return false
      throw error
    }
    return true
  }

  /** Tells what happens in a directory until the handle is stopped, or for `timeoutMs`; 0 is without end. */
  async watchDir(path, onEvent, { recursive = false, timeoutMs = 60_000, onExit, user } = {}) {
    const message = { path, recursive }
    const events = this.#services.events('filesystem.Filesystem/WatchDir', message, { user, timeoutMs, ...ofFiles })
    // The first says that nothing is missed from here on.
    await events.next()
    follow(events, onEvent).then(
      () => onExit?.(),
      (error) => onExit?.(error)
    )
    return { stop: async () => events.disconnect() }
  }

  #call(method, message, options) {
    return this.#services.call(`filesystem.Filesystem/${method}`, message, { ...options, ...ofFiles })
  }
}

async function follow(events, onEvent) {
  for await (const { filesystem } of events) {
    if (filesystem) {
      await onEvent({ name: filesystem.name ?? '', type: filesystem.type.replace('EVENT_TYPE_', '').toLowerCase() })
    }
  }
}

/** All bytes of what a caller has as text, as bytes, or as a stream of them. */
export async function bytesOf(data) {
  if (typeof data === 'string' || data instanceof Uint8Array) return data
  if (data instanceof ArrayBuffer) return new Uint8Array(data)
  if (data instanceof Blob) return new Uint8Array(await data.arrayBuffer())
  if (data?.[Symbol.asyncIterator]) {
    const pieces = []
    for await (const piece of data) pieces.push(Buffer.from(piece))
    return Buffer.concat(pieces)
  }
  throw new InvalidArgumentError('data: neither text, nor bytes, nor a stream of them')
}

/** What shows that whoever has a URL may read or write one file. */
export function signature(path, operation, user, token, seconds) {
  const signed = [path, operation, user ?? '', token]
  const query = { path }
  if (user) query.username = user
  if (seconds !== undefined) {
    query.signature_expiration = String(Math.floor(Date.now() / 1000) + seconds)
    signed.push(query.signature_expiration)
  }
  const digest = createHash('sha256').update(signed.join(':')).digest('base64').replace(/=+$/, '')
  return new URLSearchParams({ ...query, signature: `v1_${digest}` })
}
