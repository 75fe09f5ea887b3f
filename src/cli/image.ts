import type { Image, ImageSource, ImageStore } from '../backends/images/store.ts'
import { agentPath, environment, stateDirectory } from '../compose/compose.ts'
import { SandboxError } from '../model/errors.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import { parseOptions, usage } from './options/options.ts'
import { err, out } from './terminal/output.ts'

const OPTIONS = {
  kind: { type: 'string' },
  program: { type: 'string', multiple: true },
  package: { type: 'string', multiple: true },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

/** `ringfence image build|ls|rm`: root file systems for containers and microVMs, built on this host without a registry. */
export async function image(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('image', args, OPTIONS)
  const [what = 'ls', name, ...rest] = positionals
  if (rest.length > 0) throw usage('image', `unexpected \`${rest.join(' ')}\``)
  const { ImageStore: Store } = await import('../backends/images/store.ts')
  const store = new Store(stateDirectory(environment()))
  if (what === 'ls') return list(store.list(), values.json === true)
  if (what === 'build') return build(store, name ?? 'default', values)
  if (what !== 'rm') throw usage('image', `unknown \`${what}\`: use build, ls or rm`)
  if (name === undefined) throw usage('image', 'missing image name: `ringfence image rm NAME`')
  if (!store.remove(name)) throw new SandboxError('not-found', `no image named \`${name}\``)
  return 0
}

async function build(store: ImageStore, name: string, values: Values): Promise<number> {
  const { kind = 'container' } = values
  if (kind !== 'container' && kind !== 'microvm')
    throw usage('image', `unknown kind \`${kind}\`: use container or microvm`)
  const made = await store.build(name, await sourceOf(values), { onProgress: progress(values) })
  const machine = kind === 'microvm' ? await machineOf(store, made, values) : undefined
  const digest = machine ?? made.digest
  const shown = { ...imageJson(made), digest, kind }
  out(values.json ? `${visibleJson(shown)}\n` : `${digest}\n`)
  return 0
}

/** Builds kernel, initramfs and root image for a microVM; the digest covers all three. */
async function machineOf(images: ImageStore, made: Image, values: Values): Promise<string> {
  const { GuestImages } = await import('../backends/microvm/image/image.ts')
  const stateDir = stateDirectory(environment())
  const guests = new GuestImages({ stateDir, agent: agentPath(), images, onProgress: progress(values) })
  return (await guests.get(made)).digest
}

async function sourceOf(values: Values): Promise<ImageSource> {
  if (values.package && values.program) throw usage('image', '--program and --package cannot be combined')
  if (values.package) return { kind: 'packages', packages: values.package }
  const { DEFAULT_PROGRAMS } = await import('../backends/images/host-programs.ts')
  return { kind: 'host', programs: [...DEFAULT_PROGRAMS, ...(values.program ?? [])] }
}

const progress =
  (values: Values) =>
  (text: string): void => {
    if (!values.quiet && !values.json) err(`${text}\n`)
  }

/** An image in the `--json` output of `image` and `doctor`. */
export const imageJson = ({ name, digest, bytes, files, source }: Image): Record<string, unknown> => ({
  name,
  digest,
  bytes,
  files,
  source: source.kind,
})

/** An image as one line of text. */
export const imageLine = ({ name, digest, bytes, files }: Image): string =>
  `${name.padEnd(16)} ${digest.slice(0, 19)}  ${String(Math.round(bytes / 1024 / 1024)).padStart(5)} MB  ${files} files`

function list(images: readonly Image[], json: boolean): number {
  const text = json
    ? visibleJson(images.map(imageJson))
    : images.map((one) => visible(imageLine(one))).join('\n')
  if (text) out(`${text}\n`)
  return 0
}
