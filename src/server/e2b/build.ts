import { createReadStream } from 'node:fs'
import { posix } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { LiveSandbox } from '../../supervisor/live-sandbox.ts'
import type { Build } from './builds.ts'
import { createSandbox } from './create.ts'
import { type E2bSurface, HOME, PRIVATE, pathOf } from './sandbox-request.ts'
import type { BuildBody, Step } from './shapes.ts'
import { assignTags } from './tags.ts'

/** Builds of templates: the steps run in a sandbox, and what its own directories then hold is the template. */

/** E2B's own images stand for the host's tools; there is nothing to pull others with here. */
const PLAIN_IMAGES = /^(docker\.io\/)?e2bdev\/(base|code-interpreter)(:[\w.-]+)?$/
const BUILD_SECONDS = 3600
const STEP_MS = 15 * 60_000

/** How far the steps have come. */
type BuildState = { workdir: string; readonly env: Record<string, string> }

/** Runs the steps of a template build in a sandbox. */
export async function runBuild(
  surface: E2bSurface,
  principal: Principal,
  build: Build,
  body: BuildBody,
): Promise<void> {
  build.status = 'building'
  let step = 'base'
  try {
    const template = baseOf(body)
    const options = { templateID: template, metadata: { build: build.id } }
    const made = await createSandbox(surface, principal, options, BUILD_SECONDS)
    const entry = made.live as LiveSandbox
    try {
      const place: BuildState = { workdir: HOME, env: {} }
      for (const [index, one] of (body.steps ?? []).entries()) {
        step = String(index + 1)
        build.log.say(`[${step}] ${one.type} ${(one.args ?? []).join(' ')}`)
        await runStep({ surface, principal, entry, build }, one, place)
      }
      step = 'finalize'
      await keep(surface, entry, build, body, place)
    } finally {
      await surface.parts.supervisor.stop(principal, entry.id)
    }
    build.log.say('the template is ready')
    build.status = 'ready'
  } catch (error) {
    const message = error instanceof SandboxError ? error.message : 'internal error'
    if (!(error instanceof SandboxError)) surface.parts.log(`e2b build: ${String(error)}`)
    build.log.say(message, 'error')
    build.reason = { message, step }
    build.status = 'error'
  }
}

function baseOf({ fromImage, fromTemplate, fromImageRegistry }: BuildBody): string {
  if (fromTemplate !== undefined) return fromTemplate
  if (fromImageRegistry === undefined && (fromImage === undefined || PLAIN_IMAGES.test(fromImage)))
    return 'base'
  throw new SandboxError(
    'unsupported',
    `the image \`${fromImage}\` cannot be used: this backend runs the host's own tools`,
    { hint: 'start from `fromBaseImage()` or from a template' },
  )
}

async function keep(
  { e2b }: E2bSurface,
  entry: LiveSandbox,
  build: Build,
  { startCmd, readyCmd }: BuildBody,
  place: BuildState,
): Promise<void> {
  const before = await e2b.templates.find(build.tenant, build.templateId)
  const kept = await e2b.templates.keep(entry.ready(), PRIVATE, {
    id: build.templateId,
    kind: 'template',
    tenant: build.tenant,
    name: build.name,
    sandboxId: null,
    createdAt: Date.now(),
    data: {
      env: place.env,
      workdir: place.workdir,
      ...(startCmd ? { startCommand: startCmd } : {}),
      ...(readyCmd ? { readyCommand: readyCmd } : {}),
      ...(build.cpus === undefined ? {} : { cpus: build.cpus }),
      ...(build.memoryMb === undefined ? {} : { memoryMb: build.memoryMb }),
      ...(before?.data.tags ? { tags: before.data.tags } : {}),
    },
  })
  if (build.tags.length > 0) await assignTags(e2b.templates, kept, build.tags)
}

type Site = {
  readonly surface: E2bSurface
  readonly principal: Principal
  readonly entry: LiveSandbox
  readonly build: Build
}

async function runStep(site: Site, step: Step, place: BuildState): Promise<void> {
  const args = step.args ?? []
  if (step.type === 'RUN') {
    onlyUser(args[1])
    return shell(site, args[0] ?? '', place)
  }
  if (step.type === 'ENV') {
    for (let at = 0; at + 1 < args.length; at += 2) place.env[args[at] as string] = args[at + 1] as string
    return
  }
  if (step.type === 'WORKDIR') {
    place.workdir = posix.resolve(place.workdir, args[0] ?? '.')
    return shell(site, `mkdir -p ${quoted(place.workdir)}`, { ...place, workdir: HOME })
  }
  if (step.type === 'USER') return onlyUser(args[0])
  if (step.type === 'COPY') return copy(site, step, place)
  throw new SandboxError('unsupported', `the step \`${step.type}\` is not known here`)
}

function onlyUser(name: string | undefined): void {
  if (!name || name === 'user') return
  throw new SandboxError('unsupported', `there is no user \`${name}\`: everything runs as \`user\``, {
    hint: 'what the system itself should hold, an operator installs on the host',
  })
}

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`

async function shell(
  { surface, principal, entry, build }: Site,
  line: string,
  place: BuildState,
): Promise<void> {
  const request = {
    command: ['/bin/bash', '-l', '-c', line] as const,
    cwd: place.workdir,
    env: place.env,
    timeoutMs: STEP_MS,
  }
  const { session } = await surface.parts.supervisor.exec(principal, entry.id, request)
  for await (const chunk of session.log.follow(0)) {
    if ('gap' in chunk) continue
    for (const text of Buffer.from(chunk.data).toString('utf8').split('\n')) if (text) build.log.say(text)
  }
  const { outcome } = await session.result
  if (outcome.kind === 'exited' && outcome.code === 0) return
  const how = outcome.kind === 'exited' ? `exit code ${outcome.code}` : outcome.kind
  throw new SandboxError('invalid-input', `\`${line.slice(0, 200)}\` failed: ${how}`)
}

/** The client's archive is unpacked behind the wall, like everything that comes from outside. */
async function copy(site: Site, step: Step, place: BuildState): Promise<void> {
  const [from = '', to = '', user, mode] = step.args ?? []
  onlyUser(user)
  const { templates } = site.surface.e2b
  const upload = templates.upload(site.build.tenant, step.filesHash ?? '')
  if (!upload.present) throw new SandboxError('invalid-input', `the files of \`${from}\` were not uploaded`)
  await site.entry.ready().files.write('/tmp/.ringfence-copy.tar', createReadStream(upload.path))
  const target = to.startsWith('~') ? pathOf(to) : posix.resolve(place.workdir, to || '.')
  const isDirectory = /(^|\/|\/\.|^\.)$/.test(to) || (PRIVATE as readonly string[]).includes(target)
  await shell(site, copyLine(from, target, isDirectory, mode), {
    ...place,
    workdir: HOME,
  })
}

function copyLine(from: string, target: string, isDirectory: boolean, mode: string | undefined): string {
  const base = '/tmp/.ringfence-copy'
  const to = quoted(target)
  // A pattern keeps its stars and nothing else of the shell.
  const pattern = posix
    .normalize(from)
    .split(/([*?[\]]+)/)
    .map((part, index) => (index % 2 === 1 ? part : part === '' ? '' : quoted(part)))
    .join('')
  return [
    'set -e',
    `rm -rf ${base}; mkdir -p ${base}; tar -xf ${base}.tar -C ${base}; cd ${base}`,
    `set -- ${pattern}`,
    `if [ $# = 1 ] && [ -d "$1" ]; then mkdir -p ${to}; cp -a "$1/." ${to}`,
    // Only what may be needed: the policy judges every branch, and making `/home` is not for a sandbox.
    ...(isDirectory
      ? [`else mkdir -p ${to}; cp -a "$@" ${to}; fi`]
      : [
          `elif [ $# -gt 1 ] || [ -d ${to} ]; then mkdir -p ${to}; cp -a "$@" ${to}`,
          `else mkdir -p ${quoted(posix.dirname(target))}; cp -a "$1" ${to}; fi`,
        ]),
    ...(mode ? [`chmod -R ${quoted(mode)} ${to}`] : []),
    `rm -rf ${base} ${base}.tar`,
  ].join('\n')
}
