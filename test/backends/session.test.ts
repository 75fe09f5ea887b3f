import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { copyFileSync, existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Sandbox } from '../../src/index.ts'
import { packageRoot } from '../conformance/world.ts'
import { countOf, FULL, makeTestHost, sleep, type TestHost, text, until } from './persistent-sandbox.ts'

/** Persistent sandboxes on real bubblewrap: created once, used many times. */

let testHost: TestHost
beforeAll(() => {
  testHost = makeTestHost('session')
})
afterAll(() => testHost.drop())

const said = async (sandbox: Sandbox, argv: readonly string[] | string): Promise<string> =>
  text((await sandbox.exec(argv)).stdout)

describe('many commands in one sandbox', () => {
  test('share /tmp, processes and the network', async () => {
    await using sandbox = await testHost.open()
    await sandbox.exec('echo kept > /tmp/note')
    expect(await said(sandbox, ['cat', '/tmp/note'])).toBe('kept\n')
    const first = await said(sandbox, ['readlink', '/proc/self/ns/net', '/proc/self/ns/pid'])
    expect(await said(sandbox, ['readlink', '/proc/self/ns/net', '/proc/self/ns/pid'])).toBe(first)
    for (let round = 0; round < 50; round++)
      expect((await sandbox.exec(['true'])).outcome).toEqual({ kind: 'exited', code: 0 })
  })

  test('have their own variables, working directory, exit code and errors', async () => {
    await using sandbox = await testHost.open({ env: { SHARED: 'yes' } })
    const own = await sandbox.exec('echo $SHARED $OWN; pwd; exit 7', { env: { OWN: '1' }, cwd: '/tmp' })
    expect(text(own.stdout)).toBe('yes 1\n/tmp\n')
    expect(own.outcome).toEqual({ kind: 'exited', code: 7 })
    expect(await said(sandbox, 'echo $SHARED $OWN')).toBe('yes\n')
    await expect(sandbox.exec(['true'], { cwd: '/nowhere' })).rejects.toMatchObject({ code: 'invalid-input' })
    expect((await sandbox.exec(['no-such-program'])).outcome).toEqual({ kind: 'exited', code: 127 })
  })

  const [execs, sandboxCount] = FULL ? [1000, 64] : [60, 8]
  test(`${execs} parallel commands in ${sandboxCount} sandboxes: no output lost or mixed`, {
    timeout: 600_000,
  }, async () => {
    testHost.script(
      'sum.sh',
      'for i in 1 2 3 4 5 6 7 8; do echo "$1 line $i"; done; head -c 50000 /dev/zero | tr "\\0" "$2"',
    )
    const sandboxes = await Promise.all(Array.from({ length: sandboxCount }, () => testHost.open()))
    const expected = (id: number): string => {
      const lines = Array.from({ length: 8 }, (_, i) => `${id} line ${i + 1}\n`).join('')
      return createHash('sha256')
        .update(lines + String(id % 10).repeat(50_000))
        .digest('hex')
    }
    const one = async (id: number): Promise<boolean> => {
      const sandbox = sandboxes[id % sandboxCount] as Sandbox
      const { stdout } = await sandbox.exec(['bash', 'sum.sh', String(id), String(id % 10)])
      return createHash('sha256').update(stdout).digest('hex') === expected(id)
    }
    const right = await Promise.all(Array.from({ length: execs }, (_, id) => one(id)))
    expect(right.filter(Boolean)).toHaveLength(execs)
    await Promise.all(sandboxes.map((sandbox) => sandbox.close()))
  })
})

describe('input and output', () => {
  test('input larger than many flow-control windows is returned unchanged', async () => {
    await using sandbox = await testHost.open()
    const input = Buffer.alloc(5_000_000, 'abcdefg')
    const { stdoutBytes } = await sandbox.exec(['cat'], { stdin: input })
    expect(Buffer.compare(stdoutBytes, input)).toBe(0)
  })

  test('a slow reader throttles the command, and memory stays bounded', { timeout: 60_000 }, async () => {
    await using sandbox = await testHost.open()
    const size = 64 * 1024 * 1024
    let got = 0
    let inFlight = 0
    let most = 0
    const before = process.memoryUsage().rss
    const { outcome } = await sandbox.exec(['head', '-c', String(size), '/dev/zero'], {
      output: async (_, chunk) => {
        inFlight += chunk.length
        most = Math.max(most, inFlight)
        await new Promise((resolve) => setImmediate(resolve))
        inFlight -= chunk.length
        got += chunk.length
      },
    })
    expect(outcome).toEqual({ kind: 'exited', code: 0 })
    expect(got).toBe(size)
    // At most one window is in flight, however slow the reader is.
    expect(most).toBeLessThanOrEqual(256 * 1024)
    expect(process.memoryUsage().rss - before).toBeLessThan(64 * 1024 * 1024)
  })

  test('a command that does not read its input blocks the writer, and can exit without reading', async () => {
    await using sandbox = await testHost.open()
    const running = await sandbox.spawn(['sleep', '0.5'], { stdin: true })
    const writing = running.write(Buffer.alloc(4_000_000)).then(
      () => 'written',
      () => 'refused',
    )
    expect((await running.result).outcome).toEqual({ kind: 'exited', code: 0 })
    expect(await writing).toBe('refused')
  })

  test('a command that closed its input does not block the writer', async () => {
    await using sandbox = await testHost.open()
    const running = await sandbox.spawn('exec <&-; echo closed; sleep 60', { stdin: true })
    for await (const { data } of running) if (text(data).includes('closed')) break
    await running.write(Buffer.alloc(4_000_000))
  })

  test('stderr is separate, and all output arrives before the exit', async () => {
    await using sandbox = await testHost.open()
    for (let round = 0; round < 20; round++) {
      const done = await sandbox.exec('echo out; echo err >&2; printf last')
      expect([text(done.stdout), text(done.stderr)]).toEqual(['out\nlast', 'err\n'])
    }
  })
})

describe('a terminal', () => {
  test('passes on resizes, the foreground process group and control characters', async () => {
    await using sandbox = await testHost.open()
    let seen = ''
    const shell = await sandbox.spawn(['bash', '--norc', '-i'], {
      terminal: { cols: 80, rows: 24 },
      output: (_, chunk) => {
        seen += text(chunk)
      },
    })
    const type = async (keys: string, wanted: RegExp): Promise<void> => {
      await shell.write(Buffer.from(keys))
      expect(await until(() => wanted.test(seen))).toBe(true)
    }
    await type('stty size\n', /24 80/)
    shell.resize({ cols: 100, rows: 30 })
    await type('stty size\n', /30 100/)
    await type('sleep 300\n', /sleep 300/)
    await sleep(200)
    await type('\x1a', /Stopped/)
    await type('jobs; kill %1; wait; echo done-$((20+3))\n', /done-23/)
    await type('cat\n', /cat/)
    await sleep(100)
    await type('\x03', /\^C/)
    await sleep(200)
    await type('echo after-$((40+2))\n', /after-42/)
    await shell.write(Buffer.from('exit 5\n'))
    expect((await shell.result).outcome).toEqual({ kind: 'exited', code: 5 })
  })
})

describe('signals and background processes', () => {
  test('a signal reaches the whole process group, also right after the start', async () => {
    await using sandbox = await testHost.open()
    for (let round = 0; round < 10; round++) {
      const running = await sandbox.spawn(['sleep', '60'])
      running.signal('SIGUSR1')
      expect((await running.result).outcome).toEqual({ kind: 'signaled', signal: 'SIGUSR1' })
    }
    const asked = await sandbox.spawn(
      testHost.script('trap.sh', 'trap "echo caught; exit 3" INT; echo up; sleep 60 & wait'),
      {
        output: (_, chunk) => {
          if (text(chunk).includes('up')) asked.signal('SIGINT')
        },
      },
    )
    expect((await asked.result).outcome).toEqual({ kind: 'exited', code: 3 })
  })

  test('a background process survives its command and dies with the sandbox', async () => {
    const marker = `71.${process.pid}`
    const sandbox = await testHost.open()
    await sandbox.exec(testHost.script('bg.sh', `sleep ${marker} > /dev/null 2>&1 &`))
    await sandbox.exec(['true'])
    expect(countOf(marker)).toBe(1)
    await sandbox.close()
    expect(await until(() => countOf(marker) === 0)).toBe(true)
  })

  test('a server in the background is reached through its port', async () => {
    await using sandbox = await testHost.open({ network: { mode: 'loopback' } })
    writeFileSync(join(testHost.workspace, 'index.html'), 'hello from inside')
    const server = await sandbox.spawn(
      testHost.script('serve.sh', 'exec python3 -m http.server 8123 --bind 127.0.0.1'),
    )
    const ask = async (): Promise<string> => {
      const stream = await sandbox.connect(8123)
      stream.write('GET /index.html HTTP/1.0\r\n\r\n')
      let answer = ''
      for await (const chunk of stream) answer += chunk
      return answer
    }
    expect(
      await until(() =>
        ask().then(
          () => true,
          () => false,
        ),
      ),
    ).toBe(true)
    const answers = await Promise.all(Array.from({ length: 20 }, ask))
    expect(answers.every((answer) => answer.endsWith('hello from inside'))).toBe(true)
    server.signal('SIGTERM')
    await server.result
    await expect(sandbox.connect(8123)).rejects.toMatchObject({ code: 'wrong-state' })
  })

  test('data sent to a slow server before closing still arrives', async () => {
    await using sandbox = await testHost.open({ network: { mode: 'loopback' } })
    const sent = 8 * 1024 * 1024
    writeFileSync(
      join(testHost.workspace, 'slow.py'),
      `import socket,time
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,4096); s.bind(("127.0.0.1",8124)); s.listen()
c=s.accept()[0]
total=0
while n:=len(c.recv(1<<16)): total+=n; time.sleep(0.0003)
print(total)`,
    )
    const server = await sandbox.spawn(['python3', 'slow.py'])
    let stream: Awaited<ReturnType<Sandbox['connect']>> | undefined
    await until(async () => {
      stream = await sandbox.connect(8124).catch(() => undefined)
      return stream !== undefined
    })
    await new Promise<void>((resolve) => stream?.end(Buffer.alloc(sent, 'x'), resolve))
    stream?.destroy()
    expect(text((await server.result).stdout)).toBe(`${sent}\n`)
  })
})

describe('a full disk', () => {
  test('stops only the command that filled it; files can be read and removed, then writing works again', async () => {
    await using sandbox = await testHost.open({ limits: { diskMb: 4 } })
    const filled = await sandbox.exec('for i in 1 2 3 4; do head -c 3M /dev/zero > full$i; done; sleep 60')
    expect(filled.outcome).toEqual({ kind: 'stopped', limit: 'disk' })
    // Longer than the interval between two measurements.
    const reader = await sandbox.exec('wc -c < full1; sleep 0.3; echo read')
    expect(reader.outcome).toEqual({ kind: 'exited', code: 0 })
    expect(text(reader.stdout)).toBe('3145728\nread\n')
    const more = await sandbox.exec(
      'echo more > full5; mkdir fulldir; ln -s x fulllink; echo to > /dev/null && echo no room',
    )
    expect(text(more.stdout)).toBe('no room\n')
    expect(text(more.stderr).match(/No space left on device/g)).toHaveLength(3)
    expect(more.violations.map(({ guarantee }) => guarantee)).toEqual(Array(3).fill('limit.disk'))
    expect(await said(sandbox, 'rm -r full*; echo again > full6; cat full6; rm full6')).toBe('again\n')
  })

  test('still counts a deleted file while a process holds it open', async () => {
    await using sandbox = await testHost.open({ limits: { diskMb: 4 } })
    const fill = (body: string): readonly string[] => {
      writeFileSync(
        join(testHost.workspace, 'held.py'),
        `import mmap,os,threading,time\nheld=[]\n${body}\ntime.sleep(60)`,
      )
      return ['python3', 'held.py']
    }
    const open = 'f=open("h","w+b"); os.unlink("h")'
    const opened = `for i in range(4): ${open}; f.write(b"x"*2000000); f.flush(); held.append(f)`
    const mapped = `for i in range(4): ${open}; f.truncate(2000000); m=mmap.mmap(f.fileno(),0); f.close(); m.write(b"x"*2000000); held.append(m)`
    for (const body of [opened, mapped])
      expect((await sandbox.exec(fill(body))).outcome).toEqual({ kind: 'stopped', limit: 'disk' })
    const brief =
      'for i in 1 2 3 4 5 6; do head -c 3M /dev/zero > brief; rm brief; sleep 0.1; done; echo done'
    expect(await said(sandbox, testHost.script('brief.sh', brief))).toBe('done\n')
  })

  test('does not count files that were created and removed', async () => {
    await using sandbox = await testHost.open({ limits: { diskMb: 4 } })
    const python = (name: string, ...lines: readonly string[]): readonly string[] => {
      writeFileSync(join(testHost.workspace, name), ['import os,time', ...lines].join('\n'))
      return ['python3', name]
    }
    const brief = python(
      'brief.py',
      'for i in range(2500): open("brief","w").close(); os.unlink("brief")',
      'time.sleep(0.3)',
    )
    expect((await sandbox.exec(brief)).outcome).toEqual({ kind: 'exited', code: 0 })
    const links = python(
      'links.py',
      'open("one","w").close()',
      'for i in range(2500): os.link("one", f"link{i}")',
      'time.sleep(60)',
    )
    expect((await sandbox.exec(links)).outcome).toEqual({ kind: 'stopped', limit: 'disk' })
    await sandbox.exec('rm -f link* one')
  })
})

describe('limits of one command', () => {
  test('output collected in memory is limited by default; output taken as a stream is not', async () => {
    await using sandbox = await testHost.open()
    const flood = ['head', '-c', '20000000', '/dev/zero']
    const { outcome, stdout, truncated } = await sandbox.exec(flood)
    expect(outcome).toEqual({ kind: 'stopped', limit: 'output' })
    expect([stdout.length, truncated]).toEqual([16 * 1024 * 1024, true])
    expect((await (await sandbox.spawn(flood)).result).outcome).toEqual({ kind: 'stopped', limit: 'output' })
    let taken = 0
    const output = (_: unknown, chunk: Uint8Array): void => {
      taken += chunk.length
    }
    expect((await sandbox.exec(flood, { output })).outcome).toEqual({ kind: 'exited', code: 0 })
    expect(taken).toBe(20_000_000)
    const asked = await sandbox.exec(flood, { limits: { outputBytes: 30_000_000 } })
    expect(asked.stdout.length).toBe(20_000_000)
  })

  test('time, idle time and output limits stop the command, and the sandbox continues', async () => {
    await using sandbox = await testHost.open()
    const stopped = async (script: string, limits: Record<string, number>) =>
      (await sandbox.exec(testHost.script('limit.sh', script), { limits })).outcome
    expect(await stopped('sleep 60', { wallMs: 150 })).toEqual({ kind: 'stopped', limit: 'wall' })
    expect(await stopped('echo a; sleep 60', { idleMs: 200 })).toEqual({ kind: 'stopped', limit: 'idle' })
    expect(await stopped('yes', { outputBytes: 10_000 })).toEqual({ kind: 'stopped', limit: 'output' })
    expect(await said(sandbox, ['echo', 'alive'])).toBe('alive\n')
  })

  test('a memory limit stops only this command', async () => {
    await using sandbox = await testHost.open({ limits: { memoryMb: 600 } })
    const neighbour = await sandbox.spawn(['sleep', '30'])
    copyFileSync(join(packageRoot(), 'dist', 'guest', 'ringfence-probe'), join(testHost.workspace, 'probe'))
    const limits = { memoryMb: 64 }
    const greedy = await sandbox.exec(['./probe', 'memory', '300'], { limits }).catch((error) => error)
    // Without a cgroup for a single command, such a limit is refused and not ignored.
    if (greedy instanceof Error) expect(greedy).toMatchObject({ code: 'unsupported' })
    else expect(greedy.violations).toMatchObject([{ guarantee: 'limit.memory' }])
    neighbour.signal('SIGTERM')
    expect((await neighbour.result).outcome).toEqual({ kind: 'signaled', signal: 'SIGTERM' })
  })

  const STUBBORN: readonly (readonly [string, string])[] = [
    ['ignores SIGTERM', 'trap "" TERM INT HUP; while :; do sleep MARK; done'],
    ['forks twice', '(trap "" TERM; (sleep MARK & sleep MARK) & ); trap "" TERM; sleep MARK'],
    [
      'starts a session of its own',
      'trap "" TERM; setsid bash -c "trap : TERM; sleep MARK; sleep MARK" & sleep MARK',
    ],
    [
      'has a process whose main thread has exited',
      `trap "" TERM; setsid python3 - <<'X'
import ctypes,os,platform,threading,time
def work():
  time.sleep(0.1)
  if os.fork()==0: os.execvp('sleep',['sleep','MARK'])
  time.sleep(60)
threading.Thread(target=work).start(); ctypes.CDLL(None).syscall(60 if platform.machine()=='x86_64' else 93,0)
X`,
    ],
    ['stops itself with SIGSTOP', 'trap "" TERM; (sleep MARK) & kill -STOP $!; kill -STOP $$; sleep MARK'],
  ]
  test.each(STUBBORN)('a time limit stops a command that %s', async (_, lines) => {
    await using sandbox = await testHost.open()
    const marker = `72.${process.pid}${Math.floor(Math.random() * 1e6)}`
    const started = Date.now()
    const { outcome, durationMs } = await sandbox.exec(
      testHost.script('stubborn.sh', lines.replaceAll('MARK', marker)),
      {
        limits: { wallMs: 400 },
      },
    )
    expect(outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    expect(await until(() => countOf(marker) === 0)).toBe(true)
    // Within a second of the grace.
    if (FULL) expect(durationMs).toBeLessThan(400 + 500 + 1000)
    expect(Date.now() - started).toBeLessThan(20_000)
    expect(await said(sandbox, ['echo', 'alive'])).toBe('alive\n')
  })

  test('killing the subreaper ends every process of the command', async () => {
    await using sandbox = await testHost.open()
    const marker = `73.${process.pid}`
    const lines = `setsid sleep ${marker} & (sleep ${marker} & ) ; sleep 0.2; kill -9 $PPID; sleep ${marker}`
    const { outcome } = await sandbox.exec(testHost.script('keeper.sh', lines))
    expect(outcome).toEqual({ kind: 'signaled', signal: 'SIGKILL' })
    expect(await until(() => countOf(marker) === 0)).toBe(true)
    expect(await said(sandbox, ['echo', 'alive'])).toBe('alive\n')
  })

  test('killing every visible process ends only this sandbox', async () => {
    await using sandbox = await testHost.open()
    await sandbox.exec(testHost.script('all.sh', 'kill -9 -1; sleep 1')).catch(() => {})
    await using other = await testHost.open()
    expect(await said(other, ['echo', 'alive'])).toBe('alive\n')
  })
})

describe('a sandbox', () => {
  test('reports why it ended, and rejects running and later commands', async () => {
    const closed = await testHost.open()
    await closed.exec(['true'])
    const waiting = closed.exec(['sleep', '60']).catch((error: { code: string }) => error.code)
    await sleep(100)
    await closed.close()
    expect(await closed.ended).toBe('closed')
    expect(await waiting).toBe('wrong-state')
    await expect(closed.exec(['true'])).rejects.toMatchObject({ code: 'wrong-state' })
  })

  test('has all isolation layers active for each command, as the kernel reports them', async () => {
    await using sandbox = await testHost.open()
    const layers = await sandbox.layers()
    expect(layers).toEqual(expect.arrayContaining(['seccomp', 'no-new-privs', 'no-capabilities', 'guard']))
    if (existsSync('/sys/kernel/security/landlock') || layers.some((layer) => layer.startsWith('landlock')))
      expect(layers.join()).toMatch(/landlock\(abi \d+\)/)
    const status = await said(sandbox, [
      'grep',
      '-E',
      '^(NoNewPrivs|Seccomp|CapEff|CapBnd):',
      '/proc/self/status',
    ])
    expect(status).toMatch(/CapEff:\s+0+\nCapBnd:\s+0+\nNoNewPrivs:\s+1\nSeccomp:\s+2/)
    expect((await sandbox.exec(['true'])).layers).toEqual(layers)
  })

  test('leaves no process when the host process is killed', async () => {
    const marker = `74.${process.pid}`
    const program = `
      import { Sandbox } from ${JSON.stringify(join(packageRoot(), 'dist', 'index.js'))}
      const options = ${JSON.stringify(testHost.options)}
      for (let i = 0; i < 3; i++) {
        const sandbox = await Sandbox.create({ workspace: ${JSON.stringify(testHost.workspace)} }, options)
        await sandbox.exec('sleep ${marker} > /dev/null 2>&1 &')
        await sandbox.spawn(['setsid', 'sleep', '${marker}'])
      }
      console.log('up')
      setTimeout(() => {}, 60000)`
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    await new Promise((resolve) => child.stdout.once('data', resolve))
    // The program itself carries the marker too.
    expect(await until(() => countOf(marker) > 6)).toBe(true)
    child.kill('SIGKILL')
    expect(await until(() => countOf(marker) === 0)).toBe(true)
  })
})
