// Daytona's SDK, unchanged, against the door that speaks its API.

import assert from 'node:assert/strict'

import { Daytona } from '@daytona/sdk'

const { E2B_API_URL: url, E2B_API_KEY: apiKey } = process.env

const daytona = new Daytona({ apiKey, apiUrl: `${url}/api`, target: 'us' })
const sandbox = await daytona.create({ language: 'javascript', labels: { task: 'door' }, envVars: { GREETING: 'hello' } })
assert.equal(sandbox.state, 'started')
assert.equal((await daytona.get(sandbox.id)).id, sandbox.id)

const command = await sandbox.process.executeCommand('echo $GREETING; exit 3')
assert.deepEqual([command.exitCode, command.result], [3, 'hello\n'])
const code = await sandbox.process.codeRun('console.log(6 * 7)')
assert.deepEqual([code.exitCode, code.result], [0, '42\n'])

await sandbox.process.createSession('work')
await sandbox.process.executeSessionCommand('work', { command: 'cd /tmp; export KEPT=yes' })
const kept = await sandbox.process.executeSessionCommand('work', { command: 'echo $PWD $KEPT; echo bad >&2' })
assert.deepEqual([kept.exitCode, kept.stdout, kept.stderr], [0, '/tmp yes\n', 'bad\n'])
const logs = await sandbox.process.getSessionCommandLogs('work', kept.cmdId)
assert.equal(logs.stdout, '/tmp yes\n')
const begun = await sandbox.process.executeSessionCommand('work', { command: 'echo one; sleep 0.2; echo two; echo bad >&2', runAsync: true })
const heard = { out: '', err: '' }
await sandbox.process.getSessionCommandLogs('work', begun.cmdId, (text) => { heard.out += text }, (text) => { heard.err += text })
assert.deepEqual(heard, { out: 'one\ntwo\n', err: 'bad\n' })
await sandbox.process.deleteSession('work')

let shown = ''
const terminal = await sandbox.process.createPty({ id: 'one', envs: { A: 'b' }, cols: 100, rows: 30, onData: (data) => { shown += Buffer.from(data) } })
await terminal.sendInput('stty size; echo $A-$TERM; exit 7\n')
assert.equal((await terminal.wait()).exitCode, 7)
assert.ok(shown.includes('30 100') && shown.includes('b-xterm-256color'), shown)
const ran = await sandbox.codeInterpreter.runCode('x = 6\nprint(x * 7)')
assert.deepEqual([ran.stdout, ran.error], ['42\n', undefined])
assert.equal((await sandbox.codeInterpreter.runCode('y')).error.name, 'NameError')

const large = Buffer.alloc(2 << 20, 'ä')
await sandbox.fs.uploadFiles([
  { source: Buffer.from('one'), destination: 'data/a.txt' },
  { source: large, destination: 'data/ä b.bin' },
])
assert.equal((await sandbox.fs.downloadFile('data/a.txt')).toString(), 'one')
assert.ok((await sandbox.fs.downloadFile('data/ä b.bin')).equals(large))
assert.deepEqual((await sandbox.fs.listFiles('data')).map((file) => file.name).sort(), ['a.txt', 'ä b.bin'])
await assert.rejects(sandbox.fs.downloadFile('data/missing'), { statusCode: 404 })

await sandbox.git.init('repository')
await sandbox.fs.uploadFile(Buffer.from('text\n'), 'repository/a.txt')
await sandbox.git.add('repository', ['a.txt'])
const commit = await sandbox.git.commit('repository', 'first', 'Someone', 'someone@example.com')
assert.equal(commit.sha.length, 40)
assert.equal((await sandbox.git.status('repository')).fileStatus.length, 0)

const listed = []
for await (const one of daytona.list({ labels: { task: 'door' } })) listed.push(one.id)
assert.deepEqual(listed, [sandbox.id])
await sandbox.stop()
await sandbox.start()
assert.equal((await sandbox.fs.downloadFile('data/a.txt')).toString(), 'one')
await sandbox.delete()
await assert.rejects(daytona.get(sandbox.id), { statusCode: 404 })
// It would wait for events of a server that has none.
process.exit(0)
