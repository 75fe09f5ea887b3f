import { decodeComponent, isComponent } from '../wasm/component/decode.ts'
import { decodeModule } from '../wasm/meter/decode.ts'
import type { RuntimeType } from './manifest.ts'
import type { SkillPackage } from './package.ts'

/** Static analysis of a skill's files. It only warns; the sandbox enforces. */

/** One finding that a person should look at. */
export type Finding = {
  readonly severity: 'critical' | 'warning' | 'info'
  readonly what: string
  /** The file and line, if known. */
  readonly where?: string
}

const MAX_TEXT = 1024 * 1024

/** Phrases that address a model instead of a human reader. */
const PHRASES: readonly RegExp[] = [
  /\b(ignore|disregard|forget|override)\b.{0,30}\b(previous|prior|above|earlier|all|any|your)\b.{0,30}\b(instruction|prompt|rule|direction|guideline)s?\b/i,
  /\b(you are|act as|pretend to be|from now on you)\b.{0,40}\b(unrestricted|jailbroken|dan\b|developer mode|no longer bound)/i,
  /\b(reveal|print|repeat|output|show|leak|exfiltrate|send)\b.{0,40}\b(system prompt|hidden instruction|api key|credential|secret|password)s?\b/i,
  /\bdo not (tell|inform|mention|reveal|alert|warn)\b.{0,40}\b(user|human|operator|anyone)\b/i,
  /<\/?(system|assistant|tool_result|function_calls?)\s*>|<\|im_(start|end)\|>|\[\/?INST\]/i,
  /\b(new|updated|real|actual) (system )?(instruction|prompt)s?\s*:/i,
  /\bwithout (asking|telling|informing|the knowledge of|confirmation from) (the )?(user|human|operator)\b/i,
]
// Characters that are invisible to people but read by a model.
const INVISIBLE = /[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\u{e0000}-\u{e007f}]/u

/** Finds prompt injection in the text files of a skill. */
export function injectionPhrases({ files }: SkillPackage): readonly Finding[] {
  return files.flatMap(({ path, bytes }) => {
    const source = textOf(bytes)
    return source === undefined
      ? []
      : source.split('\n').flatMap((line, index) => phrasesIn(line, path, index))
  })
}

function phrasesIn(line: string, path: string, index: number): readonly Finding[] {
  const where = `${path}:${index + 1}`
  const short = line.slice(0, 2000)
  const found = PHRASES.map((phrase) => phrase.exec(short)?.[0]).filter((text) => text !== undefined)
  const hidden: Finding[] = INVISIBLE.test(short)
    ? [{ severity: 'warning', what: 'invisible characters', where }]
    : []
  const spoken = found.map(
    (text): Finding => ({ severity: 'critical', what: `prompt injection: \`${text.slice(0, 80)}\``, where }),
  )
  return [...spoken, ...hidden]
}

function textOf(bytes: Uint8Array): string | undefined {
  if (bytes.length > MAX_TEXT || bytes.subarray(0, 4096).includes(0)) return undefined
  return new TextDecoder().decode(bytes)
}

const SOURCES: Readonly<Record<Exclude<RuntimeType, 'wasm'>, RegExp>> = {
  python: /\.pyw?$/,
  node: /\.[cm]?[jt]s$/,
}

const IMPORTS: Readonly<Record<Exclude<RuntimeType, 'wasm'>, readonly RegExp[]>> = {
  python: [
    /^\s*import\s+([\w.]+(?:\s+as\s+\w+)?(?:\s*,\s*[\w.]+(?:\s+as\s+\w+)?)*)/gm,
    /^\s*from\s+([\w.]+)\s+import\b/gm,
    /\b(?:__import__|import_module)\(\s*['"]([\w.]+)/g,
  ],
  node: [
    /\bimport\s+(?:[\w*{}\s,$]+\s+from\s+)?['"]([^'"\n]+)['"]/g,
    /\b(?:require|import)\s*\(\s*['"]([^'"\n]+)['"]/g,
    /\bexport\s+[\w*{}\s,$]+\s+from\s+['"]([^'"\n]+)['"]/g,
  ],
}

/** The imports of the code: modules of a script, `module.name` of a WebAssembly module, interfaces of a component. */
export function importsOf(skill: SkillPackage): readonly string[] {
  const { type } = skill.manifest.runtime
  if (type === 'wasm') return wasmImports(skill.entry.bytes)
  const found = sourcesOf(skill, type).flatMap((source) =>
    IMPORTS[type].flatMap((pattern) => [...source.matchAll(pattern)].map(([, name = '']) => name)),
  )
  const names = found.flatMap((name) =>
    type === 'python' ? name.split(',').map((one) => one.trim().split(/\s/)[0] ?? '') : [name],
  )
  return [...new Set(names)].filter((name) => name !== '').sort()
}

function sourcesOf({ files }: SkillPackage, type: Exclude<RuntimeType, 'wasm'>): readonly string[] {
  return files.filter(({ path }) => SOURCES[type].test(path)).map(({ bytes }) => textOf(bytes) ?? '')
}

function wasmImports(bytes: Uint8Array): readonly string[] {
  try {
    if (isComponent(bytes)) return componentImports(bytes)
    const { imports } = decodeModule(bytes)
    return [...new Set(imports.map(({ module, name }) => `${module}.${name}`))].sort()
  } catch {
    return []
  }
}

const componentImports = (bytes: Uint8Array): readonly string[] =>
  decodeComponent(bytes)
    .definitions.flatMap((definition) => (definition.is === 'import' ? [definition.name] : []))
    .sort()

const VARIABLES: Readonly<Record<Exclude<RuntimeType, 'wasm'>, readonly RegExp[]>> = {
  python: [/\b(?:environ(?:\.get|\.pop)?|getenv|environb)\s*[([]\s*['"]([A-Za-z_]\w*)['"]/g],
  node: [/\bprocess\s*\.\s*env\s*(?:\.\s*|\[\s*['"])([A-Za-z_]\w*)/g],
}

/** Names of environment variables that the script reads. */
export function variablesRead(skill: SkillPackage): readonly string[] {
  const { type } = skill.manifest.runtime
  if (type === 'wasm') return []
  const found = sourcesOf(skill, type).flatMap((source) =>
    VARIABLES[type].flatMap((pattern) => [...source.matchAll(pattern)].map(([, name = '']) => name)),
  )
  return [...new Set(found)].sort()
}

/** Modules with capabilities that a sandbox restricts. */
const TELLING: Readonly<Record<string, string>> = {
  subprocess: 'starts processes',
  'os.system': 'starts processes',
  ctypes: 'calls native code',
  socket: 'opens sockets',
  'urllib.request': 'connects to the network',
  requests: 'connects to the network',
  pickle: 'can run code from data',
  child_process: 'starts processes',
  net: 'opens sockets',
  http: 'connects to the network',
  https: 'connects to the network',
  vm: 'evaluates code',
  worker_threads: 'starts threads',
}

/** Findings for the imports of a skill. */
export const tellingImports = (imports: readonly string[]): readonly Finding[] =>
  imports.flatMap((name): readonly Finding[] => {
    const known = TELLING[name.replace(/^node:/, '')]
    return known === undefined ? [] : [{ severity: 'info', what: `\`${name}\` ${known}` }]
  })
