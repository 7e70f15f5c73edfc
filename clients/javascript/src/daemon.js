// A server of one's own, where none runs: started when it is first needed, shared by all programs of the user, ended when
// idle. The state directory's own lock decides who starts it: of two servers that are started at once the second ends, and
// its starter uses the first.

import { spawn } from 'node:child_process'
import fs from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { DaemonError } from './errors.js'
import { inOwnDirectory, openToAppend, writeAnew } from './local.js'

/** How long a server may take to listen; one that ends first finishes its requests. */
const START_TIMEOUT_MS = 60_000
/** How long it lives without a running sandbox. */
const IDLE_SECONDS = 600
/** Most bytes of its log that are kept when it is started again. */
const MAX_LOG = 1024 * 1024

// No sandbox waits: what is made ahead would stay when the server is gone.
const CONFIG = 'listen = "127.0.0.1:0"\n\n[pool]\nmin = 0\nmax = 0\n'

// Runs the server, and ends it when no sandbox has run for some time. Arguments: program, state, configuration, seconds.
const KEEPER = `\
"$1" serve --state "$2" --config "$3" >/dev/null &
server=$!
(
    idle=0
    while sleep 15 && kill -0 $server 2>/dev/null; do
        case "$("$1" ls --state "$2" 2>&1)" in *running*) idle=0 ;; *) idle=$((idle + 15)) ;; esac
        [ $idle -lt "$4" ] || kill -TERM $server
    done
) </dev/null >/dev/null 2>&1 &
watcher=$!
wait $server
code=$?
kill $watcher 2>/dev/null
exit $code
`

const BUSY = 'another daemon works on this state directory'
const MANAGED = ['NOTIFY_SOCKET', 'LISTEN_FDS', 'LISTEN_PID', 'LISTEN_FDNAMES', 'OFFLEASH_STATE', 'OFFLEASH_HOST']

function stateHome() {
  const home = process.env.XDG_STATE_HOME ?? ''
  return home.startsWith('/') ? home : path.join(os.homedir(), '.local', 'state')
}

/** The state directory of the server that this library starts. */
export function privateState() {
  return path.join(stateHome(), 'offleash-library')
}

/** The state directory of `offleash serve`. */
export function usualState() {
  return process.env.OFFLEASH_STATE || (process.geteuid() === 0 ? '/var/lib/offleash' : path.join(stateHome(), 'offleash'))
}

function isExecutable(file) {
  try {
    fs.accessSync(file, fs.constants.X_OK)
    return fs.statSync(file).isFile()
  } catch {
    return false
  }
}

/** The program `offleash`: what OFFLEASH_BINARY names, what came with this package, or what PATH has. */
export function findBinary() {
  if (process.env.OFFLEASH_BINARY) return process.env.OFFLEASH_BINARY
  // In a package of its own for each platform, beside this one or in it.
  const platform = `offleash-${process.platform}-${process.arch}/bin/offleash`
  const packaged = ['../node_modules/', '../../'].map((place) => fileURLToPath(new URL(place + platform, import.meta.url)))
  const places = (process.env.PATH ?? '').split(':').filter(Boolean)
  const found = [...packaged, ...places.map((place) => path.join(place, 'offleash'))].find(isExecutable)
  if (found) return found
  throw new DaemonError('the program `offleash` is not found', {
    hint: 'install it and see that it is in PATH, set OFFLEASH_BINARY to it, or OFFLEASH_URL to a server',
  })
}

const shortened = new Map()

/** The same socket by a path that is short enough for its address, which may have 107 bytes. */
export function shortPath(socket) {
  if (Buffer.byteLength(socket) <= 100) return socket
  const directory = path.dirname(socket)
  if (!fs.existsSync(directory)) return socket
  // It stays open as long as the program uses the path.
  if (!shortened.has(directory)) {
    shortened.set(directory, fs.openSync(directory, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY))
  }
  return `/proc/self/fd/${shortened.get(directory)}/${path.basename(socket)}`
}

/** Whether a server of this user listens at a socket. */
export function answers(socket) {
  try {
    const found = fs.lstatSync(socket)
    if (!found.isSocket() || found.uid !== process.geteuid()) return Promise.resolve(false)
  } catch {
    return Promise.resolve(false)
  }
  return new Promise((resolve) => {
    const connection = net.connect(shortPath(socket))
    const told = (answer) => {
      connection.destroy()
      resolve(answer)
    }
    connection.once('connect', () => told(true))
    connection.once('error', () => told(false))
  })
}

const soon = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
let starting = null

/** The socket of the server of this user, which is started if it does not run. */
export async function ensure() {
  const socket = path.join(privateState(), 'api.sock')
  if (await answers(socket)) return socket
  starting ??= startAny(socket).finally(() => {
    starting = null
  })
  await starting
  return socket
}

async function startAny(socket) {
  const deadline = Date.now() + START_TIMEOUT_MS
  while (!(await answers(socket))) {
    const said = await start(path.dirname(socket), socket, deadline).catch((error) => {
      if (!error.syscall) throw error
      const message = `a server cannot have its state in \`${path.dirname(socket)}\`: ${error.message}`
      const hint = 'set XDG_STATE_HOME to a directory that you can write to, or OFFLEASH_URL to a server'
      throw new DaemonError(message, { hint, cause: error })
    })
    if (said === null) return
    if (!said.includes(BUSY) || Date.now() > deadline) {
      const words = said.trim() || 'it said nothing'
      throw new DaemonError(`\`offleash serve\` did not start: ${words}`, { hint: '`offleash doctor` says what is missing' })
    }
    await soon(20)
  }
}

// Starts a server and waits until it listens; answers what it said if it ended instead.
async function start(state, socket, deadline) {
  const program = findBinary()
  const config = path.join(state, 'library.toml')
  const log = prepared(state, path.basename(config))
  try {
    if (fs.fstatSync(log).size > MAX_LOG) fs.ftruncateSync(log)
    const begin = fs.fstatSync(log).size
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !MANAGED.includes(name)))
    const words = ['-c', KEEPER, 'offleash-keeper', program, state, config, String(IDLE_SECONDS)]
    const child = spawn('/bin/sh', words, { detached: true, stdio: ['ignore', 'ignore', log], cwd: '/', env })
    let failure = null
    child.once('error', (error) => {
      failure = `cannot start \`/bin/sh\`: ${error.message}`
    })
    child.unref()
    for (;;) {
      if (await answers(socket)) return null
      if (failure) return failure
      const ended = child.exitCode !== null || child.signalCode !== null
      if (ended || Date.now() > deadline) {
        const said = Buffer.alloc(4096)
        const length = fs.readSync(log, said, 0, said.length, begin)
        return said.toString('utf8', 0, length) || (ended ? '' : 'it does not listen yet')
      }
      await soon(3)
    }
  } finally {
    fs.closeSync(log)
  }
}

// Writes what a server is told, and opens its log. Before anything is written: it is not started in a directory of another user's.
function prepared(state, config) {
  try {
    return inOwnDirectory(state, (own) => {
      // Whoever starts another server at the same time finds a whole file.
      if (!fs.existsSync(path.join(own, config))) writeAnew(path.join(own, config), CONFIG)
      return openToAppend(path.join(own, 'serve.log'))
    })
  } catch (error) {
    throw new DaemonError(`the state of a server cannot be kept in \`${state}\`: ${error.message}`, {
      hint: "set HOME or XDG_STATE_HOME to a directory of this user's, or OFFLEASH_URL to a server",
    })
  }
}
