import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { client, type Loose, until, type World, world } from './kit.ts'

let here: World
beforeAll(async () => {
  here = await world()
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

describe.each(['e2b-2.14', 'e2b-2.20', 'e2b-2.45', 'e2b'])('the unmodified client %s', (name) => {
  let e2b: Loose
  let sandbox: Loose
  beforeAll(async () => {
    e2b = await client(name)
    sandbox = await e2b.Sandbox.create({
      ...here.options,
      timeoutMs: 60_000,
      envs: { GREETING: 'hello' },
      metadata: { client: name },
    })
  })
  afterAll(async () => {
    expect(await e2b.Sandbox.kill(sandbox.sandboxId, here.options)).toBe(true)
    expect(await e2b.Sandbox.kill(sandbox.sandboxId, here.options)).toBe(false)
    expect(await sandbox.isRunning()).toBe(false)
    await expect(sandbox.commands.run('true')).rejects.toThrow()
  })

  test('runs commands', async () => {
    const done = await sandbox.commands.run('echo "$GREETING $EXTRA from $(whoami) in $PWD, home $HOME"', {
      envs: { EXTRA: 'you' },
    })
    expect(done.stdout).toBe('hello you from user in /home/user, home /home/user\n')
    expect(done.exitCode).toBe(0)
    const out: string[] = []
    const lines = await sandbox.commands.run('echo a; echo b >&2; cd /tmp; pwd', {
      onStdout: (data: string) => void out.push(data),
      cwd: '/workspace',
    })
    expect(lines.stdout).toBe('a\n/tmp\n')
    expect(lines.stderr).toBe('b\n')
    expect(out.join('')).toBe('a\n/tmp\n')
  })

  test('gets the exit code and stderr of a failed command', async () => {
    const failed = await sandbox.commands.run('echo no >&2; exit 7').catch((error: unknown) => error)
    expect(failed.exitCode).toBe(7)
    expect(failed.stderr).toBe('no\n')
    await expect(sandbox.commands.run('sleep 30', { timeoutMs: 400 })).rejects.toThrow(/timed out|deadline/i)
    const left = async (): Promise<string> =>
      (await sandbox.commands.run('pgrep -c sleep || true')).stdout.trim()
    await until(async () => (await left()) === '0', 'the end of what ran too long')
  })

  test('gets the reason of a policy refusal', async () => {
    await expect(sandbox.commands.run('nsenter -t 1 -a ls')).rejects.toThrow(/creates or enters namespaces/)
    expect((await sandbox.commands.run('echo still here')).stdout).toBe('still here\n')
  })

  test('starts a background command, writes to it, lists, connects and kills it', async () => {
    const running = await sandbox.commands.run('while read line; do echo "got $line"; done', {
      background: true,
      stdin: true,
    })
    await sandbox.commands.sendStdin(running.pid, 'one\n')
    await until(() => running.stdout === 'got one\n', 'the echo')
    const listed = await sandbox.commands.list()
    expect(listed.map((one: Loose) => one.pid)).toContain(running.pid)
    // Another connection sees what was said before it came.
    const heard: string[] = []
    const again = await sandbox.commands.connect(running.pid, {
      onStdout: (data: string) => void heard.push(data),
    })
    await until(() => heard.join('') === 'got one\n', 'the replay')
    await again.disconnect()
    await sandbox.commands.sendStdin(running.pid, 'two\n')
    await until(() => running.stdout.endsWith('got two\n'), 'the second echo')
    expect(await running.kill()).toBe(true)
    await expect(running.wait()).rejects.toThrow(/signal/i)
    expect(await sandbox.commands.kill(999_999)).toBe(false)
  })

  test('reads, writes, lists, moves and removes files', async () => {
    const { files } = sandbox
    const info = await files.write('notes/a.txt', 'ünï\n')
    expect(info.path).toBe('/home/user/notes/a.txt')
    expect(await files.read('/home/user/notes/a.txt')).toBe('ünï\n')
    const bytes = new Uint8Array(300_000).map((_, at) => at * 7)
    await files.write('b.bin', bytes.buffer)
    expect(Buffer.compare(await files.read('b.bin', { format: 'bytes' }), bytes)).toBe(0)
    let size = 0
    for await (const chunk of await files.read('b.bin', { format: 'stream' })) size += chunk.length
    expect(size).toBe(300_000)
    await files.write([
      { path: 'many/1', data: 'one' },
      { path: 'many/2', data: new Blob(['two']) },
    ])
    expect((await files.list('many')).map((one: Loose) => [one.name, one.type])).toEqual([
      ['1', 'file'],
      ['2', 'file'],
    ])
    await files.write('empty', '')
    expect(await files.read('empty')).toBe('')
    expect(await files.makeDir('deep/er/still')).toBe(true)
    expect(await files.makeDir('deep/er/still')).toBe(false)
    expect((await files.rename('many/1', 'moved')).path).toBe('/home/user/moved')
    expect(await files.exists('many/1')).toBe(false)
    expect(await files.exists('moved')).toBe(true)
    await files.remove('many')
    expect(await files.exists('many')).toBe(false)
    expect(await files.exists(packageRoot()), 'a directory of the host').toBe(false)
    await expect(files.read('nothing')).rejects.toThrow(/does not exist|not found/)
    await expect(files.list('/nowhere')).rejects.toThrow()
    await expect(files.write('/proc/version', 'x')).rejects.toThrow()
    const stat = await files.getInfo('moved')
    expect(stat).toMatchObject({ name: 'moved', type: 'file', size: 3, path: '/home/user/moved' })
  })

  test('watches a directory', async () => {
    await sandbox.files.makeDir('seen')
    const events: Loose[] = []
    const watching = await sandbox.files.watchDir('seen', (event: Loose) => void events.push(event), {
      recursive: true,
    })
    await sandbox.files.write('seen/x', '1')
    await until(() => events.some(({ type, name }) => type === 'create' && name === 'x'), 'the event')
    await until(() => events.some(({ type, name }) => type === 'write' && name === 'x'), 'the write')
    await watching.stop()
  })

  test('opens a terminal', async () => {
    let screen = ''
    const pty = await sandbox.pty.create({
      cols: 90,
      rows: 30,
      onData: (data: Uint8Array) => {
        screen += Buffer.from(data).toString()
      },
    })
    await sandbox.pty.sendInput(pty.pid, Buffer.from('stty size; echo done-$((1+1))\n'))
    await until(() => screen.includes('done-2'), 'the terminal')
    expect(screen).toContain('30 90')
    await sandbox.pty.resize(pty.pid, { cols: 100, rows: 20 })
    await sandbox.pty.sendInput(pty.pid, Buffer.from('stty size\n'))
    await until(() => screen.includes('20 100'), 'the new size')
    await sandbox.pty.kill(pty.pid)
  })

  test('creates signed URLs for one file', async () => {
    await sandbox.files.write('signed.txt', 'secret text')
    const url = await sandbox.downloadUrl('signed.txt', { useSignatureExpiration: 60 })
    expect(await (await fetch(url)).text()).toBe('secret text')
    expect((await fetch(url.replace('signed.txt', 'moved'))).status).toBeGreaterThanOrEqual(400)
    const form = new FormData()
    form.append('file', new Blob(['uploaded']), 'up.txt')
    const up = await sandbox.uploadUrl('up.txt', { useSignatureExpiration: 60 })
    expect((await fetch(up, { method: 'POST', body: form })).status).toBe(200)
    expect(await sandbox.files.read('up.txt')).toBe('uploaded')
  })

  test('sets its timeout, finds the sandbox in the list, and connects', async () => {
    const info = await sandbox.getInfo()
    expect(info.metadata).toEqual({ client: name })
    const other = await e2b.Sandbox.connect(sandbox.sandboxId, { ...here.options, timeoutMs: 1000 })
    // Connecting asks for less than is left, and takes nothing away.
    expect((await other.getInfo()).endAt.getTime()).toBeGreaterThanOrEqual(info.endAt.getTime())
    expect((await other.commands.run('cat notes/a.txt')).stdout).toBe('ünï\n')
    await sandbox.setTimeout(180_000)
    expect((await sandbox.getInfo()).endAt.getTime()).toBeGreaterThan(info.endAt.getTime() + 30_000)
    const pages = e2b.Sandbox.list({ ...here.options, query: { metadata: { client: name } } })
    expect((await pages.nextItems()).map((one: Loose) => one.sandboxId)).toEqual([sandbox.sandboxId])
  })
})
