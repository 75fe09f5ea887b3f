import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { RingfenceClient } from '../../client/client.ts'
import type { TemplateBuild, TemplateSpec } from '../../client/types.ts'
import { run } from '../../host/process/run.ts'
import { systemProgram } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import { visible, visibleJson } from '../../model/text/visible.ts'
import { numberOption, parseOptions, sizeOption, usage } from '../options/options.ts'
import { err, out } from '../terminal/output.ts'
import { print, server, table } from './remote.ts'

const OPTIONS = {
  file: { type: 'string', short: 'f' },
  tag: { type: 'string', short: 't' },
  image: { type: 'string' },
  template: { type: 'string' },
  start: { type: 'string' },
  ready: { type: 'string' },
  cpus: { type: 'string' },
  memory: { type: 'string' },
  username: { type: 'string' },
  'password-stdin': { type: 'boolean' },
  'no-cache': { type: 'boolean' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

/** `ringfence template build|ls|rm`, against a server. */
export async function template(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('template', args, OPTIONS)
  const [action, ...rest] = positionals
  if (action === 'build' && rest.length <= 1) return build(values, rest[0])
  if (action === 'ls' && rest.length === 0) return list(values.json)
  if (action === 'rm' && rest.length > 0) return remove(values.json, rest)
  throw usage('template', 'use `template build`, `template ls` or `template rm NAME…`')
}

async function list(json: boolean | undefined): Promise<number> {
  const page = await server().templates()
  print(json, page, () =>
    table([
      ['ID', 'NAME', 'TAGS', 'BACKEND', 'CREATED'],
      ...page.items.map((one) => [one.id, one.name ?? '-', one.tags.join(','), one.backend, one.created_at]),
    ]),
  )
  return 0
}

async function remove(json: boolean | undefined, ids: readonly string[]): Promise<number> {
  for (const id of ids) await server().removeTemplate(id)
  print(json, { removed: ids }, () => ids.map((id) => `${visible(id)}: removed\n`).join(''))
  return 0
}

async function build(values: Values, dir: string | undefined): Promise<number> {
  if (values.tag === undefined) throw usage('template', 'missing name: `template build -t NAME`')
  const client = server()
  const spec = await specOf(client, values, values.tag, dir)
  const ended = await follow(client, await client.buildTemplate(spec), values.json ? () => {} : sayLine)
  if (values.json) out(`${visibleJson(ended)}\n`)
  if (ended.status === 'ready') {
    if (!values.json) out(`${visible(ended.template_id)}\n`)
    return 0
  }
  if (!values.json) err(`ringfence: the build failed: ${visible(ended.reason?.message ?? 'unknown')}\n`)
  return 1
}

/** SECURITY: the log holds what programs of the image wrote, which must not control the reader's terminal. */
const sayLine = (message: string): unknown => err(`${visible(message)}\n`)

async function follow(
  client: RingfenceClient,
  started: TemplateBuild,
  say: (message: string) => unknown,
): Promise<TemplateBuild> {
  const log: TemplateBuild['log'][number][] = []
  for (let build = started; ; ) {
    for (const { message } of build.log) say(message)
    log.push(...build.log)
    const isOver = build.status === 'ready' || build.status === 'error'
    if (isOver && build.log.length === 0) return { ...build, log }
    if (build.log.length === 0) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
    build = await client.templateBuild(build.id, build.next)
  }
}
const PAUSE_MS = 200

async function specOf(
  client: RingfenceClient,
  values: Values,
  name: string,
  dir: string | undefined,
): Promise<TemplateSpec> {
  const { image, template: from, start, ready } = values
  const cpus = numberOption('--cpus', values.cpus)
  const memory = sizeOption('--memory', values.memory)
  const isFile = image === undefined && from === undefined
  if (!isFile && (dir !== undefined || values.file !== undefined))
    throw usage('template', 'a directory and -f are for a Dockerfile; leave out --image and --template')
  return {
    name,
    ...(image === undefined ? {} : { image }),
    ...(from === undefined ? {} : { template: from }),
    ...(isFile ? await dockerfileOf(client, dir ?? '.', values.file) : {}),
    ...(values.username === undefined ? {} : { credentials: await credentialsOf(values) }),
    ...(start === undefined ? {} : { start_command: start }),
    ...(ready === undefined ? {} : { ready_command: ready }),
    ...(cpus === undefined ? {} : { cpus }),
    ...(memory === undefined ? {} : { memory_mb: memory }),
    ...(values['no-cache'] ? { no_cache: true } : {}),
  }
}

/** SECURITY: a password in the arguments could be read by every user of this machine. */
async function credentialsOf(values: Values): Promise<NonNullable<TemplateSpec['credentials']>> {
  if (!values['password-stdin']) throw usage('template', '--username needs --password-stdin')
  return { username: values.username ?? '', password: readFileSync(0, 'utf8').replace(/\r?\n$/, '') }
}

async function dockerfileOf(
  client: RingfenceClient,
  dir: string,
  file = join(dir, 'Dockerfile'),
): Promise<Pick<TemplateSpec, 'dockerfile' | 'context'>> {
  if (!existsSync(file)) throw new SandboxError('invalid-input', `there is no \`${file}\``)
  const dockerfile = readFileSync(file, 'utf8')
  if (!/^\s*(COPY|ADD)\s/im.test(dockerfile)) return { dockerfile }
  const archive = await archiveOf(dir)
  const context = createHash('sha256').update(archive).digest('hex')
  await client.uploadBuildFiles(context, archive)
  return { dockerfile, context }
}

/** The files of the directory, without those that `.dockerignore` names. The same files make the same archive. */
async function archiveOf(dir: string): Promise<Uint8Array> {
  const fixed = ['--sort=name', '--owner=0', '--group=0', '--numeric-owner']
  const args = ['-c', ...fixed, '--anchored', ...ignored(dir), '-C', dir, '.']
  const launch = { file: systemProgram('tar') ?? 'tar', args, env: {}, cwd: process.cwd(), control: false }
  const { exit, stdout, stderr } = await run(launch, { wallMs: 600_000 })
  if (exit.code === 0) return stdout
  throw new SandboxError(
    'invalid-input',
    `cannot read \`${dir}\`: ${Buffer.from(stderr).toString('utf8').trim()}`,
  )
}

function ignored(dir: string): readonly string[] {
  const file = join(dir, '.dockerignore')
  if (!existsSync(file)) return []
  const lines = readFileSync(file, 'utf8')
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter((line) => line !== '' && !line.startsWith('#'))
  const exception = lines.find((line) => line.startsWith('!'))
  if (exception !== undefined)
    throw new SandboxError('unsupported', `exceptions in .dockerignore are not supported: \`${exception}\``)
  return lines.map((line) => `--exclude=./${line.replace(/^\.?\/+/, '').replace(/\/+$/, '')}`)
}
