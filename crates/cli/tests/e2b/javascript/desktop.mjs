// What E2B's SDK for desktops does with a screen.

import { deepEqual, equal, ok } from 'node:assert'
import { Sandbox } from '@e2b/desktop'

import { eventually } from './cases.mjs'

const magic = (bytes) => Buffer.from(bytes).subarray(1, 4).toString()

export const cases = {
  async a_desktop_is_seen_driven_and_streamed() {
    const desktop = await Sandbox.create({ resolution: [640, 480], timeoutMs: 600_000 })
    try {
      const run = async (line) => (await desktop.commands.run(line)).stdout
      deepEqual(await desktop.getScreenSize(), { width: 640, height: 480 })
      equal(magic(await desktop.screenshot()), 'PNG')
      await desktop.commands.run("xterm -T typing -e sh -c 'cat >/tmp/typed'", { background: true })
      await eventually(() => 'a window', async () => (await run('xdotool search --onlyvisible --class XTerm || true')) !== '')
      await desktop.leftClick(300, 200)
      deepEqual(await desktop.getCursorPosition(), { x: 300, y: 200 })
      await desktop.write('hello', { chunkSize: 25, delayInMs: 5 })
      await desktop.press('enter')
      await desktop.press(['ctrl', 'd'])
      equal(await eventually(() => 'what was typed', () => run('cat /tmp/typed')), 'hello\n')
      await desktop.drag([10, 20], [30, 40])
      deepEqual(await desktop.getCursorPosition(), { x: 30, y: 40 })
      await desktop.stream.start()
      ok(desktop.stream.getUrl().startsWith(`https://6080-${desktop.sandboxId}.localhost`))
      await desktop.stream.stop()
    } finally {
      await desktop.kill()
    }
  },
}
