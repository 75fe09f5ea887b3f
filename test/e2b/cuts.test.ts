import { execFileSync } from 'node:child_process'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { client, type Loose, until, type World, world } from './kit.ts'

/** What E2B's own client tells its user when a stream ends from here: a command, a terminal, a watch. */

let here: World
let e2b: Loose
beforeAll(async () => {
  here = await world()
  e2b = await client('e2b')
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

const HINT = ': This error is likely due to sandbox timeout.'
type Said = { readonly name: string; readonly message: string; readonly class: unknown }
const said = (error: Loose): Said => ({
  name: error.name,
  // The client puts a hint of its own behind what it was told.
  message: error.message.split(HINT)[0],
  class: error.constructor,
})
const failure = (work: Promise<unknown>): Promise<Said> =>
  work.then(() => {
    throw new Error('it did not fail')
  }, said)

type Open = Readonly<Record<string, Promise<Said>>>
/** Everything that can be open at once. */
async function everything(sandbox: Loose): Promise<Open> {
  const run = failure(sandbox.commands.run('echo begun; sleep 60', { timeoutMs: 0 }))
  const background = await sandbox.commands.run('echo begun; sleep 60', { background: true, timeoutMs: 0 })
  const again = await sandbox.commands.connect(background.pid, { timeoutMs: 0 })
  const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 })
  let exit: (error: unknown) => void = () => {}
  const watch = new Promise((resolve) => {
    exit = resolve
  }).then(said)
  const onExit = (error: unknown): void => exit(error)
  await sandbox.files.watchDir('/home/user', () => {}, { timeoutMs: 0, onExit })
  await until(async () => (await sandbox.commands.list()).length === 3, 'the commands')
  await until(() => again.stdout === 'begun\n', 'their output')
  const waits = { background: failure(background.wait()), again: failure(again.wait()) }
  return { run, ...waits, pty: failure(pty.wait()), watch }
}
const together = async (open: Open): Promise<Readonly<Record<string, Said>>> =>
  Object.fromEntries(await Promise.all(Object.entries(open).map(async ([name, one]) => [name, await one])))

const allSay = (name: string, message: string): Readonly<Record<string, Said>> => {
  const one = { name, message, class: e2b[name] }
  return { run: one, background: one, again: one, pty: one, watch: one }
}

test('killing a sandbox ends its streams with the reason', async () => {
  const sandbox = await e2b.Sandbox.create(here.options)
  const open = await everything(sandbox)
  await sandbox.kill()
  expect(await together(open)).toEqual(
    allSay(
      'TimeoutError',
      '[unavailable] the sandbox has ended (killed): the sandbox was killed or reached its end of life',
    ),
  )
})

test('the timeout of a sandbox ends its streams with the reason', async () => {
  const sandbox = await e2b.Sandbox.create(here.options)
  const open = await everything(sandbox)
  await sandbox.setTimeout(1000)
  expect(await together(open)).toEqual(
    allSay(
      'TimeoutError',
      '[unavailable] the sandbox has ended (timeout): the sandbox was killed or reached its end of life',
    ),
  )
})

test('pausing a sandbox ends its streams; its commands continue and can be re-attached after resume', async () => {
  const sandbox = await e2b.Sandbox.create(here.options)
  const open = await everything(sandbox)
  const ticks = await sandbox.commands.run('while sleep 0.02; do echo tick; done', {
    background: true,
    timeoutMs: 0,
  })
  await until(() => ticks.stdout.length > 0, 'the first tick')
  expect(await sandbox.pause()).toBe(true)
  expect(await together(open)).toEqual(allSay('TimeoutError', '[unavailable] the sandbox is paused'))
  expect((await failure(ticks.wait())).message).toBe('[unavailable] the sandbox is paused')
  const woken = await e2b.Sandbox.connect(sandbox.sandboxId, here.options)
  const same = await woken.commands.connect(ticks.pid, { timeoutMs: 0 })
  const before = ticks.stdout.length
  await until(() => same.stdout.length > before + 50, 'more ticks')
  const names: string[] = []
  const watch = await woken.files.watchDir('/home/user', ({ name }: Loose) => void names.push(name))
  await woken.files.write('after.txt', 'x')
  await until(() => names.includes('after.txt'), 'the change')
  await watch.stop()
  await woken.kill()
})

/** The process outside that holds the sandbox in which this sleeps. */
function holderOf(seconds: string): number {
  const rows = execFileSync('ps', ['-eo', 'pid=,ppid=,comm=,args='], { encoding: 'utf8' }).split('\n')
  const all = rows.map((row) => row.trim().split(/\s+/))
  let at = all.find(([, , name, ...args]) => name === 'sleep' && args.at(-1) === seconds)
  while (at && at[2] !== 'bwrap') at = all.find(([pid]) => pid === at?.[1])
  return Number(at?.[0])
}

test('the crash of a sandbox ends its streams with the reason', async () => {
  const sandbox = await e2b.Sandbox.create(here.options)
  const open = await everything(sandbox)
  const seconds = `61.${process.pid}`
  await sandbox.commands.run(`sleep ${seconds}`, { background: true })
  await until(() => holderOf(seconds) > 0, 'the process')
  process.kill(holderOf(seconds), 'SIGKILL')
  expect(await together(open)).toEqual(
    allSay(
      'TimeoutError',
      '[unavailable] the sandbox has ended (crashed): the sandbox was killed or reached its end of life',
    ),
  )
})

test('the shutdown of the server ends all streams with the reason', async () => {
  const other = await world()
  const sandbox = await e2b.Sandbox.create(other.options)
  const open = await everything(sandbox)
  await other.close()
  expect(await together(open)).toEqual(allSay('TimeoutError', '[unavailable] the server is shutting down'))
})

test('a command that exits by itself reports its own result', async () => {
  const sandbox = await e2b.Sandbox.create(here.options)
  expect(await sandbox.commands.run('echo out')).toMatchObject({ exitCode: 0, stdout: 'out\n' })
  const three = sandbox.commands.run('exit 3')
  await expect(three).rejects.toMatchObject({ name: 'CommandExitError', exitCode: 3 })
  const killed = sandbox.commands.run('kill -9 $$')
  await expect(killed).rejects.toMatchObject({ name: 'CommandExitError', error: 'signal: SIGKILL' })
  const late = await failure(sandbox.commands.run('sleep 60', { timeoutMs: 300 }))
  expect(late.message).toMatch(/timed out|time limit|deadline/)
  await sandbox.kill()
})
