// A sandbox for Vercel's `bash-tool` (and so for the AI SDK): its tools run in a sandbox of offleash.

import { posix } from 'node:path'

/** `createBashTool({ sandbox: bashSandbox(sandbox) })` with a `Sandbox` of `offleash`. */
export function bashSandbox(sandbox, { cwd = '/home/user', timeoutMs = 300_000 } = {}) {
  return {
    async executeCommand(command) {
      const { stdout, stderr, exitCode, signal, timedOut } = await sandbox.run(command, { cwd, timeoutMs })
      const late = timedOut ? `\nkilled after ${timeoutMs} ms` : ''
      return { stdout, stderr: stderr + late, exitCode: exitCode ?? (timedOut ? 124 : 128 + (signal ?? 0)) }
    },
    readFile: (path) => sandbox.files.read(posix.resolve(cwd, path)),
    async writeFiles(files) {
      const absolute = files.map(({ path, content }) => ({ path: posix.resolve(cwd, path), data: content }))
      await sandbox.files.writeFiles(absolute)
    },
  }
}
