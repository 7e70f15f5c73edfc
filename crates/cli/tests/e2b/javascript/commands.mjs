// Commands and terminals in a sandbox.

import { deepStrictEqual as equal, ok } from 'node:assert'
import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, TimeoutError } from 'e2b'
import { eventually, failure } from './cases.mjs'

export const cases = {
  async answer(sandbox) {
    const { stdout, stderr, exitCode } = await sandbox.commands.run('echo out; echo err >&2')
    equal([stdout, stderr, exitCode], ['out\n', 'err\n', 0])
    const failed = await failure(sandbox.commands.run('echo x; exit 9'), CommandExitError)
    equal([failed.exitCode, failed.stdout], [9, 'x\n'])
    equal((await sandbox.commands.run('echo $A; pwd', { cwd: '/tmp', envs: { A: 'b' } })).stdout, 'b\n/tmp\n')
    equal((await sandbox.commands.run('echo $HOME:$USER')).stdout, '/home/user:user\n')
    equal((await sandbox.commands.run('echo $HOME:$USER', { user: 'root' })).stdout, '/root:root\n')
    equal((await sandbox.commands.run('head -c 3000000 /dev/zero | tr "\\0" x')).stdout.length, 3_000_000)
    await failure(sandbox.commands.run('true', { user: 'nobody-there' }), AuthenticationError)
    await failure(sandbox.commands.run('true', { cwd: '/not/there' }), InvalidArgumentError)
  },

  async areToldOfWhileTheyRun(sandbox) {
    let [out, err] = ['', '']
    const onStdout = (data) => (out += data)
    const onStderr = (data) => (err += data)
    await sandbox.commands.run("echo b >&2; printf 'é%.0s' $(seq 40000)", { onStdout, onStderr })
    equal([out, err], ['é'.repeat(40_000), 'b\n'])
  },

  async endWhenTheirTimeIsOver(sandbox) {
    await failure(sandbox.commands.run('sleep 3601', { timeoutMs: 1000 }), TimeoutError)
    const left = async () => (await sandbox.commands.list()).some(({ args }) => args.includes('sleep 3601'))
    await eventually(() => 'its end', async () => !(await left()))
  },

  async runBesideOneAnother(sandbox) {
    const numbers = [...Array(24).keys()]
    const answers = await Promise.all(numbers.map((number) => sandbox.commands.run(`echo ${number}`)))
    equal(answers.map((answer) => answer.stdout), numbers.map((number) => `${number}\n`))
  },

  async readWhatIsSent(sandbox) {
    const handle = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
    await sandbox.commands.sendStdin(handle.pid, 'hé\n')
    await sandbox.commands.sendStdin(handle.pid, 'x'.repeat(300_000))
    await sandbox.commands.closeStdin(handle.pid)
    equal((await handle.wait()).stdout, `hé\n${'x'.repeat(300_000)}end\n`)
  },

  async goOnWhenNobodyListens(sandbox) {
    const line = 'echo a; until test -e go; do sleep 0.05; done; echo b'
    const handle = await sandbox.commands.run(line, { background: true })
    await handle.disconnect()
    ok((await sandbox.commands.list()).some(({ pid }) => pid === handle.pid))
    const again = await sandbox.commands.connect(handle.pid)
    await sandbox.files.write('go', '')
    ok((await again.wait()).stdout.endsWith('b\n'))
    await failure(sandbox.commands.connect(999999), NotFoundError)
  },

  async areKilled(sandbox) {
    const sleep = await sandbox.commands.run('sleep 3600', { background: true })
    equal(await sleep.kill(), true)
    equal((await failure(sleep.wait(), CommandExitError)).exitCode, -1)
    equal(await sandbox.commands.kill(sleep.pid), false)
  },

  async haveTerminals(sandbox) {
    let seen = ''
    const onData = (data) => (seen += Buffer.from(data))
    const terminal = await sandbox.pty.create({ rows: 24, cols: 80, onData, envs: { FRUIT: 'apple' } })
    await sandbox.pty.resize(terminal.pid, { rows: 40, cols: 110 })
    await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('echo $FRUIT-$((6 * 7)); stty size; exit\n'))
    await terminal.wait()
    ok(seen.includes('40 110') && seen.includes('apple-42'), seen)
    const other = await sandbox.pty.create({ rows: 24, cols: 80, onData: () => {} })
    equal(await sandbox.pty.kill(other.pid), true)
  },
}
