import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { client, type Loose, until, type World, world } from './kit.ts'

/** What the kernels of the code interpreter understand and show, for each language. */

let here: World
let Sandbox: Loose
let sandbox: Loose
beforeAll(async () => {
  here = await world()
  Sandbox = (await client('@e2b/code-interpreter')).Sandbox
  sandbox = await Sandbox.create(here.options)
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

const run = (code: string, more: object = {}): Promise<Loose> => sandbox.runCode(code, more)
const PNG = /^iVBORw0KGgo/

describe('Python notebook syntax', () => {
  test('accepts indented code, shell commands, magics and cells of other languages', async () => {
    expect((await run('    a = 1\n    a + 1')).text).toBe('2')
    const said = await run('!echo out; echo err >&2\nnames = !echo one; echo two\nprint(names)')
    expect(said.logs.stdout.join('')).toBe("out\n['one', 'two']\n")
    expect(said.logs.stderr).toEqual(['err\n'])
    expect((await run('%%bash\nfor i in 1 2; do echo $i; done')).logs.stdout.join('')).toBe('1\n2\n')
    expect((await run('%cd /tmp\n%matplotlib inline\n%pwd')).text).toBe('/tmp')
    expect((await run('%cd -q /home/user')).error).toBeUndefined()
  })

  test('lets a shell command start a background process', async () => {
    const done = await run('!sleep 60 & echo started')
    expect(done.logs.stdout).toEqual(['started\n'])
    expect((await run('!pgrep -c sleep')).logs.stdout).toEqual(['1\n'])
    await run('!pkill sleep')
  })

  test('asyncio tasks continue between two cells, and an awaiting cell can be interrupted', async () => {
    await run('import asyncio\nseen = []\nasync def later():\n  await asyncio.sleep(0.05); seen.append(1)')
    await run('task = asyncio.get_event_loop().create_task(later())')
    await until(async () => (await run('seen')).text === '[1]', 'the task')
    await expect(run('await asyncio.sleep(60)', { timeoutMs: 300 })).rejects.toThrow(/timed out|timeout/i)
    expect((await run('seen')).text).toBe('[1]')
  })

  test('shell commands in notebook code are checked by the policy and recorded', async () => {
    const done = await run('print("x")\n!nsenter -t 1 -a ls')
    expect(done.error.value).toMatch(/namespaces/)
    expect(done.logs.stdout).toEqual([])
    await run('!echo on record')
    const admin = await here.key(undefined, ['admin'])
    const list = await fetch(`${here.options.apiUrl}/v1/audit?limit=50`, {
      headers: { authorization: `Bearer ${admin}` },
    })
    expect(await list.text()).toContain('echo on record')
  })
})

describe('Python values have E2B’s form', () => {
  test('text without quotes, lists and dictionaries as JSON, errors without colours', async () => {
    expect((await run('"it is"')).text).toBe('it is')
    expect((await run('"a" + \'"\'')).text).toBe('a"')
    const { results } = await run('import math\n{"a": [1, math.nan], 2: (True, None)}')
    expect(results[0].json).toEqual({ a: [1, null], 2: [true, null] })
    const { error } = await run('def f():\n  raise ValueError("no")\nf()')
    expect(error).toMatchObject({ name: 'ValueError', value: 'no' })
    expect(error.traceback).not.toContain('\u001b')
  })

  test('data frames as columns', async () => {
    const code = `import pandas
pandas.DataFrame({'n': [1, None], 'day': pandas.to_datetime(['2024-02-29', None]), 's': ['a', 'b']})`
    const [shown] = (await run(code)).results
    expect(shown.data).toEqual({ n: [1, null], day: ['2024-02-29T00:00:00', null], s: ['a', 'b'] })
    expect(shown.html).toContain('<table')
  })

  test('every figure that is shown, and images that are shown or saved', async () => {
    const drawn = await run(
      'import matplotlib.pyplot as plt\nplt.plot([1, 3])\nplt.show()\nplt.plot([3, 1])\nplt.show()',
    )
    expect(drawn.results.map(({ png }: Loose) => PNG.test(png))).toEqual([true, true])
    const painted = await run(
      'from PIL import Image\npicture = Image.new("RGB", (2, 2))\npicture.save("two.png")\npicture.show()\npicture',
    )
    expect(painted.results.map(({ png }: Loose) => PNG.test(png))).toEqual([true, true, true])
    expect((await run('!ls two.png')).logs.stdout).toEqual(['two.png\n'])
  })

  test('complete output of programs that write past Python’s streams', async () => {
    const code = 'import os\nos.system("printf out; printf err >&2")\nos.write(2, b"!")\nNone'
    for (let tries = 0; tries < 5; tries++) {
      const { logs } = await run(code)
      expect([logs.stdout.join(''), logs.stderr.join('')]).toEqual(['out', 'err!'])
    }
    expect((await run('print("x" * 3_000_000)')).logs.stdout.join('')).toHaveLength(3_000_001)
  })

  test('variables of one run are removed after it, others stay', async () => {
    await run('import os\nos.environ["STAYS"] = "1"', { envs: { GOES: '1' } })
    expect((await run('os.getenv("STAYS"), os.getenv("GOES")')).text).toBe("('1', None)")
  })
})

describe('Python charts are described as data', () => {
  const chart = async (code: string): Promise<Loose> =>
    (await run(`import matplotlib.pyplot as plt\n${code}\nplt.show()`)).results[0].chart

  test('line charts with units and scales', async () => {
    const line = await chart(
      'import datetime\nplt.plot([datetime.date(2024, 1, d) for d in (1, 2, 3)], [1, 10, 100], label="growth")\nplt.yscale("log")\nplt.xlabel("Day [d]")\nplt.ylabel("Mass (kg)")\nplt.axhline(50)',
    )
    expect(line).toMatchObject({
      type: 'line',
      title: null,
      x_unit: 'd',
      y_unit: 'kg',
      x_scale: 'datetime',
      y_scale: 'log',
    })
    expect(line.elements).toEqual([
      {
        label: 'growth',
        points: [
          ['2024-01-01', 1],
          ['2024-01-02', 10],
          ['2024-01-03', 100],
        ],
      },
    ])
  })

  test('scatter, bar and pie charts', async () => {
    const dots = await chart('plt.scatter([1, 2], [3, 4], label="d")\nplt.title("T")')
    expect(dots).toMatchObject({ type: 'scatter', title: 'T' })
    expect(dots.elements).toEqual([
      {
        label: 'd',
        points: [
          [1, 3],
          [2, 4],
        ],
      },
    ])
    const bars = await chart('plt.barh(["a", "b"], [1, 2])\nplt.bar([], [])\nplt.xlabel("count")')
    expect(bars).toMatchObject({ type: 'bar' })
    const upright = await chart('plt.bar([1, 2], [5, 6], label="g")')
    expect(upright.elements).toEqual([
      { label: '1', group: 'g', value: 5 },
      { label: '2', group: 'g', value: 6 },
    ])
    const pie = await chart('plt.pie([1, 3], labels=["x", "y"])')
    expect(pie.elements).toEqual([
      { label: 'x', angle: 90, radius: 1 },
      { label: 'y', angle: 270, radius: 1 },
    ])
  })

  test('box plots with outliers, vertical and horizontal', async () => {
    for (const upright of ['True', 'False']) {
      const boxes = await chart(
        `plt.boxplot([[1, 2, 3, 4, 5, 40, 50], [2, 2, 2]], vert=${upright}, patch_artist=True, labels=["p", "q"])`,
      )
      expect(boxes.type).toBe('box_and_whisker')
      expect(boxes.elements[0]).toMatchObject({ label: 'p', min: 1, median: 4, first_quartile: 2.5 })
      expect(boxes.elements[1]).toMatchObject({ label: 'q', min: 2, median: 2, max: 2, outliers: [] })
    }
  })

  test('several charts in one figure, and charts of an unknown type', async () => {
    const several = await chart(
      'figure, (a, b) = plt.subplots(1, 2)\nfigure.suptitle("both")\na.plot([1, 2, 4])\nb.scatter([1], [2])',
    )
    expect(several).toMatchObject({ type: 'superchart', title: 'both' })
    expect(several.elements.map(({ type }: Loose) => type)).toEqual(['line', 'scatter'])
    const other = await chart('plt.imshow([[1, 2], [3, 4]])')
    expect(other).toMatchObject({ type: 'unknown', elements: [] })
  })
})

test('Python without IPython still runs code and returns data', async () => {
  const plain = await Sandbox.create({ ...here.options, envs: { PYTHONPATH: '/home/user/without' } })
  await plain.files.write('/home/user/without/IPython.py', 'raise ImportError("not here")')
  const context = await plain.createCodeContext()
  const at = (code: string): Promise<Loose> => plain.runCode(code, { context })
  expect((await at('  x = !echo\n')).error.name).toBe('SyntaxError')
  expect((await at('  x = [1, 2]\n  !echo hello\n  x')).results[0]).toMatchObject({
    text: '[1, 2]',
    json: [1, 2],
  })
  const { results, error } = await at('import matplotlib.pyplot as plt\nplt.plot([1, 2, 4])\nplt.show()')
  expect(error).toBeUndefined()
  expect(results[0].chart.type).toBe('line')
  expect(results[0].png).toMatch(PNG)
  await plain.kill()
})

describe('JavaScript and TypeScript', () => {
  test('import statements work, and their names stay defined', async () => {
    const js = (code: string): Promise<Loose> => run(code, { language: 'js' })
    const code = `
      import { join as glue } from 'node:path'
      import os, * as all from 'os'
      const text = \`
import nothing from 'nowhere'\`
      typeof os.cpus + typeof all.cpus + text.length`
    expect((await js(code)).text).toBe('functionfunction30')
    expect((await js('import { join as glue } from "node:path"; glue("a", "b")')).text).toBe('a/b')
    expect((await js('glue("c", "d")')).text).toBe('c/d')
    expect((await js('import x from "not-installed"')).error.value).toMatch(/not-installed/)
  })

  test('types are removed, enums work, and line numbers are kept', async () => {
    const ts = (code: string): Promise<Loose> => run(code, { language: 'ts' })
    const code =
      'import type { Stats } from "fs"\nenum Level { low = 1, high }\nconst level: Level = Level.high'
    expect((await ts(code)).error).toBeUndefined()
    expect((await ts('const twice = <T,>(value: T): T[] => [value, value]; twice<Level>(level)')).text).toBe(
      '[ 2, 2 ]',
    )
    expect((await ts('interface A {\n  b: number\n}\nthrow new Error("here")')).error.traceback).toMatch(
      /\.ts:4/,
    )
    expect((await ts('let broken: = 1')).error.name).toBe('SyntaxError')
  })
})

describe('Bash', () => {
  const bash = (code: string, more: object = {}): Promise<Loose> => run(code, { language: 'bash', ...more })

  test('keeps variables, functions and the directory, and removes variables of one run', async () => {
    await bash('cd /tmp; name="a b"; greet() { echo "hello $1"; }')
    const done = await bash('greet "$name"; pwd; echo "$ONCE"', { envs: { ONCE: "it's" } })
    expect(done.logs.stdout.join('')).toBe("hello a b\n/tmp\nit's\n")
    expect((await bash('echo "[$ONCE]"')).logs.stdout).toEqual(['[]\n'])
    expect(done.executionCount).toBe(2)
  })

  test('returns complete stdout and stderr, and the exit code', async () => {
    const done = await bash('printf no-break; echo sorry >&2; cat; exit_code() { return 7; }; exit_code')
    expect(done.logs).toEqual({ stdout: ['no-break'], stderr: ['sorry\n'] })
    expect(done.error).toMatchObject({ name: '', value: '7' })
    expect((await bash('if')).error.value).toBe('2')
    expect((await bash('yes | head -1')).logs).toEqual({ stdout: ['y\n'], stderr: [] })
    expect((await bash('nsenter -t 1 -a ls')).error.value).toMatch(/namespaces/)
  })

  test('may redirect its streams, and print much output', async () => {
    const diverted = await bash('exec 3>&1 2>&1; nonsense; exec >/dev/null; echo lost')
    expect(diverted.logs.stdout.join('')).toMatch(/^.*nonsense: command not found\n$/)
    expect((await bash('exec >&3 2>/dev/null; echo found')).logs.stdout).toEqual(['found\n'])
    const much = await bash('yes | head -c 3000000; head -c 3000000 /dev/zero | tr "\\0" x')
    expect(much.logs.stdout.join('')).toHaveLength(6_000_000)
  })

  test('an interrupt stops all of the code and keeps the state', async () => {
    await expect(bash('sleep 60; name=changed; while :; do :; done', { timeoutMs: 300 })).rejects.toThrow(
      /timed out|timeout/i,
    )
    expect((await bash('echo $name')).logs.stdout).toEqual(['a b\n'])
  })
})

describe('a code execution', () => {
  test('rejects when its sandbox is killed', async () => {
    const other = await Sandbox.create(here.options)
    const running = other.runCode('import time; time.sleep(60)', { timeoutMs: 50_000 })
    const refused = expect(running).rejects.toThrow(/sandbox was killed/)
    await other.runCode('1', { language: 'js' })
    await other.kill()
    await refused
  })

  const ask = (body: object): Promise<Response> =>
    fetch(`${here.options.apiUrl}/execute`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'e2b-sandbox-id': sandbox.sandboxId,
        'e2b-sandbox-port': '49999',
        'x-access-token': sandbox.envdAccessToken,
      },
      body: JSON.stringify(body),
    })

  test('refuses a context together with a language', async () => {
    expect((await ask({ code: '1', context_id: 'default-python', language: 'python' })).status).toBe(400)
  })

  test.runIf(process.env.RINGFENCE_FULL)('sends keepalive messages while the code is silent', async () => {
    const lines = await (await ask({ code: 'import time; time.sleep(5.5)' })).text()
    expect(lines).toContain('{"type":"keepalive"}\n')
  })
})

test('programs in the sandbox reach the interpreter on its port, and a template can wait for it', async () => {
  const curl = 'curl -s --retry 20 --retry-connrefused --retry-delay 1 http://0.0.0.0:49999/health'
  const first = await sandbox.commands.run(curl)
  expect(first.stdout).toBe('"OK"')
  const { Template } = await client('e2b')
  const name = 'waits'
  const ready = 'curl -sf http://localhost:49999/health'
  await Template.build(Template().fromTemplate('code-interpreter-v1').setStartCmd('sleep 60', ready), {
    ...here.options,
    alias: name,
  })
  const made = await Sandbox.create(name, here.options)
  expect((await made.runCode('6 * 7')).text).toBe('42')
  await made.kill()
})

describe('a pooled sandbox', () => {
  test('has a running kernel, is handed out once, and never for a create with variables', async () => {
    const { metrics } = here.server.server.parts
    const ready = (): boolean => /ringfence_pool_ready 1\b/.test(metrics.text())
    await until(ready, 'a prepared sandbox')
    const [one, two] = await Promise.all([
      Sandbox.create(here.options),
      Sandbox.create({ ...here.options, envs: { MINE: 'yes' } }),
    ])
    expect((await one.runCode('import os\nos.getenv("MINE")')).text).toBeUndefined()
    expect((await two.runCode('import os\nos.getenv("MINE")')).text).toBe('yes')
    expect(one.sandboxId).not.toBe(two.sandboxId)
    await Promise.all([one.kill(), two.kill()])
  })
})
