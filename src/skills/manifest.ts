import { parseToml } from '../host/toml.ts'
import { SandboxError } from '../model/errors.ts'
import {
  type Infer,
  list,
  object,
  oneOf,
  optional,
  record,
  refuse,
  type Shape,
  text,
} from '../model/shape.ts'
import { type Capability, parseCapability } from '../policy/grants/capability.ts'

/** The schema of `skill.toml`. */

const RUNTIMES = ['wasm', 'python', 'node'] as const
/** The runtime of a skill. */
export type RuntimeType = (typeof RUNTIMES)[number]

const matching = (pattern: RegExp, what: string, max: number): Shape<string> => ({
  schema: { type: 'string', pattern: pattern.source, maxLength: max },
  parse(value, at) {
    const given = text({ max }).parse(value, at)
    return pattern.test(given) ? given : refuse(at, `\`${given.slice(0, 60)}\` is not ${what}`)
  },
})

const NAME = matching(/^[A-Za-z0-9][A-Za-z0-9._-]*$/, 'a name of letters, digits, dots and hyphens', 64)
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/
// SECURITY: the entry is always a file inside the package.
const ENTRY = matching(
  /^(?!.*(^|\/)\.{1,2}(\/|$))[^/\\\u0000-\u001f][^\\\u0000-\u001f]*$/,
  'a path inside the skill',
  512,
)
const names = () => optional(list(text({ max: 1024 }), 256))

/** `[capabilities]` of a manifest. */
export const capabilitiesShape = object({
  tools: names(),
  shell: names(),
  file_read: names(),
  file_write: names(),
  network: names(),
  memory_read: names(),
  memory_write: names(),
  env: names(),
})

const manifestShape = object({
  skill: object({
    name: NAME,
    version: optional(text({ max: 64 })),
    description: optional(text({ empty: true, max: 4096 })),
  }),
  runtime: object({
    type: oneOf(...RUNTIMES),
    entry: ENTRY,
    /** The exported function of an Extism plug-in to call, if there are several. */
    function: optional(text({ max: 256 })),
  }),
  capabilities: optional(capabilitiesShape),
  env: optional(record(text({ empty: true, max: 32_768 }), VARIABLE)),
})
/** A parsed manifest. */
export type Manifest = Infer<typeof manifestShape>

/** The capability for each key of `[capabilities]`. */
const KIND = {
  tools: 'ToolInvoke',
  shell: 'ShellExec',
  file_read: 'FileRead',
  file_write: 'FileWrite',
  network: 'NetConnect',
  memory_read: 'MemoryRead',
  memory_write: 'MemoryWrite',
  env: 'EnvRead',
} as const satisfies Record<keyof Infer<typeof capabilitiesShape>, string>
/** A key of `[capabilities]`. */
export type AskKind = keyof typeof KIND

/** One requested capability. */
export type Ask = { readonly kind: AskKind; readonly value: string; readonly capability: Capability }

/** Parses the text of a `skill.toml`. */
export async function parseManifest(source: string): Promise<Manifest> {
  let data: unknown
  try {
    data = await parseToml(source)
  } catch (cause) {
    const said = (cause as Error).message.split('\n')[0] ?? ''
    throw new SandboxError('invalid-input', `skill.toml: ${said}`, { cause, hint: HINT })
  }
  try {
    const manifest = manifestShape.parse(data, '')
    asksOf(manifest)
    return manifest
  } catch (cause) {
    if (!(cause instanceof SandboxError)) throw cause
    throw new SandboxError('invalid-input', `skill.toml: ${cause.message}`, { hint: cause.hint ?? HINT })
  }
}

const HINT = 'see docs/skills.md for the fields'

/** All requested capabilities, in the order of the table above. */
export const asksOf = ({ capabilities = {} }: Manifest): readonly Ask[] =>
  (Object.keys(KIND) as AskKind[]).flatMap((kind) =>
    (capabilities[kind] ?? []).map((value) => ({
      kind,
      value,
      capability: parseCapability(`${KIND[kind]}(${value})`),
    })),
  )
