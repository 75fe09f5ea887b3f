import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { client, type Loose, type World, world } from './kit.ts'

/** E2B's volumes through its own client. */

let here: World
let e2b: Loose
beforeAll(async () => {
  here = await world()
  e2b = await client('e2b')
  process.env.E2B_VOLUME_API_URL = here.options.apiUrl
})
afterAll(async () => {
  delete process.env.E2B_VOLUME_API_URL
  await here.close()
  expect(here.logs).toEqual([])
})

describe('volumes', () => {
  test('are created, listed, read and destroyed', async () => {
    const made = await e2b.Volume.create('records', here.options)
    expect(made).toMatchObject({ name: 'records', token: expect.stringMatching(/^rfv_/) })
    expect(await e2b.Volume.list(here.options)).toContainEqual({ volumeId: made.volumeId, name: 'records' })
    expect((await e2b.Volume.connect(made.volumeId, here.options)).name).toBe('records')
    await expect(e2b.Volume.create('records', here.options)).rejects.toThrow(/already/)
    await expect(e2b.Volume.create('../x', here.options)).rejects.toThrow(/not a name/)
    expect(await e2b.Volume.destroy(made.volumeId, here.options)).toBe(true)
    expect(await e2b.Volume.destroy(made.volumeId, here.options)).toBe(false)
    await expect(e2b.Volume.getInfo(made.volumeId, here.options)).rejects.toThrow(e2b.VolumeNotFoundError)
  })

  test('of another tenant do not exist, and its token gives no access', async () => {
    const made = await e2b.Volume.create('mine', here.options)
    const other = { ...here.options, apiKey: await here.key('other') }
    expect(await e2b.Volume.list(other)).toEqual([])
    await expect(e2b.Volume.getInfo(made.volumeId, other)).rejects.toThrow(e2b.VolumeNotFoundError)
    expect(await e2b.Volume.destroy(made.volumeId, other)).toBe(false)
    await expect(e2b.Sandbox.create({ ...other, volumeMounts: { '/data': made.name } })).rejects.toThrow(
      /no such volume/,
    )
    const theirs = await e2b.Volume.create('mine', other)
    const mixed = new e2b.Volume(made.volumeId, 'mine', theirs.token)
    await expect(mixed.list('/')).rejects.toThrow(/token|not valid/)
    await expect(
      new e2b.Volume(
        made.volumeId,
        'mine',
        `${made.token.slice(0, -1)}${made.token.endsWith('0') ? 1 : 0}`,
      ).list('/'),
    ).rejects.toThrow()
  })
})

describe('the files of a volume', () => {
  test('are written, read, listed and removed without a sandbox', async () => {
    const volume = await e2b.Volume.create('files', here.options)
    const stat = await volume.writeFile('/a.txt', 'hello', { mode: 0o640 })
    expect(stat).toMatchObject({ name: 'a.txt', type: 'file', path: '/a.txt', size: 5, mode: 0o640 })
    expect(stat.mtime).toBeInstanceOf(Date)
    expect(await volume.readFile('/a.txt')).toBe('hello')
    await volume.writeFile('/empty', '')
    expect(await volume.readFile('/empty')).toBe('')
    await expect(volume.writeFile('/a.txt', 'again')).rejects.toThrow(/exists/)
    await volume.writeFile('/a.txt', new Blob(['again']).stream(), { force: true })
    expect(await volume.readFile('/a.txt', { format: 'bytes' })).toEqual(new TextEncoder().encode('again'))
    await expect(volume.writeFile('/no/such/dir', 'x')).rejects.toThrow(e2b.VolumePathNotFoundError)
    await expect(volume.makeDir('/d/e')).rejects.toThrow(e2b.VolumePathNotFoundError)
    expect(await volume.makeDir('/d/e', { force: true })).toMatchObject({ type: 'directory', path: '/d/e' })
    await expect(volume.makeDir('/d/e')).rejects.toThrow(/exists/)
    expect((await volume.list('/')).map(({ name }: Loose) => name).sort()).toEqual(['a.txt', 'd', 'empty'])
    expect((await volume.list('/d', { depth: 2 })).map(({ path }: Loose) => path)).toEqual(['/d/e'])
    expect(await volume.updateMetadata('/a.txt', { mode: 0o600 })).toMatchObject({ mode: 0o600 })
    await expect(volume.updateMetadata('/a.txt', { uid: 4711 })).rejects.toThrow(/owner/)
    await volume.remove('/d')
    expect(await volume.exists('/d')).toBe(false)
    await expect(volume.remove('/')).rejects.toThrow(/root/)
    await expect(volume.readFile('/../../etc/passwd')).rejects.toThrow(/\.\./)
  })

  test('are shared by sandboxes and outlive them', async () => {
    const volume = await e2b.Volume.create('shared', here.options)
    await volume.writeFile('/seed', 'from outside')
    const mounts = { volumeMounts: { '/home/user/data': volume, '/mnt/same': 'shared' } }
    const one = await e2b.Sandbox.create({ ...here.options, ...mounts })
    const two = await e2b.Sandbox.create({ ...here.options, volumeMounts: { '/data': volume } })
    expect((await one.getInfo()).volumeMounts).toContainEqual({ name: 'shared', path: '/mnt/same' })
    expect((await one.commands.run('cat /mnt/same/seed; echo made > data/by-one')).stdout).toBe(
      'from outside',
    )
    expect((await two.commands.run('cat by-one; ln -s /etc/passwd link', { cwd: '/data' })).stdout).toBe(
      'made\n',
    )
    expect(await two.files.read('/data/by-one')).toBe('made\n')
    // With a root user, what it writes belongs to root there too, and `user` owns the rest.
    if (process.getuid?.() === 0) {
      await two.commands.run('touch /data/by-root', { user: 'root' })
      expect((await one.commands.run('stat -c %U data/by-root data/by-one data')).stdout).toBe(
        'root\nuser\nuser\n',
      )
    }
    await expect(e2b.Volume.destroy(volume.volumeId, here.options)).rejects.toThrow(/mounted in 2/)
    await one.kill()
    await two.kill()
    expect(await volume.readFile('/by-one')).toBe('made\n')
    // The link leads into the sandbox that serves the files, and shows nothing of the host.
    expect(await volume.readFile('/link')).not.toContain('daemon')
    expect(await e2b.Volume.destroy(volume.volumeId, here.options)).toBe(true)
  })
})
