import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { open } from 'node:fs/promises'
import { posix } from 'node:path'
import type { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'
import { SandboxError } from '../../../model/errors.ts'
import { shellQuote } from '../../../model/text/shell-quote.ts'
import type { Principal } from '../../../supervisor/access/keys.ts'
import type { LiveSandbox } from '../../../supervisor/lifecycle/live-sandbox.ts'
import type { Template, TemplateData } from '../../../supervisor/snapshots/templates.ts'
import { createSandbox } from '../create.ts'
import { HOME, homeOf, PRIVATE, pathOf, type SandboxSurface } from '../sandbox-request.ts'
import type { BuildBody, Step } from '../shapes.ts'
import { type BuildBase, type BuildState, baseOf } from './build-base.ts'
import type { Build } from './builds.ts'
import { assignTags } from './tags.ts'

/**
 * Builds of templates: the steps run in a sandbox. Where it has a root of its own, its disk is the template; otherwise its
 * private directories are.
 */

const BUILD_SECONDS = 3600
const STEP_MS = 15 * 60_000
/** A step that takes less is not worth a copy of the disk. */
const WORTH_KEEPING_MS = 1500
const MOST_LAYERS = 20
/** What is kept of a line that does not end. */
const LINE_CHARACTERS = 16_384

type Site = {
  readonly surface: SandboxSurface
  readonly principal: Principal
  readonly entry: LiveSandbox
  readonly build: Build
  readonly image: string | undefined
}

/** Runs the steps of a template build in a sandbox. */
export async function runBuild(
  surface: SandboxSurface,
  principal: Principal,
  build: Build,
  body: BuildBody,
): Promise<void> {
  build.status = 'building'
  const progress = { step: 'base' }
  try {
    await buildTemplate(surface, principal, build, body, progress)
    build.log.say('the template is ready')
    build.status = 'ready'
  } catch (error) {
    const message = error instanceof SandboxError ? error.message : 'internal error'
    if (!(error instanceof SandboxError)) surface.parts.log(`e2b build: ${String(error)}`)
    build.log.say(message, 'error')
    build.reason = { message, step: progress.step }
    build.status = 'error'
  }
}

async function buildTemplate(
  surface: SandboxSurface,
  principal: Principal,
  build: Build,
  body: BuildBody,
  progress: { step: string },
): Promise<void> {
  const base = await baseOf(surface, principal, body, (line) => build.log.say(line))
  try {
    await buildOn(base, { surface, principal, build }, body, progress)
  } finally {
    const { templates } = surface.e2b
    const image = base.isTemporary ? await templates.find(principal.tenant, base.template) : undefined
    if (image) await templates.remove(image)
  }
}

async function buildOn(
  base: BuildBase,
  { surface, principal, build }: Pick<Site, 'surface' | 'principal' | 'build'>,
  body: BuildBody,
  progress: { step: string },
): Promise<void> {
  const steps = body.steps ?? []
  const keys = keysOf(base.key, steps)
  await assertKeyInForce(surface, principal)
  const cached = body.force ? undefined : await longestLayer(surface, principal.tenant, steps, keys)
  const options = { templateID: cached?.layer.id ?? base.template, metadata: { build: build.id } }
  const made = await createSandbox(surface, principal, options, BUILD_SECONDS)
  const entry = made.live as LiveSandbox
  const site = { surface, principal, entry, build, image: base.image }
  try {
    const state = cached ? stateOf(cached.layer.data) : base.state
    // An engine creates the directory of an image that lacks it.
    if (body.usesImageDefaults && !cached) await checkDefaults(site, state)
    for (const [index, step] of steps.entries()) {
      progress.step = String(index + 1)
      const isCached = index < (cached?.steps ?? 0)
      build.log.say(`${isCached ? 'CACHED ' : ''}[${progress.step}/${steps.length}] ${textOf(step)}`)
      if (isCached) continue
      await assertKeyInForce(surface, principal)
      const started = performance.now()
      await runStep(site, step, state)
      if (performance.now() - started > WORTH_KEEPING_MS) await keepLayer(site, keys[index] as string, state)
    }
    progress.step = 'finalize'
    await assertKeyInForce(surface, principal)
    await keepTemplate(site, body, state)
  } finally {
    await surface.parts.supervisor.stop(principal, entry.id)
  }
}

/** SECURITY: a build may take an hour; it starts and stores nothing more in the name of a key that was revoked. */
async function assertKeyInForce({ parts }: SandboxSurface, { keyId }: Principal): Promise<void> {
  if (await parts.keys.principalById(keyId)) return
  throw new SandboxError('unauthenticated', 'the key of this build was revoked')
}

const textOf = ({ type, args = [] }: Step): string => `${type} ${args.filter((one) => one !== '').join(' ')}`

/** A key for the state after each step: what it starts from, and every step so far with the files that it copies. */
function keysOf(base: string, steps: readonly Step[]): readonly string[] {
  let key = base
  return steps.map(({ type, args = [], filesHash = '' }) => {
    key = createHash('sha256')
      .update(JSON.stringify([key, type, args, filesHash]))
      .digest('hex')
    return key
  })
}

/** INVARIANT: a layer is found only by its own tenant, because the tenant is part of its id and of the query. */
const layerId = (tenant: string, key: string): string =>
  `lay${createHash('sha256').update(`${tenant}\0${key}`).digest('hex').slice(0, 24)}`

type Cached = { readonly layer: Template; readonly steps: number }

async function longestLayer(
  { e2b }: SandboxSurface,
  tenant: string,
  steps: readonly Step[],
  keys: readonly string[],
): Promise<Cached | undefined> {
  const forced = steps.findIndex(({ force }) => force)
  for (let count = forced < 0 ? steps.length : forced; count > 0; count--) {
    const layer = await e2b.templates.find(tenant, layerId(tenant, keys[count - 1] as string))
    if (layer?.kind === 'layer') return { layer, steps: count }
  }
  return undefined
}

const stateOf = ({ env = {}, workdir = HOME, user = 'user' }: TemplateData): BuildState => ({
  env: { ...env },
  workdir,
  user,
})

/** Keeps the state after a step. A failure costs only the next build some time. */
async function keepLayer(site: Site, key: string, state: BuildState): Promise<void> {
  const { entry, build, surface } = site
  const live = entry.ready()
  if (!live.plan.root) return
  const { templates } = surface.e2b
  try {
    const record = {
      id: layerId(build.tenant, key),
      kind: 'layer' as const,
      tenant: build.tenant,
      name: null,
    }
    const data = dataOf(site, state)
    await templates.keep(live, PRIVATE, { ...record, sandboxId: null, createdAt: Date.now(), data })
    const all = await templates.list({ tenant: build.tenant, kind: 'layer', limit: 1000 })
    for (const old of all.slice(MOST_LAYERS)) await templates.remove(old)
  } catch (error) {
    if (!(error instanceof SandboxError)) surface.parts.log(`e2b build: ${String(error)}`)
  }
}

const dataOf = ({ image }: Site, { env, workdir, user }: BuildState) => ({
  env,
  workdir,
  user,
  ...(image === undefined ? {} : { image }),
})

async function keepTemplate(site: Site, { startCmd, readyCmd }: BuildBody, state: BuildState): Promise<void> {
  const { surface, entry, build } = site
  const { templates } = surface.e2b
  const before = await templates.find(build.tenant, build.templateId)
  const live = entry.ready()
  const kept = await templates.keep(live, PRIVATE, {
    id: build.templateId,
    kind: 'template',
    tenant: build.tenant,
    name: build.name,
    sandboxId: null,
    createdAt: Date.now(),
    data: {
      ...dataOf(site, state),
      ...(startCmd ? { startCommand: startCmd } : {}),
      ...(readyCmd ? { readyCommand: readyCmd } : {}),
      ...(build.cpus === undefined ? {} : { cpus: build.cpus }),
      ...(build.memoryMb === undefined ? {} : { memoryMb: build.memoryMb }),
      ...(before?.data.tags ? { tags: before.data.tags } : {}),
    },
  })
  if (build.tags.length > 0) await assignTags(templates, kept, build.tags)
}

async function runStep(site: Site, step: Step, state: BuildState): Promise<void> {
  const args = step.args ?? []
  if (step.type === 'RUN') {
    const user = userOf(site, args[1] || state.user)
    return shell(site, ['/bin/bash', '-l', '-c', args[0] ?? ''], { ...state, user })
  }
  if (step.type === 'ENV') {
    for (let at = 0; at + 1 < args.length; at += 2) state.env[args[at] as string] = args[at + 1] as string
    return
  }
  if (step.type === 'WORKDIR') {
    state.workdir = posix.resolve(state.workdir, pathOf(args[0], state.workdir))
    return makeWorkdir(site, state)
  }
  if (step.type === 'USER') {
    // A group is the user's own anyway.
    state.user = userOf(site, (args[0] ?? 'user').replace(/:.*$/, ''))
    return
  }
  if (step.type === 'COPY') return copy(site, step, state)
  throw new SandboxError('unsupported', `the step \`${step.type}\` is not known here`)
}

async function checkDefaults(site: Site, state: BuildState): Promise<void> {
  state.user = userOf(site, state.user)
  await makeWorkdir(site, state)
}

/** The user that a step names. Without a root user there is only `user`. */
function userOf({ entry }: Site, name: string): string {
  const hasRoot = entry.ready().plan.root !== undefined
  if (name === 'user' || (hasRoot && /^([a-z_][a-z0-9_-]{0,31}|\d{1,5})$/.test(name))) return name
  throw new SandboxError(
    'unsupported',
    `there is no user \`${name.slice(0, 64)}\`: everything runs as \`user\``,
    {
      hint: 'a root user needs a server that runs as root; see `ringfence doctor`',
    },
  )
}

const hasRoot = ({ entry }: Site): boolean => entry.ready().plan.root !== undefined

/** With missing parents; what is made belongs to the user of the next steps. */
async function makeWorkdir(site: Site, { workdir, user }: BuildState): Promise<void> {
  const live = site.entry.ready()
  const files = live.plan.root ? live.files.ownedBy(user) : live.files
  const make = async (path: string): Promise<void> => {
    if (path === '/') return
    const found = await files.stat(path).catch(() => undefined)
    if (found) return
    await make(posix.dirname(path))
    await files.makeDir(path)
  }
  await make(workdir)
}

/** A line of ours, by the root user where there is one. */
const script = (site: Site, line: string): Promise<void> =>
  shell(site, ['/bin/sh', '-c', line], { env: {}, workdir: '/tmp', user: hasRoot(site) ? 'root' : 'user' })

async function shell(
  { surface, principal, entry, build }: Site,
  command: readonly string[],
  { workdir, env, user }: BuildState,
): Promise<void> {
  const request = {
    command,
    cwd: workdir,
    env,
    ...(user === 'user' ? {} : { user }),
    timeoutMs: STEP_MS,
  }
  const { session } = await surface.parts.supervisor.exec(principal, entry.id, request)
  // A chunk may end within a line, or within a character.
  const decoder = new TextDecoder()
  let rest = ''
  for await (const chunk of session.log.follow(0)) {
    if ('gap' in chunk) continue
    const lines = (rest + decoder.decode(chunk.data, { stream: true })).split('\n')
    rest = (lines.pop() ?? '').slice(-LINE_CHARACTERS)
    for (const line of lines) if (line) build.log.say(line)
  }
  if (rest) build.log.say(rest)
  const { outcome } = await session.result.catch((error: unknown) => {
    throw unknownUser(error, command, user)
  })
  if (outcome.kind === 'exited' && outcome.code === 0) return
  const how = outcome.kind === 'exited' ? `exit code ${outcome.code}` : outcome.kind
  throw new SandboxError('invalid-input', `\`${(command.at(-1) ?? '').slice(0, 200)}\` failed: ${how}`)
}

/** E2B's own phrase for a user that does not exist. */
function unknownUser(error: unknown, command: readonly string[], user: string): unknown {
  if (!(error instanceof SandboxError) || !error.message.startsWith('there is no user')) return error
  const why = `command failed: unauthenticated: invalid username: '${user}'`
  return new SandboxError('invalid-input', `failed to run command '${command.at(-1)}': ${why}`)
}

/** The client's archive is unpacked inside the sandbox, like everything that comes from outside. */
async function copy(site: Site, step: Step, state: BuildState): Promise<void> {
  const [from = '', to = '', owner, mode] = step.args ?? []
  const { templates } = site.surface.e2b
  const upload = templates.upload(site.build.tenant, step.filesHash ?? '')
  if (!upload.present) throw new SandboxError('invalid-input', `the files of \`${from}\` were not uploaded`)
  await site.entry.ready().files.write(`${COPY_BASE}.tar`, await plainArchive(upload.path))
  const target = to.startsWith('~') ? pathOf(to, homeOf(state.user)) : posix.resolve(state.workdir, to || '.')
  const isDirectory = /(^|\/|\/\.|^\.)$/.test(to) || (PRIVATE as readonly string[]).includes(target)
  const owned = hasRoot(site) ? ownerText(owner || state.user) : onlyUser(site, owner)
  await script(site, copyLine({ from, target, isDirectory, mode, owner: owned }))
}
const COPY_BASE = '/tmp/.ringfence-copy'

/** Not every `tar` in an image recognizes a compressed archive. The disk of the sandbox limits what comes out. */
async function plainArchive(path: string): Promise<Readable> {
  const file = await open(path)
  const { buffer } = await file.read(Buffer.alloc(2), 0, 2, 0).finally(() => file.close())
  const bytes = createReadStream(path)
  return buffer.equals(Buffer.from([0x1f, 0x8b])) ? bytes.pipe(createGunzip()) : bytes
}

function onlyUser(site: Site, owner: string | undefined): undefined {
  if (owner) userOf(site, owner)
}

/** `name`, `name:group` or numbers. */
function ownerText(owner: string): string {
  const [, name, group] =
    /^([a-z0-9_][a-z0-9_.-]{0,31})(?::([a-z0-9_][a-z0-9_.-]{0,31}))?$/i.exec(owner) ?? []
  if (name === undefined) throw new SandboxError('invalid-input', `\`${owner.slice(0, 64)}\` is not a user`)
  const id = /^\d+$/.test(name) ? name : `"$(id -u ${name})"`
  const gid = group ?? (/^\d+$/.test(name) ? name : `"$(id -g ${name})"`)
  return `${id}:${gid}`
}

type CopyLine = {
  readonly from: string
  readonly target: string
  readonly isDirectory: boolean
  readonly mode: string | undefined
  /** Whom the files belong to; absent: there is one user. */
  readonly owner: string | undefined
}

function copyLine({ from, target, isDirectory, mode, owner }: CopyLine): string {
  const base = COPY_BASE
  const to = shellQuote(target)
  const made = (path: string): string =>
    owner === undefined
      ? `mkdir -p ${path}`
      : `{ [ -d ${path} ] || { mkdir -p ${path}; chown -h ${owner} ${path}; }; }`
  // A pattern keeps its stars and nothing else of the shell.
  const pattern = posix
    .normalize(from)
    .split(/([*?[\]]+)/)
    .map((part, index) => (index % 2 === 1 ? part : part === '' ? '' : shellQuote(part)))
    .join('')
  return [
    'set -e',
    `rm -rf ${base}; mkdir -p ${base}; tar -xf ${base}.tar -C ${base}; cd ${base}`,
    ...(owner === undefined ? [] : [`chown -hR ${owner} .`]),
    ...(mode ? [`chmod -R ${shellQuote(mode)} ${pattern}`] : []),
    `set -- ${pattern}`,
    `if [ $# = 1 ] && [ -d "$1" ]; then ${made(to)}; cp -a "$1/." ${to}`,
    // Only what may be needed: the policy judges every branch, and making `/home` is not for a sandbox.
    ...(isDirectory
      ? [`else ${made(to)}; cp -a "$@" ${to}; fi`]
      : [
          `elif [ $# -gt 1 ] || [ -d ${to} ]; then ${made(to)}; cp -a "$@" ${to}`,
          `else ${made(shellQuote(posix.dirname(target)))}; cp -a "$1" ${to}; fi`,
        ]),
    `rm -rf ${base} ${base}.tar`,
  ].join('\n')
}
