import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasRegistry, smallImage, TestRegistry } from '../images/test-registry.ts'
import { client, type Loose, until, type World, world } from './kit.ts'

/** Templates from images through E2B's own client, with a real registry on the loopback. */

const canRun = hasRegistry && process.getuid?.() === 0
let registry: TestRegistry
let here: World
let e2b: Loose

beforeAll(async () => {
  if (!canRun) return
  registry = await TestRegistry.start()
  const config = { Env: ['FROM_IMAGE=yes', 'PATH=/usr/local/bin:/usr/bin:/bin'] }
  const layers = [smallImage()]
  for (const name of ['library/debian:12', 'library/ubuntu:22.04', 'library/python:3.11', 'library/node:22'])
    await registry.push(name, layers, { config })
  const own = { ...config, User: '1234:5', WorkingDir: '/srv/app', Entrypoint: ['/bin/sh'] }
  await registry.push('library/configured:1', layers, { config: own })
  here = await world(`[[images.mirror]]\nregistry = "docker.io"\nurl = "${registry.url}"\n`)
  e2b = await client('e2b')
})
afterAll(async () => {
  await here?.close()
  await registry?.close()
  if (canRun) expect(here.logs).toEqual([])
})

/** Builds a template and returns its log. */
async function build(template: Loose, name: string, more: object = {}): Promise<string> {
  const lines: string[] = []
  const onBuildLogs = ({ message }: Loose): void => void lines.push(message)
  await e2b.Template.build(template, name, { ...here.options, onBuildLogs, ...more })
  return lines.join('\n')
}
const sandbox = (name: string): Promise<Loose> => e2b.Sandbox.create(name, here.options)

describe.skipIf(!canRun)('a template from an image', () => {
  test('has the image as its root, the results of its steps, and its user and working directory', async () => {
    const context = join(here.server.dir, 'context')
    mkdirSync(join(context, 'folder'), { recursive: true })
    writeFileSync(join(context, 'folder', 'a.txt'), 'copied')
    const template = e2b
      .Template({ fileContextPath: context })
      .fromImage('debian:12')
      .setEnvs({ STEP: 'one' })
      .setWorkdir('/app')
      .copy('folder', 'files')
      .runCmd('id -un > who; pwd > where; cat files/a.txt')
      .runCmd('echo "$STEP $FROM_IMAGE" > /etc/step', { user: 'root' })
      .runCmd('sleep 1.6; echo slow > slow')
      .setUser('root')
      .runCmd('touch /by-root')
      .setUser('user')
    const log = await build(template, 'from-image')
    expect(log).toContain('docker.io/library/debian:12: layer 1 of 1')
    expect(log).toContain('copied')
    const one = await sandbox('from-image')
    const { stdout } = await one.commands.run(
      'pwd; cat who where files/a.txt /etc/step /etc/os-release; id -un',
    )
    expect(stdout).toBe('/app\nuser\n/app\ncopiedone yes\nID=small\nuser\n')
    expect((await one.commands.run('stat -c %U files/a.txt /by-root .')).stdout).toBe('user\nroot\nuser\n')
    expect((await one.commands.run('echo $STEP$FROM_IMAGE; touch x && rm x')).stdout).toBe('oneyes\n')
    expect((await one.commands.run('id -u', { user: 'root' })).stdout).toBe('0\n')
    await one.kill()
    // The second build starts after the slow step.
    const again = await build(template, 'from-image-2')
    expect(again).toContain('CACHED [6/')
    expect(again).not.toContain('copied')
    const forced = await build(template, 'from-image-3', { skipCache: true })
    expect(forced).not.toContain('CACHED')
  })

  test('can be the base of another template, and a Dockerfile can describe it', async () => {
    await build(
      e2b.Template().fromDockerfile('FROM python:3.11\nENV A=b\nWORKDIR /srv\nRUN echo "$A" > made\n'),
      'docker',
    )
    await build(
      e2b.Template().fromTemplate('docker').runCmd('cat /srv/made > /tmp/x; cat /tmp/x > ~/copy'),
      'second',
    )
    const one = await sandbox('second')
    expect((await one.commands.run('cat ~/copy /srv/made; echo $FROM_IMAGE')).stdout).toBe('b\nb\nyes\n')
    const snapshot = await one.createSnapshot()
    await one.kill()
    const two = await sandbox(snapshot.snapshotId)
    expect((await two.commands.run('cat /srv/made')).stdout).toBe('b\n')
    await two.kill()
  })

  test('fails with the step and the reason', async () => {
    await expect(build(e2b.Template().fromImage('nothing:1'), 'none')).rejects.toThrow('there is no image')
    await expect(build(e2b.Template().fromNodeImage('22').runCmd('exit 3'), 'bad')).rejects.toThrow(
      'exit code 3',
    )
    await expect(
      build(e2b.Template().fromImage('127.0.0.1:5000/x', { username: 'a', password: 'b' }), 'inner'),
    ).rejects.toThrow(/loopback|private|not public|blocked/i)
  })

  test('by /v1: commands start in the directory and as the user of the image', async () => {
    const headers = { 'x-api-key': here.options.apiKey, 'content-type': 'application/json' }
    const post = async (path: string, body: object): Promise<Loose> => {
      const answer = await fetch(`${here.options.apiUrl}${path}`, {
        ...{ method: 'POST', headers, body: JSON.stringify(body) },
      })
      expect(answer.ok, await answer.clone().text()).toBe(true)
      return answer.json()
    }
    const made = async (name: string, body: object): Promise<Loose> => {
      const { id } = await post('/v1/templates', { name, ...body })
      const builds = `${here.options.apiUrl}/v1/templates/builds/${id}`
      const status = async () => ((await (await fetch(builds, { headers })).json()) as Loose).status
      await until(async () => !['waiting', 'building'].includes(await status()), 'the build')
      return post('/v1/sandboxes', { template: name })
    }
    const said = async ({ id }: Loose, more: object = {}): Promise<string> =>
      (await post(`/v1/sandboxes/${id}/exec`, { command: 'id -u; pwd; echo $FROM_IMAGE', ...more })).stdout
    const one = await made('as-configured', { image: 'configured:1' })
    expect(await said(one)).toBe('1234\n/srv/app\nyes\n')
    expect(await said(one, { user: 'root' })).toBe('0\n/srv/app\nyes\n')
    expect(await said(one, { cwd: '/etc' })).toBe('1234\n/etc\nyes\n')
    const file = 'FROM debian:12\nRUN id -u > /who\nWORKDIR /made\n'
    const two = await made('from-file', { dockerfile: file })
    expect(await said(two, { command: 'id -u; pwd; cat /who' })).toBe('0\n/made\n0\n')
  })

  test('is available to its own tenant only', async () => {
    const other = { ...here.options, apiKey: await here.key('other') }
    await expect(e2b.Sandbox.create('from-image', other)).rejects.toThrow('there is no template')
  })
})
