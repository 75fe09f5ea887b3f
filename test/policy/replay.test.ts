import {
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { hostPath } from '../../src/host/files/facts.ts'
import { observePath } from '../../src/host/files/walk.ts'
import { type Config, configShape } from '../../src/model/config.ts'
import { SandboxError } from '../../src/model/errors.ts'
import { parseSpec, type Spec } from '../../src/model/spec.ts'
import { type Context, inspectArgv, inspectLine } from '../../src/policy/commands/judge.ts'
import { judgeUrl, networkPolicyOf } from '../../src/policy/network/network.ts'
import {
  DEFAULT_BLOCKED,
  DEFAULT_PROTECTED,
  judgePath,
  PATH_OPS,
  type PathFacts,
  type PathPolicy,
  type PathRequest,
} from '../../src/policy/paths/paths.ts'
import { type Facts, type Observed, pathsOf, planFor, sandboxPolicyOf } from '../../src/policy/plan.ts'
import { compilePolicy } from '../../src/policy/policy.ts'

/**
 * Every decision replays: the input is written as JSON, read back and judged again, and the decision must be the same to
 * the last reason. For paths and specs the files are gone by then, so only the recorded facts count.
 */

const rowsOf = <T>(name: string): readonly T[] =>
  readFileSync(join(import.meta.dirname, '..', 'corpus', name), 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => JSON.parse(line) as T)

const throughJson = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T

const CONFIGS: readonly Config[] = [
  {},
  {
    policy: {
      default_action: 'ask',
      rule: [{ prefix: ['git'], action: 'deny', why: 'frozen', priority: 3 }],
    },
  },
  {
    policy: {
      rule: [
        { glob: 'npm run *', action: 'allow', match: ['npm run build'] },
        { regex: '(curl|wget) .*', action: 'ask', dirs: ['/workspace'] },
      ],
    },
    commands: { allowed: ['ls', 'npm', 'git', 'cat', 'rm', 'curl', 'bash', 'python3'] },
  },
]

/** The risks that an offline sandbox on the workspace contains. */
const OFFLINE: Context['contains'] = {
  network: 'net.offline',
  publish: 'net.offline',
  loopback: 'net.offline',
  'outside-write': 'fs.write',
  'machine-read': 'fs.read',
  processes: 'proc.hidden',
  persistence: 'fs.protect',
  privileges: 'kernel.filtered',
}

describe('decisions on commands', () => {
  type Case = { readonly config: Config; readonly line: string; readonly context: Context }
  const cases: readonly Case[] = rowsOf<{ cmd: string; shell?: string }>('commands.jsonl').map(
    (row, index) => ({
      config: CONFIGS[index % CONFIGS.length] as Config,
      line: row.cmd,
      context: {
        workspace: '/workspace',
        home: '/home/agent',
        ...(row.shell === undefined ? {} : { shell: row.shell }),
        ...(index % 2 === 0 ? { cwd: '/workspace/src' } : {}),
        ...(index % 3 === 0 ? { contains: OFFLINE } : {}),
      },
    }),
  )
  const judge = ({ config, line, context }: Case) => {
    const policy = compilePolicy(configShape.parse(config, ''))
    const argv = line.split(' ')
    return [inspectLine(policy, line, context), inspectArgv(policy, argv, context)]
  }

  it('cover more than 500 commands', () => expect(cases.length).toBeGreaterThan(500))
  it('are reproduced from their records', () => {
    for (const one of cases) {
      const record = throughJson({ case: one, decided: judge(one) })
      expect(throughJson(judge(record.case)), one.line).toEqual(record.decided)
    }
  })
  it('are reproduced with only the guarantees named in the record', () => {
    const answered = cases.filter((one) => {
      const policy = compilePolicy(configShape.parse(one.config, ''))
      const { decision } = inspectLine(policy, one.line, one.context)
      const recorded = (throughJson(decision).contained ?? []).map(({ by }) => by)
      const contains = Object.assign({}, ...recorded)
      expect(inspectLine(policy, one.line, { ...one.context, contains }).decision, one.line).toEqual(decision)
      return recorded.length > 0
    })
    expect(answered.length).toBeGreaterThan(50)
  })
  it('do not depend on earlier decisions', () => {
    const policy = compilePolicy({})
    const judgeAll = (list: readonly Case[]) =>
      new Map(list.map(({ line, context }) => [line, inspectLine(policy, line, context).decision]))
    expect(judgeAll(cases.toReversed())).toEqual(judgeAll(cases))
  })
})

describe('decisions on addresses', () => {
  type Row = {
    readonly url: string
    readonly kind?: string
    readonly dns?: Record<string, string[]>
    allowlist?: string[]
  }
  it('are reproduced from their records', () => {
    const rows = rowsOf<Row>('urls.jsonl')
    expect(rows.length).toBeGreaterThan(150)
    const judge = ({ url, kind, dns = {}, allowlist }: Row) =>
      judgeUrl(
        networkPolicyOf({ allowHosts: allowlist, allowPrivate: ['10.0.0.0/8'] }),
        url,
        Object.values(dns)[0] ?? [],
        kind === 'proxy-target' ? 'proxy-target' : 'url',
      )
    for (const row of rows) {
      const record = throughJson({ row, verdict: judge(row) })
      expect(judge(record.row), row.url).toEqual(record.verdict)
    }
  })
})

/** A `Map` has no JSON form; a record has its entries. */
type RecordedFacts = Omit<Facts, 'paths'> & { readonly paths: readonly (readonly [string, Observed])[] }

describe('decisions on paths and specs', () => {
  let root = ''
  beforeAll(() => {
    root = realpathSync(mkdtempSync(join(tmpdir(), 'rf-replay-')))
    for (const dir of ['w/.git/hooks', 'w/src', 'w/.ssh', 'other/data', 'state'])
      mkdirSync(join(root, dir), { recursive: true })
    for (const file of ['w/a', 'w/src/b.ts', 'other/secret']) writeFileSync(join(root, file), 'x')
    symlinkSync('../other', join(root, 'w/link'))
    symlinkSync('nowhere', join(root, 'w/dangling'))
    symlinkSync('loop', join(root, 'w/loop'))
  })
  const away = (): void => rmSync(root, { recursive: true, force: true })
  afterAll(away)

  const NAMES = [
    ...[
      '',
      'w',
      'w/a',
      'w/src',
      'w/src/b.ts',
      'w/src/new.ts',
      'w/.git/hooks/x',
      'w/.git',
      'w/.ssh',
      'w/.ssh/id',
    ],
    ...[
      'w/link',
      'w/link/secret',
      'w/dangling',
      'w/loop',
      'w/../other/secret',
      'w/a/b',
      'other',
      'gone',
      'state',
    ],
  ]
  const policyOf = (): PathPolicy => ({
    allowed: [
      { path: join(root, 'w'), mode: 'rw' },
      { path: join(root, 'other/data'), mode: 'ro' },
    ],
    blocked: DEFAULT_BLOCKED,
    protected: DEFAULT_PROTECTED,
  })

  function pathRecords() {
    const policy = policyOf()
    return NAMES.flatMap((name) =>
      PATH_OPS.map((op) => {
        const request: PathRequest = {
          path: `${root}/${name}`,
          op,
          ...(op === 'rename' ? { to: `${root}/w/new` } : {}),
        }
        const facts: PathFacts = {
          path: observePath(request.path),
          roots: policy.allowed.map(({ path }) => observePath(path)),
          ...(request.to === undefined ? {} : { to: observePath(request.to) }),
        }
        return { policy, request, facts, verdict: judgePath(policy, request, facts) }
      }),
    )
  }

  const SPEC_CONFIGS = (): readonly Config[] => [
    {},
    {
      policy: {
        allowed_host_prefixes: [join(root, 'w')],
        max_memory_mb: 512,
        allowed_network_modes: ['offline'],
      },
    },
    { policy: { allowed_host_prefixes: [], blocked_host_patterns: ['data'] } },
  ]

  function specs(): readonly Spec[] {
    const each = NAMES.flatMap((name): readonly Spec[] => [
      { workspace: `${root}/${name}` },
      { read: [`${root}/${name}`], limits: { memoryMb: 256 } },
      { workspace: join(root, 'w'), write: [`${root}/${name}`], deny: [join(root, 'w/src')] },
      { mounts: [{ source: `${root}/${name}`, target: '/data', mode: 'ro' }], network: { mode: 'full' } },
    ])
    return [
      ...each,
      { preset: 'danger-full-access' },
      { preset: 'read-only', workspace: join(root, 'w') },
      {},
    ]
  }

  function specRecords() {
    return SPEC_CONFIGS().flatMap((config) => specs().map((spec) => specRecord(config, parseSpec(spec))))
  }

  function specRecord(config: Config, spec: Spec) {
    const policy = sandboxPolicyOf(config, '/home/agent')
    const observe = (path: string): Observed =>
      hostPath(path, (name) => policy.blocked.includes(name.toLowerCase()))
    const facts: RecordedFacts = {
      ...{
        uid: 1000,
        home: '/home/agent',
        stateDir: observe(join(root, 'state')),
        hostMemoryMb: 4096,
        cwd: root,
      },
      paths: pathsOf(policy, spec).map((path) => [path, observe(path)] as const),
    }
    return { config, spec, facts, answer: answerOf(config, spec, facts) }
  }

  function answerOf(config: Config, spec: Spec, { paths, ...facts }: RecordedFacts): unknown {
    const plan = planFor(sandboxPolicyOf(config, '/home/agent'), spec, { ...facts, paths: new Map(paths) })
    if (!(plan instanceof SandboxError)) return { plan: throughJson(plan) }
    const { code, message, hint, reasons } = plan
    return throughJson({ code, message, hint, reasons })
  }

  it('are reproduced from their records without the host', () => {
    const paths = throughJson(pathRecords())
    const planned = throughJson(specRecords())
    away()
    expect([paths.length, planned.length].every((count) => count > 100)).toBe(true)
    for (const { policy, request, facts, verdict } of paths)
      expect(judgePath(policy, request, facts), `${request.op} ${request.path}`).toEqual(verdict)
    for (const { config, spec, facts, answer } of planned)
      expect(answerOf(configShape.parse(config, ''), parseSpec(spec), facts), JSON.stringify(spec)).toEqual(
        answer,
      )
    // A replay of refusals alone would show little.
    expect(new Set(paths.map(({ verdict }) => verdict.reason)).size).toBeGreaterThan(6)
    const granted = planned.filter(({ answer }) => 'plan' in (answer as object)).length
    expect(granted).toBeGreaterThan(20)
    expect(planned.length - granted).toBeGreaterThan(20)
  })
})
