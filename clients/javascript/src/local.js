// Files of this machine, which are written where others may write, too.

import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'

const { O_RDONLY, O_RDWR, O_APPEND, O_CREAT, O_DIRECTORY, O_NOFOLLOW } = fs.constants

/**
 * Writes a file that its owner alone can read, in the place of what is there. Until it is whole it has a name that nobody can
 * guess, and is nothing that was there before; nothing of it stays if that fails.
 */
export function writeAnew(file, content) {
  const fresh = path.join(path.dirname(file), `.offleash-${randomBytes(12).toString('hex')}.new`)
  try {
    fs.writeFileSync(fresh, content, { flag: 'wx', mode: 0o600 })
    fs.renameSync(fresh, file)
  } catch (error) {
    fs.rmSync(fresh, { force: true })
    throw error
  }
}

/**
 * What `act` makes of a directory of this user's, which is made if it is not there, by a path that means no other one meanwhile.
 * Throws where it is another user's, or others can write to it: they could have put anything into it.
 */
export function inOwnDirectory(directory, act) {
  const own = process.geteuid()
  const above = (place) => (fs.lstatSync(place, { throwIfNoEntry: false }) ? place : above(path.dirname(place)))
  const existing = above(path.resolve(directory))
  const { uid } = fs.lstatSync(existing)
  if (own === 0 && uid !== 0) {
    // Nothing of the superuser's is left in a directory of somebody else's.
    throw new Error(`\`${existing}\` belongs to user ${uid}, and this program is the superuser's`)
  }
  fs.mkdirSync(directory, { recursive: true, mode: 0o700 })
  // Whoever has the directory above could have put a link there.
  const follow = fs.statSync(path.dirname(directory)).uid === own ? 0 : O_NOFOLLOW
  const opened = fs.openSync(directory, O_RDONLY | O_DIRECTORY | follow)
  try {
    const found = fs.fstatSync(opened)
    if (found.uid !== own) throw new Error(`\`${directory}\` belongs to user ${found.uid}, and this program is user ${own}'s`)
    if (found.mode & 0o022) throw new Error(`\`${directory}\` can be written to by other users`)
    return act(`/proc/self/fd/${opened}`)
  } finally {
    fs.closeSync(opened)
  }
}

/** Opens a file to be read and to be added to, which is made if it is not there; a link is not followed. */
export function openToAppend(file) {
  return fs.openSync(file, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW, 0o600)
}
