import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { canHaveRoot } from '../root/root-host.ts'
import { client, type Loose, type World, world } from './kit.ts'

/** What users of E2B do in the first hour on a machine of their own: root, sudo, packages, `/app`. */

let here: World
let e2b: Loose
let sandbox: Loose
beforeAll(async () => {
  e2b = await client('e2b')
  here = await world()
  sandbox = await e2b.Sandbox.create(here.options)
})
afterAll(() => here.close())

const run = async (line: string, options: Loose = {}): Promise<string> => {
  const { stdout } = await sandbox.commands.run(line, options)
  return stdout
}

describe.runIf(canHaveRoot)('a sandbox with a writable root', () => {
  test('runs commands as `user`, root and other users', async () => {
    expect(await run('whoami; pwd; echo $HOME')).toBe('user\n/home/user\n/home/user\n')
    expect(await run('whoami; pwd; echo $HOME', { user: 'root' })).toBe('root\n/root\n/root\n')
    expect(await run('sudo whoami')).toBe('root\n')
    expect(await run('sudo useradd -m ada && sudo -u ada whoami')).toBe('ada\n')
    expect(await run('whoami', { user: 'ada' })).toBe('ada\n')
  })

  test('writes files anywhere, owned by their writer', async () => {
    await sandbox.files.write('/app/src/index.js', 'x')
    expect((await sandbox.files.getInfo('/app/src/index.js')).owner).toBe('user')
    await sandbox.files.write('/app/root.txt', 'x', { user: 'root' })
    expect((await sandbox.files.getInfo('/app/root.txt')).owner).toBe('root')
    expect(await sandbox.files.makeDir('/data/deep')).toBe(true)
    await sandbox.files.write('note.txt', 'x', { user: 'root' })
    expect(await run('stat -c "%U %n" /root/note.txt /data/deep', { user: 'root' })).toBe(
      'root /root/note.txt\nuser /data/deep\n',
    )
    await sandbox.files.remove('/app/root.txt')
    expect(await sandbox.files.exists('/app/root.txt')).toBe(false)
  })

  test.each([
    'sudo apt-get clean',
    'sudo mkdir -p /app && sudo chown -R user:user /app && cd /app && touch here',
    'echo "127.0.0.1 my.host" | sudo tee -a /etc/hosts',
    'sudo sed -i s/sandbox/other/ /etc/hosts && grep other /etc/hosts',
    'sudo rm -rf /var/lib/apt/lists/*',
    'sudo ln -sf /usr/bin/python3 /usr/local/bin/py && py -c "print(1)"',
    'sudo chmod +x /app/here && sudo cp /app/here /usr/local/bin/tool',
    'sudo bash -c "echo export A=1 > /etc/profile.d/a.sh"',
    'sudo -E env | grep -q HOME',
    'sudo install -d -o www-data /srv/www && ls -ld /srv/www | grep www-data',
    'git config --global user.name me && git config --global --list',
    'pip --version || python3 -m pip --version || true',
  ])('runs %s', async (line) => {
    const { exitCode } = await sandbox.commands.run(line)
    expect(exitCode).toBe(0)
  })

  test('supports sudo in a terminal', async () => {
    let said = ''
    const pty = await sandbox.pty.create({
      cols: 80,
      rows: 24,
      onData: (data: Uint8Array) => {
        said += Buffer.from(data).toString('utf8')
      },
    })
    await sandbox.pty.sendInput(pty.pid, Buffer.from('sudo -s\nwhoami\n'))
    await expect.poll(() => said, { timeout: 10_000 }).toMatch(/\broot\r?\n/)
    await sandbox.pty.sendInput(pty.pid, Buffer.from('exit\n'))
    await expect.poll(() => said.split('exit').length, { timeout: 10_000 }).toBeGreaterThan(1)
    await sandbox.pty.kill(pty.pid)
  })

  test('can serve ports below 1024', async () => {
    const server = await sandbox.commands.run('sudo python3 -m http.server 80', { background: true })
    await expect
      .poll(() => run('curl -s -o /dev/null -w "%{http_code}" --noproxy "*" http://127.0.0.1:80/ || true'), {
        timeout: 10_000,
      })
      .toBe('200')
    await server.kill()
  })

  test('reports a full disk', async () => {
    const small = await world('[policy]\nmax_disk_mb = 8\n')
    const one = await e2b.Sandbox.create(small.options)
    await expect(one.files.write('/app/big', 'x'.repeat(12_000_000))).rejects.toThrow(e2b.NotEnoughSpaceError)
    expect((await one.commands.run('rm /app/big; echo again')).stdout).toBe('again\n')
    await small.close()
  })

  const PREPARE = [
    'echo kept > /opt/kept && chown www-data /opt/kept && chmod 0755 /opt/kept',
    'rm /usr/bin/yes && useradd -m eve',
    'echo t > /tmp/kept',
  ].join(' && ')
  const LOOK =
    'stat -c "%U %a" /opt/kept; cat /opt/kept; ls /usr/bin/yes 2>&1 | grep -c "No such"; id -un eve; whoami; sudo whoami'
  const SEEN = 'www-data 755\nkept\n1\neve\nuser\nroot\n'

  test('includes the whole root in a snapshot', async () => {
    const one = await e2b.Sandbox.create(here.options)
    await one.commands.run(PREPARE, { user: 'root' })
    const { snapshotId } = await one.createSnapshot()
    await one.commands.run('echo later > /opt/kept', { user: 'root' })
    const other = await e2b.Sandbox.create(snapshotId, here.options)
    expect((await other.commands.run(`${LOOK}; cat /tmp/kept`)).stdout).toBe(`${SEEN}t\n`)
    await Promise.all([one.kill(), other.kill()])
  })

  test('includes the whole root in a fork by `/v1`', async () => {
    const one = await e2b.Sandbox.create(here.options)
    await one.commands.run(PREPARE, { user: 'root' })
    const { json } = await here.server.call('GET', '/v1/sandboxes')
    const id =
      json.items.find((row: Loose) => row.id.endsWith(one.sandboxId) || row.id === one.sandboxId)?.id ??
      json.items[0].id
    const forked = await here.server.call('POST', `/v1/sandboxes/${id}/fork`)
    expect(forked.status).toBe(201)
    const look = await here.server.call('POST', `/v1/sandboxes/${forked.json.id}/exec`, {
      body: { command: LOOK },
    })
    expect(look.json.stdout).toBe(SEEN)
    await one.kill()
  })

  test('is created by `/v1` with a template, or with `root`', async () => {
    const { call } = here.server
    for (const body of [{ template: 'base' }, { root: 'writable', limits: { disk_mb: 50 } }]) {
      const made = await call('POST', '/v1/sandboxes', { body })
      expect(made.status, made.text).toBe(201)
      const exec = (command: string, user?: string) =>
        call('POST', `/v1/sandboxes/${made.json.id}/exec`, { body: { command, ...(user ? { user } : {}) } })
      expect((await exec('id -un; pwd; sudo id -un')).json.stdout).toBe('user\n/home/user\nroot\n')
      expect((await exec('mkdir /data && id -un', 'root')).json.stdout).toBe('root\n')
      await call('DELETE', `/v1/sandboxes/${made.json.id}`)
    }
    const plain = await call('POST', '/v1/sandboxes', { body: {} })
    const refused = await call('POST', `/v1/sandboxes/${plain.json.id}/exec`, {
      body: { command: 'id', user: 'root' },
    })
    expect(refused).toMatchObject({
      status: 400,
      json: { message: expect.stringContaining('no user `root`') },
    })
    const docker = await call('POST', '/v1/sandboxes', { body: { backend: 'docker', root: 'writable' } })
    expect(docker.status).toBe(501)
  })

  test('survives a pause without memory, whatever files root created', async () => {
    const one = await e2b.Sandbox.create(here.options)
    await one.commands.run(PREPARE, { user: 'root' })
    const moved = 'rm -rf /srv && ln -s /etc /srv && mv /home/user /home/old && ln -s /home/old /home/user'
    await one.commands.run(`${moved} && rm -rf /media && ln -s /oldroot /media`, { user: 'root' })
    await one.pause({ keepMemory: false })
    const again = await e2b.Sandbox.connect(one.sandboxId, here.options)
    expect((await again.commands.run(LOOK)).stdout).toBe(SEEN)
    expect((await again.commands.run('readlink /home/user; pwd -P')).stdout).toBe('/home/old\n/home/old\n')
    await again.kill()
  })
})
