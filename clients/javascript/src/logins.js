// A server elsewhere, named as for the command line, and the keys that `offleash login` kept.

import fs from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import tls from 'node:tls'
import { AuthenticationError, InvalidArgumentError, PermissionDeniedError } from './errors.js'

/** The most that is read of the file with keys. */
const MAX_FILE = 1024 * 1024

/** `https://HOST[:PORT]` as the command line writes it; null if it is something else. */
function canonical(text) {
  let url
  try {
    url = new URL(text)
  } catch {
    return null
  }
  const more = !/^\/?$/.test(url.pathname) || /[?#@]/.test(text) || /:\/?$/.test(text)
  if (!['http:', 'https:'].includes(url.protocol) || !url.hostname || url.port === '0' || more) return null
  return `${url.protocol}//${url.host}`
}

/** Whether nobody reads what is sent to a server: by TLS, or on this machine. */
function keepsSecrets(text) {
  const url = new URL(text)
  const host = url.hostname.replace(/^\[|\]$/g, '')
  return url.protocol === 'https:' || host === 'localhost' || host === '::1' || (net.isIPv4(host) && host.startsWith('127.'))
}

/** The server that OFFLEASH_HOST names; undefined where it names none. */
export function hostOfEnvironment() {
  const named = process.env.OFFLEASH_HOST
  if (!named) return undefined
  const url = canonical(named)
  if (url === null) {
    // What stands before an `@` may be a secret.
    const shown = named.slice(named.lastIndexOf('@') + 1)
    throw new InvalidArgumentError(`OFFLEASH_HOST: \`${shown}\` is no address of a server`, { hint: 'as in `https://HOST:PORT`' })
  }
  if (!keepsSecrets(url)) {
    const message = `OFFLEASH_HOST: \`${url}\` is not encrypted, and others could read the key and everything else that is sent there`
    const hint = 'serve with `--tls-cert` and `--tls-key`; `url` and OFFLEASH_URL send it all the same'
    throw new InvalidArgumentError(message, { hint })
  }
  return url
}

/** The key that `offleash login` kept for a server; undefined if there is none. */
export function keyOf(url) {
  const name = canonical(url)
  const directory = directories().find(isOurs)
  if (name === null || !directory || !keepsSecrets(name)) return undefined
  const file = path.join(directory, 'offleash', 'keys.json')
  let kept
  try {
    kept = readPrivate(file)
  } catch (error) {
    if (error.code === 'ENOENT') return undefined
    // Its content is no part of the message.
    throw error instanceof PermissionDeniedError ? error : new AuthenticationError(`the keys in \`${file}\` cannot be read`)
  }
  return kept && Object.hasOwn(kept, name) && typeof kept[name] === 'string' ? kept[name] : undefined
}

function readPrivate(file) {
  const opened = fs.openSync(file, 'r')
  try {
    const found = fs.fstatSync(opened)
    if (found.uid !== process.geteuid() || found.mode & 0o077) {
      const hint = `\`chmod 600 ${file}\` makes it yours alone; the keys in it may be known to others`
      throw new PermissionDeniedError(`others can read the keys in \`${file}\`, or write them`, { hint })
    }
    if (found.size > MAX_FILE) throw new RangeError('it is too large')
    return JSON.parse(fs.readFileSync(opened, 'utf8'))
  } finally {
    fs.closeSync(opened)
  }
}

/** The same where there has to be one. */
export function neededKeyOf(url) {
  const key = keyOf(url)
  if (key) return key
  const hint = `\`offleash login ${url}\` keeps one, and OFFLEASH_API_KEY gives one to one program`
  throw new AuthenticationError(`no key of \`${url}\` is known`, { hint })
}

/** Where the user's configuration may be, as the command line looks for it. */
function directories() {
  const { XDG_CONFIG_HOME, HOME } = process.env
  const homes = [HOME]
  try {
    homes.push(os.userInfo().homedir)
  } catch {
    // The user has no entry.
  }
  return [XDG_CONFIG_HOME, ...homes.filter(Boolean).map((home) => path.join(home, '.config'))].filter(Boolean)
}

/** Whether a directory, or the nearest above it that exists, belongs to this user. */
function isOurs(directory) {
  if (!path.isAbsolute(directory)) return false
  let above = directory
  while (above !== '/' && !fs.existsSync(above)) above = path.dirname(above)
  return fs.statSync(above).uid === process.geteuid()
}

/** Authorities that are trusted beside the usual ones: the file that OFFLEASH_CA names. */
export function authorities() {
  const file = process.env.OFFLEASH_CA
  if (!file) return undefined
  try {
    const usual = tls.getCACertificates?.('default') ?? tls.rootCertificates
    return [...usual, fs.readFileSync(file, 'utf8')]
  } catch (error) {
    const hint = 'OFFLEASH_CA names a file with certificates (PEM)'
    throw new InvalidArgumentError(`the authorities in \`${file}\` cannot be read: ${error.message}`, { hint, cause: error })
  }
}
