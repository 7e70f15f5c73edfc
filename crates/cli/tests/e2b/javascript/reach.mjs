// Ports of a sandbox by the names that the SDK gives them: who comes in, what programs see, and what wakes a sandbox.

import { deepStrictEqual as equal, ok } from 'node:assert'
import { request } from 'node:http'
import { Sandbox } from 'e2b'
import { eventually, pause } from './cases.mjs'

// Answers with the head of each request.
const ECHO = `
import http.server
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = "".join(f"{name}: {value}\\n" for name, value in self.headers.items()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("", 8000), Echo).serve_forever()
`

// One answer at port 8000; its name is looked up as RFC 6761 has it, which not every C library does.
function answer(sandbox, headers) {
  const host = sandbox.getHost(8000)
  const [name, port] = host.split(':')
  equal(name, `8000-${sandbox.sandboxId}.localhost`)
  return new Promise((done, no) => {
    const asked = request({ host: '127.0.0.1', port, agent: false, headers: { Host: host, ...headers } }, (response) => {
      let body = ''
      response.on('data', (piece) => (body += piece))
      response.on('end', () => done({ status: response.statusCode, body }))
    })
    asked.on('error', no)
    asked.end()
  })
}

// What is answered once a program listens.
async function get(sandbox, headers = {}) {
  let last
  await eventually(() => 'an answer', async () => {
    last = await answer(sandbox, headers)
    return !last.body.includes('port is not open')
  })
  return last
}

async function within(options, work) {
  const sandbox = await Sandbox.create(options)
  try {
    await sandbox.files.write('echo.py', ECHO)
    await sandbox.commands.run('exec python echo.py', { background: true })
    await work(sandbox)
  } finally {
    await sandbox.kill()
  }
}

export const cases = {
  async portsHaveNamesAndMasks() {
    await within({}, async (sandbox) => {
      const { status, body } = await get(sandbox)
      equal(status, 200)
      ok(body.includes(`Host: ${sandbox.getHost(8000)}\n`), body)
    })
    await within({ network: { maskRequestHost: 'custom.example:${PORT}' } }, async (sandbox) => {
      const { body } = await get(sandbox)
      ok(body.includes('Host: custom.example:8000\n'), body)
    })
  },

  async privatePortsNeedATokenAndPausedSandboxesWake() {
    const lifecycle = { onTimeout: 'pause', autoResume: true }
    await within({ network: { allowPublicTraffic: false }, lifecycle }, async (sandbox) => {
      equal((await get(sandbox)).status, 403)
      const headers = { 'e2b-traffic-access-token': sandbox.trafficAccessToken }
      equal((await get(sandbox, headers)).status, 200)
      await sandbox.pause()
      equal((await get(sandbox)).status, 403)
      equal((await sandbox.getInfo()).state, 'paused')
      equal((await get(sandbox, headers)).status, 200)
      equal((await sandbox.getInfo()).state, 'running')
    })
    await within({}, async (sandbox) => {
      equal((await get(sandbox)).status, 200)
      await sandbox.pause()
      equal((await get(sandbox)).status, 502)
      equal((await sandbox.getInfo()).state, 'paused')
    })
  },

  async aCommandSaysThatItsSandboxWasKilled() {
    const sandbox = await Sandbox.create()
    const handle = await sandbox.commands.run('exec sleep 3600', { background: true })
    const ended = handle.wait().then(
      () => 'well',
      (error) => String(error)
    )
    await pause(100)
    await sandbox.kill()
    const said = await ended
    ok(said.includes('killed or reached its end of life'), said)
  },
}
