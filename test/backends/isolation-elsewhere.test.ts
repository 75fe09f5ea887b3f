import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ComposeOptions, Sandbox } from '../../src/index.ts'
import { skipped, startDocker, type TestEngine, testState } from '../conformance/engines.ts'
import { machineImages, whyNoMachine } from './microvm-parts.ts'

/** Isolated commands in containers, in gVisor and in virtual machines; on bubblewrap, see isolation.test.ts. */

const SECOND = 1000
const SETTINGS = {
  docker: { missing: skipped('docker'), waive: [] },
  gvisor: { missing: skipped('gvisor'), waive: ['fs.protect', 'limit.disk'] },
  // Two attacks run in microvm.test.ts in any case.
  microvm: { missing: !process.env.RINGFENCE_FULL || whyNoMachine() !== undefined, waive: [] },
} as const

/** From a file, because the policy would refuse the line. */
const LOOK = `grep -hE '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d '\\t'
unshare -U true 2>/dev/null && echo namespace
[ -w /proc/sys/kernel/core_pattern ] && echo settings
true
`

const SERVER = `python3 -c "import socket
s=socket.socket();s.bind(('127.0.0.1',8125));s.listen(9);print('ready',flush=True)
while True: c,_=s.accept();c.sendall(b'granted');c.close()"`

describe.each(['docker', 'gvisor', 'microvm'] as const)(
  'commands isolated from each other on %s',
  (backend) => {
    const { missing, waive } = SETTINGS[backend]
    let base: string
    let workspace: string
    let options: ComposeOptions
    let engine: TestEngine | undefined

    beforeAll(async () => {
      if (missing) return
      base = realpathSync(mkdtempSync(join(tmpdir(), 'rf-isolated-')))
      workspace = join(base, 'workspace')
      const state = join(base, 'state')
      for (const dir of [workspace, state]) mkdirSync(dir)
      writeFileSync(join(workspace, 'look.sh'), LOOK)
      if (backend === 'docker') engine = await startDocker()
      if (backend === 'microvm') await machineImages()
      // Images are made once for all tests of a working copy.
      for (const name of ['images', 'microvm']) {
        mkdirSync(join(testState(), name), { recursive: true })
        symlinkSync(join(testState(), name), join(state, name))
      }
      const socket = engine ? { RINGFENCE_DOCKER_SOCKET: engine.socket } : {}
      options = { env: { HOME: join(base, 'home'), RINGFENCE_HOME: state, ...socket }, cwd: workspace }
    }, 120 * SECOND)

    afterAll(async () => {
      await engine?.close()
      if (base) rmSync(base, { recursive: true, force: true })
    })

    const limits = { memoryMb: 200, pids: 40 }

    test.skipIf(missing)(
      'share only the workspace and the limits of their sandbox',
      {
        timeout: 120 * SECOND,
      },
      async () => {
        const spec = { backend, workspace, isolation: 'command' as const, waive: [...waive], limits }
        await using sandbox = await Sandbox.create({ ...spec, network: { mode: 'loopback' } }, options)
        await sandbox.exec('echo shared > file; echo own > /tmp/file')
        const { stdout } = await sandbox.exec('cat file; ls /tmp/file; echo /proc/[0-9]*; id -u')
        expect(stdout).toMatch(/^shared\n\/proc\/1 \/proc\/2\n\d+\n$/)

        // gVisor does not report NoNewPrivs.
        expect((await sandbox.exec(['bash', 'look.sh'])).stdout).toMatch(
          /^CapEff:0{16}\nCapBnd:0{16}\n(NoNewPrivs:1\n)?$/,
        )

        const server = await sandbox.spawn(SERVER, { ports: [8125] })
        for await (const _ of server) break
        expect(await text(await sandbox.connect(8125))).toBe('granted')
        await expect(sandbox.connect(8126)).rejects.toThrow('no running command was given port 8126')

        const bomb = 'for i in $(seq 90); do sleep 1 & done 2>&1; wait'
        const forked = await sandbox.exec(bomb, { limits: { wallMs: 30 * SECOND } })
        expect(`${forked.stdout} ${JSON.stringify(forked.outcome)}`).toMatch(/fork|Resource|pids/)
        const stubborn = await sandbox.exec('trap "" TERM; sleep 60', { limits: { wallMs: 300 } })
        expect(stubborn.outcome).toEqual({ kind: 'stopped', limit: 'wall' })
        const hog = 'python3 -c "x=bytearray(400<<20); print(len(x))"'
        expect((await sandbox.exec(hog)).stdout).not.toContain('419430400')
        // In a container the OOM killer may choose the agent; on other backends the sandbox continues.
        if (backend !== 'docker') expect((await sandbox.exec('echo alive')).stdout).toBe('alive\n')
      },
    )
  },
)
