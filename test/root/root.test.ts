import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Spec } from '../../src/model/spec.ts'
import type { Sandbox } from '../../src/supervisor/sandbox.ts'
import { canHaveRoot, type RootHost, rootHost, sh, text } from './root-host.ts'

/** A private, writable root with a root user, on real bubblewrap. */

let host: RootHost
beforeAll(async () => {
  host = await rootHost()
})
afterAll(() => host.close())

const open = (spec?: Spec): Promise<Sandbox> => host.open(spec)

describe.runIf(canHaveRoot)('users of a writable root', () => {
  test('run commands as `user`, or as the requested user', async () => {
    await using sandbox = await open()
    expect(await sh(sandbox, 'id; pwd')).toBe(
      'uid=1000(user) gid=1000(user) groups=1000(user),27(sudo)\n/home/user\n',
    )
    expect(await sh(sandbox, 'id -un; echo $HOME $USER; pwd', 'root')).toBe('root\n/root root\n/root\n')
    expect(await sh(sandbox, 'id -un; sudo id -un', 'www-data')).toMatch(/^www-data\nsudo: .*refused/)
    await expect(sandbox.exec(['true'], { user: 'ghost' })).rejects.toThrow(/no user ghost/)
  })

  test('root writes everywhere, `user` in its own directories', async () => {
    await using sandbox = await open()
    const directories = '/app /data /opt/x /usr/local/x /etc/x'
    expect(await sh(sandbox, `mkdir ${directories} 2>/dev/null || echo refused`)).toBe('refused\n')
    expect(await sh(sandbox, `mkdir ${directories} && chown 33:33 /app && stat -c %U /app`, 'root')).toBe(
      'www-data\n',
    )
    expect(await sh(sandbox, 'echo 1 > ~/a; echo 1 > /tmp/a; echo 1 > /dev/stdout; stat -c %U ~/a')).toBe(
      '1\nuser\n',
    )
  })

  test('own the files that the host writes for them', async () => {
    await using sandbox = await open()
    await sandbox.files.write('/app/deep/one', 'x')
    await sandbox.files.ownedBy('root').write('/app/two', 'x')
    expect(await sh(sandbox, 'stat -c %U /app /app/deep/one /app/two')).toBe('user\nuser\nroot\n')
  })

  test('can be added and switched to', async () => {
    await using sandbox = await open()
    const script = 'useradd -m -s /bin/bash ada && su ada -c "id -un; touch ~/x" && stat -c %U /home/ada/x'
    expect(await sh(sandbox, script, 'root')).toBe('ada\nada\n')
    expect(await sh(sandbox, 'pwd; id -un', 'ada')).toBe('/home/ada\nada\n')
  })
})

describe.runIf(canHaveRoot)('sudo', () => {
  test('passes exit code, streams, directory and variables', async () => {
    await using sandbox = await open({ env: { FROM_SPEC: '1' } })
    expect(await sh(sandbox, 'cd /tmp; sudo sh -c "id -un; pwd; exit 7"')).toBe(
      'root\n/tmp\n{"kind":"exited","code":7}',
    )
    expect(await sh(sandbox, 'echo in | sudo tee /opt/file; sudo cat < /opt/file')).toBe('in\nin\n')
    expect(await sh(sandbox, 'A=1 sudo sh -c \'echo "$A$FROM_SPEC$HOME$SUDO_USER"\'')).toBe('1/rootuser\n')
    expect(await sh(sandbox, 'A=1 sudo -E B=2 sh -c \'echo "$A$B"\'; sudo -u www-data id -un')).toBe(
      '12\nwww-data\n',
    )
    expect(await sh(sandbox, 'sudo -i pwd; sudo -s echo "a  b"; sudo sudo id -u')).toBe('/root\na  b\n0\n')
    expect(await sh(sandbox, 'sudo no-such-program 2>&1; echo $?; sudo -n true; sudo -v; echo $?')).toMatch(
      /no-such-program.*\n127\n0\n/,
    )
  })

  test('passes signals on, and reports a death by signal', async () => {
    await using sandbox = await open()
    const script = `sudo sh -c 'trap "echo caught; exit 3" TERM; echo up; while :; do sleep 0.05; done' &
sleep 0.5; kill -TERM $!; wait $!; echo $?
sudo sh -c 'kill -KILL $$' 2>/dev/null; echo $?
sudo sleep 300 & sleep 0.3; kill -KILL $!; sleep 0.5; pgrep -c -u root sleep`
    expect(await sh(sandbox, script)).toMatch(/^up\ncaught\n3\n137\n0\n/)
  })

  test('passes Ctrl-C, size and resizes of a terminal', async () => {
    await using sandbox = await open()
    let said = ''
    const running = await sandbox.spawn(['sudo', 'bash', '--norc'], {
      terminal: { cols: 90, rows: 30 },
      output: (_, chunk) => {
        said += text(chunk)
      },
    })
    const type = async (line: string, until: RegExp): Promise<void> => {
      await running.write(Buffer.from(line))
      await expect.poll(() => said, { timeout: 10_000 }).toMatch(until)
    }
    await type('stty size; id -un; tty\r', /30 90\s+root\s+\/dev\/pts\/\d/)
    running.resize({ cols: 101, rows: 31 })
    await type('sleep 0.2; stty size\r', /31 101/)
    await type('sleep 300\r', /sleep 300/)
    await type('\u0003', /\^C/)
    await type('echo $((6*7))\r', /42/)
    await running.write(Buffer.from('exit 5\r'))
    expect((await running.result).outcome).toEqual({ kind: 'exited', code: 5 })
  })

  test('ends with its command, and is recorded', async () => {
    await using sandbox = await open()
    host.events.length = 0
    const running = await sandbox.spawn(['bash', '-c', 'sudo sleep 4321'], { limits: { wallMs: 1500 } })
    expect((await running.result).outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    expect(await sh(sandbox, 'sleep 0.3; pgrep -c sleep')).toMatch(/^[01]\n/)
    expect(host.events.find(({ command }) => command === 'sleep 4321')).toMatchObject({
      event: 'PolicyDecision',
      user: 'root',
      exec_id: running.execId,
      action: 'sandbox',
    })
  })
})
