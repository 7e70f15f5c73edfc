// What real packages make, by way of E2B's code interpreter SDK, in the template that it asks for.

import { deepStrictEqual as equal, match, ok } from 'node:assert'
import { NotFoundError, Sandbox, TimeoutError } from '@e2b/code-interpreter'
import { failure } from './cases.mjs'

const FIGURE = 'import matplotlib.pyplot as plt\nimport numpy as np\nimport pandas as pd\n'

async function within(work) {
  const sandbox = await Sandbox.create()
  try {
    await work(sandbox)
  } finally {
    await sandbox.kill()
  }
}

// The only result of a cell.
async function only(sandbox, code) {
  const { results, error } = await sandbox.runCode(code)
  equal(error, undefined)
  equal(results.length, 1)
  return results[0]
}

async function chart(sandbox, code) {
  const result = await only(sandbox, `${FIGURE}${code}\nplt.show()`)
  ok(result.png.startsWith('iVBORw0KGgo'), result.png)
  return result.chart
}

export const cases = {
  async keepTheirState() {
    await within(async (sandbox) => {
      await sandbox.runCode('x = 1')
      const execution = await sandbox.runCode('x += 1; x')
      equal([execution.text, execution.executionCount, execution.results[0].isMainResult], ['2', 2, true])
      const context = await sandbox.createCodeContext({ language: 'python', cwd: '/tmp' })
      equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
      equal((await sandbox.runCode('x', { context })).error.name, 'NameError')
      ok((await sandbox.listCodeContexts()).some(({ id }) => id === context.id))
      await sandbox.restartCodeContext(context)
      await sandbox.removeCodeContext(context)
      await failure(sandbox.runCode('1', { context }), NotFoundError)
      equal((await sandbox.runCode('echo $A', { language: 'bash', envs: { A: 'a' } })).logs.stdout.join(''), 'a\n')
    })
  },

  async tellAsTheyRun() {
    await within(async (sandbox) => {
      const seen = []
      const code = `import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay(1)\nraise ValueError('wrong')`
      const execution = await sandbox.runCode(code, {
        onStdout: ({ line }) => seen.push(['out', line]),
        onStderr: ({ line }) => seen.push(['err', line]),
        onResult: ({ text }) => seen.push(['result', text]),
        onError: ({ name, value }) => seen.push(['error', name, value]),
      })
      equal(seen, [['out', 'a\n'], ['err', 'b\n'], ['result', '1'], ['error', 'ValueError', 'wrong']])
      match(execution.error.traceback, /raise ValueError/)
      await failure(sandbox.runCode('x = 5\nwhile True: pass', { timeoutMs: 2000 }), TimeoutError)
      equal((await sandbox.runCode('x')).text, '5')
    })
  },

  async areDrawn() {
    await within(async (sandbox) => {
      let drawn = await chart(sandbox, `plt.plot([1, 2], [3, 4], label='a')\nplt.xlabel('Time (s)')\nplt.title('T')`)
      equal([drawn.type, drawn.title, drawn.x_label, drawn.x_unit], ['line', 'T', 'Time (s)', 's'])
      equal([drawn.x_scale, drawn.elements], ['linear', [{ label: 'a', points: [[1, 3], [2, 4]] }]])
      drawn = await chart(sandbox, 'plt.scatter([1], [2])')
      equal([drawn.type, drawn.elements[0].points], ['scatter', [[1, 2]]])
      drawn = await chart(sandbox, `plt.bar(['a', 'b'], [1, 2])`)
      equal([drawn.type, drawn.elements.map(({ label, value }) => [label, value])], ['bar', [['a', 1], ['b', 2]]])
      drawn = await chart(sandbox, `plt.pie([1, 3], labels=['a', 'b'])`)
      equal([drawn.type, drawn.elements.map(({ label, angle }) => [label, angle])], ['pie', [['a', 90], ['b', 270]]])
      drawn = await chart(sandbox, 'plt.boxplot([1, 2, 3, 4, 20])')
      equal([drawn.type, drawn.elements[0].median, drawn.elements[0].outliers], ['box_and_whisker', 3, [20]])
      drawn = await chart(sandbox, 'f, (a, b) = plt.subplots(1, 2)\na.plot([1, 2])\nb.scatter([1], [2])')
      equal([drawn.type, drawn.elements.map(({ type }) => type)], ['superchart', ['line', 'scatter']])
    })
  },

  async haveEveryForm() {
    await within(async (sandbox) => {
      const frame = await only(sandbox, `import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})`)
      equal(frame.data, { a: [1, 2], b: ['x', null] })
      match(frame.html, /<table/)
      const forms = {
        html: '<b>v</b>',
        markdown: '*v*',
        svg: '<svg/>',
        png: 'iVBORw0KGgo=',
        jpeg: '/9j/',
        pdf: 'JVBERg==',
        latex: '$v$',
        json: { v: [1] },
        javascript: 'v()',
      }
      const methods = Object.entries(forms).map(
        ([form, value]) => `    def _repr_${form}_(self): return ${JSON.stringify(value)}\n`,
      )
      const value = await only(sandbox, `class V:\n${methods.join('')}    def __repr__(self): return 'V'\nV()`)
      equal(Object.fromEntries(Object.keys(forms).map((form) => [form, value[form]])), forms)
      equal([value.text, value.formats()], ['V', Object.keys(forms)])
    })
  },
}
