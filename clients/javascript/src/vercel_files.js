// Files by the names of `node:fs/promises`, as `@vercel/sandbox` has them.

import { FileNotFoundError, UnsupportedError } from './errors.js'

/** An error as Node has it. */
function coded(code, path, cause) {
  return Object.assign(new Error(`${code}: \`${path}\``, { cause }), { code, path })
}

/** Files of a sandbox, by the names of `node:fs/promises`. */
export class FileSystem {
  #files
  #path
  #run

  constructor(files, path, run) {
    this.#files = files
    this.#path = path
    this.#run = run
  }

  async #at(path, what) {
    try {
      return await what(await this.#files(), this.#path(path))
    } catch (error) {
      throw error instanceof FileNotFoundError ? coded('ENOENT', path, error) : error
    }
  }

  /** A file, as text if an encoding is said. */
  async readFile(path, options) {
    const encoding = typeof options === 'string' ? options : options?.encoding
    const bytes = Buffer.from(await this.#at(path, (files, at) => files.read(at, { format: 'bytes' })))
    return encoding ? bytes.toString(encoding) : bytes
  }

  async writeFile(path, data) {
    await this.#at(path, (files, at) => files.write(at, data))
  }

  async appendFile(path, data) {
    const before = (await this.exists(path)) ? await this.readFile(path) : Buffer.alloc(0)
    await this.writeFile(path, Buffer.concat([before, Buffer.from(data)]))
  }

  async mkdir(path, { recursive = false } = {}) {
    const made = await this.#at(path, (files, at) => files.makeDir(at))
    if (!made && !recursive) throw coded('EEXIST', path)
  }

  /** The names in a directory. */
  async readdir(path, options) {
    if (options?.withFileTypes) throw new UnsupportedError('offleash has no `withFileTypes` of `readdir`', { hint: '`stat` tells' })
    return (await this.#at(path, (files, at) => files.list(at))).map(({ name }) => name)
  }

  async stat(path) {
    const { size, mode, modifiedTime, type } = await this.#at(path, (files, at) => files.getInfo(at))
    const is = (kind) => () => type === kind
    return { size, mode, mtime: modifiedTime, mtimeMs: Number(modifiedTime), isFile: is('file'), isDirectory: is('dir'), isSymbolicLink: is('symlink') }
  }

  async exists(path) {
    return this.#at(path, (files, at) => files.exists(at))
  }

  async access(path) {
    if (!(await this.exists(path))) throw coded('ENOENT', path)
  }

  async rm(path, { recursive = false, force = false } = {}) {
    if (!(await this.exists(path))) {
      if (force) return
      throw coded('ENOENT', path)
    }
    if (!recursive && (await this.stat(path)).isDirectory()) throw coded('EISDIR', path)
    await this.#at(path, (files, at) => files.remove(at))
  }

  async chmod(path, mode) {
    const { exitCode, stderr } = await this.#run(['chmod', mode.toString(8), '--', this.#path(path)])
    if (exitCode !== 0) throw coded((await this.exists(path)) ? 'EPERM' : 'ENOENT', path, new Error(stderr))
  }

  async unlink(path) {
    await this.rm(path)
  }

  async rename(oldPath, newPath) {
    await this.#at(oldPath, (files, at) => files.rename(at, this.#path(newPath)))
  }
}
