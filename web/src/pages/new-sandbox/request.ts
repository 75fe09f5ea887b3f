import type { SandboxSpec } from '../../../../src/client/types.ts'
import { shellWord } from '../../../../src/model/text/shell-quote.ts'

/** The fields of the form, as typed. Empty: the server's default. */
export type SandboxForm = {
  readonly name: string
  readonly labels: string
  readonly agent: string
  readonly template: string
  readonly backend: string
  readonly workspace: string
  readonly network: '' | 'offline' | 'loopback' | 'fetch' | 'full'
  readonly hosts: string
  readonly cpus: string
  readonly memoryMb: string
  readonly diskMb: string
  readonly pids: string
  readonly lifetimeMinutes: string
  readonly idleMinutes: string
}

export const EMPTY_FORM: SandboxForm = {
  name: '',
  labels: '',
  agent: '',
  template: '',
  backend: '',
  workspace: '',
  network: '',
  hosts: '',
  cpus: '',
  memoryMb: '',
  diskMb: '',
  pids: '',
  lifetimeMinutes: '',
  idleMinutes: '',
}

const MINUTE_MS = 60_000
/** A longer command has one option per line. */
const LINE = 46

/** The labels that are not `KEY=VALUE`. */
export const invalidLabels = ({ labels }: SandboxForm): readonly string[] =>
  wordsOf(labels).filter((label) => !/^[^=]+=/.test(label))

/** The request that the form describes. */
export function specOf(form: SandboxForm): SandboxSpec {
  const metadata = {
    ...Object.fromEntries(wordsOf(form.labels).map((label) => splitAt(label, label.indexOf('=')))),
    ...(form.name === '' ? {} : { name: form.name }),
  }
  return defined({
    backend: textOf(form.backend),
    template: textOf(form.template),
    workspace: textOf(form.workspace),
    network: unlessEmpty(
      defined({
        mode: textOf(form.network),
        allow_hosts: unlessEmpty(hostsOf(form)) as string[] | undefined,
      }),
    ),
    limits: unlessEmpty(
      defined({
        cpus: numberOf(form.cpus),
        memoryMb: numberOf(form.memoryMb),
        diskMb: numberOf(form.diskMb),
        pids: numberOf(form.pids),
      }),
    ),
    metadata: unlessEmpty(metadata),
    timeout_ms: minutesOf(form.lifetimeMinutes),
    idle_ms: minutesOf(form.idleMinutes),
    agent_id: textOf(form.agent),
  }) as SandboxSpec
}

const wordsOf = (text: string): readonly string[] => text.split(/[\s,]+/).filter((word) => word !== '')
/** Only the mode `fetch` has a list of hosts. */
const hostsOf = ({ network, hosts }: SandboxForm): readonly string[] =>
  network === '' || network === 'fetch' ? wordsOf(hosts) : []
const splitAt = (text: string, at: number) => [text.slice(0, at), text.slice(at + 1)] as const
const textOf = (text: string): string | undefined => (text.trim() === '' ? undefined : text.trim())
const numberOf = (text: string): number | undefined => (text.trim() === '' ? undefined : Number(text))
const minutesOf = (text: string): number | undefined =>
  text.trim() === '' ? undefined : Math.round(Number(text) * MINUTE_MS)
const defined = <T extends object>(fields: T): Partial<T> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Partial<T>
const unlessEmpty = <T extends object>(fields: T): T | undefined =>
  Object.keys(fields).length === 0 ? undefined : fields

/** The command that sends the same request. */
export function commandOf(spec: SandboxSpec): string {
  const { name, ...labels } = spec.metadata ?? {}
  const options: readonly (readonly [flag: string, value: string | number | undefined])[] = [
    ['name', name],
    ...Object.entries(labels).map((pair) => ['label', pair.join('=')] as const),
    ['agent-id', spec.agent_id],
    ['template', spec.template],
    ['backend', spec.backend],
    ['workspace', spec.workspace],
    ['network', spec.network?.mode],
    ...(spec.network?.allow_hosts ?? []).map((host) => ['allow-host', host] as const),
    ['cpus', spec.limits?.cpus],
    ['memory', spec.limits?.memoryMb],
    ['disk', spec.limits?.diskMb],
    ['pids', spec.limits?.pids],
    ['timeout', secondsOf(spec.timeout_ms)],
    ['idle', secondsOf(spec.idle_ms)],
  ]
  const words = options.flatMap(([flag, value]) =>
    value === undefined ? [] : [`--${flag}${argument(String(value))}`],
  )
  const line = ['ringfence sandbox create', ...words].join(' ')
  return line.length <= LINE ? line : ['ringfence sandbox create', ...words].join(' \\\n  ')
}

const secondsOf = (ms: number | undefined): number | undefined => (ms === undefined ? undefined : ms / 1000)

/** A value that begins with a dash would be read as an option. */
const argument = (value: string): string => `${value.startsWith('-') ? '=' : ' '}${shellWord(value)}`
