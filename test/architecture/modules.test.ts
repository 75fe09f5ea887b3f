import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { builtinModules } from 'node:module'
import { join, normalize, posix, relative } from 'node:path'
import ts from 'typescript'
import { describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { IMPORTS, moduleOf, moduleTable } from './modules.ts'

/** Built-in modules that only some may touch; by module or by file. */
const GUARDED: Readonly<Record<string, readonly string[]>> = {
  // What attacks aim at: processes, listeners and sockets outside of the sandbox.
  child_process: ['host/process/spawn.ts', 'prove'],
  net: ['host', 'egress', 'server', 'prove'],
  dgram: ['host', 'egress', 'server', 'prove'],
  tls: ['host', 'egress', 'server'],
  http: ['host', 'egress', 'server'],
  https: ['host', 'egress', 'server'],
  http2: ['host', 'egress', 'server'],
  dns: ['host', 'egress', 'server', 'cli/check/url.ts'],
  cluster: [],
}
const PURE = ['model', 'policy', 'client']
/** `process.env` is read in one place; `prove` plants a secret in its own environment, which no sandbox may show. */
const READS_ENVIRONMENT = ['compose/compose.ts', 'prove/prove.ts']
/** The program's two entries load it from compiled code, which an import cannot (docs/decisions/0002). */
const REQUIRES = ['cli/entry/ringfence.ts', 'cli/entry/warm.ts']
const SEALS_PLANS = ['policy/plan.ts', 'model/plan.ts']

const EXCEPTIONS: Readonly<Record<string, readonly string[]>> = {
  'process.env': READS_ENVIRONMENT,
  createRequire: REQUIRES,
}

type Import = { readonly from: string; readonly names: readonly string[] }
type Source = { readonly imports: readonly Import[]; readonly uses: readonly string[] }

/** Everything that a file imports (static, dynamic, types, re-exports), and its forbidden uses. */
function read(file: string, text: string): Source {
  const imports: Import[] = []
  const uses: string[] = []
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.ES2022, true)
  const literal = (node: ts.Node | undefined): string =>
    node && ts.isStringLiteralLike(node) ? node.text : '<computed>'
  const visit = (node: ts.Node): void => {
    if (ts.isImportDeclaration(node))
      imports.push({ from: literal(node.moduleSpecifier), names: namesOf(node.importClause?.namedBindings) })
    else if (ts.isExportDeclaration(node) && node.moduleSpecifier)
      imports.push({ from: literal(node.moduleSpecifier), names: namesOf(node.exportClause) })
    else if (ts.isImportEqualsDeclaration(node)) uses.push('import =')
    else if (ts.isImportTypeNode(node))
      imports.push({
        from: literal(ts.isLiteralTypeNode(node.argument) ? node.argument.literal : undefined),
        names: ['*'],
      })
    else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword)
      imports.push({ from: literal(node.arguments[0]), names: ['*'] })
    else if (
      ts.isCallExpression(node) &&
      /^(require|createRequire|process\.(binding|getBuiltinModule))$/.test(node.expression.getText())
    )
      uses.push(node.expression.getText())
    else if (
      ts.isExportAssignment(node) ||
      (ts.isModifier(node) && node.kind === ts.SyntaxKind.DefaultKeyword)
    )
      uses.push('default export')
    else if (ts.isExportSpecifier(node) && node.name.text === 'default') uses.push('default export')
    else if (node.kind === ts.SyntaxKind.AnyKeyword) uses.push('any')
    else if (isEnvironment(node)) uses.push('process.env')
    ts.forEachChild(node, visit)
  }
  visit(source)
  return { imports, uses }
}

function namesOf(bindings: ts.NamedImportBindings | ts.NamedExportBindings | undefined): string[] {
  if (!bindings || ts.isNamespaceImport(bindings) || ts.isNamespaceExport(bindings)) return ['*']
  return bindings.elements.map((element) => (element.propertyName ?? element.name).text)
}

/** The exports of a file without a doc comment; of overloads the first one counts. */
function undocumented(file: string, text: string): string[] {
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.ES2022, true)
  const documented = new Set<string>()
  return source.statements.flatMap((statement) => {
    const isExported =
      ts.canHaveModifiers(statement) &&
      ts.getModifiers(statement)?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword)
    if (!isExported) return []
    const name = exportedName(statement)
    const isOverload = ts.isFunctionDeclaration(statement) && documented.has(name)
    if (isOverload || ts.getJSDocCommentsAndTags(statement).length > 0) {
      documented.add(name)
      return []
    }
    return [`${file}: ${name}`]
  })
}

function exportedName(statement: ts.Statement): string {
  if (ts.isVariableStatement(statement))
    return statement.declarationList.declarations[0]?.name.getText() ?? ''
  return (statement as ts.Statement & { readonly name?: ts.Identifier }).name?.text ?? ''
}

/** `process.env`, `process['env']` and `{ env } = process`. */
function isEnvironment(node: ts.Node): boolean {
  const isProcess = (one: ts.Node | undefined): boolean =>
    one !== undefined && /(^|\.)process$/.test(one.getText())
  if (ts.isPropertyAccessExpression(node)) return node.name.text === 'env' && isProcess(node.expression)
  if (ts.isElementAccessExpression(node))
    return isProcess(node.expression) && /^['"`]env/.test(node.argumentExpression.getText())
  return ts.isVariableDeclaration(node) && ts.isObjectBindingPattern(node.name) && isProcess(node.initializer)
}

const builtinOf = (from: string): string | undefined => {
  const bare = from.replace(/^node:/, '')
  return builtinModules.includes(bare) || from.startsWith('node:') ? bare : undefined
}

const permits = (places: readonly string[], file: string): boolean =>
  places.includes(file) || places.includes(moduleOf(file))

/** What is wrong with one file, a sentence each. Paths are below `src/`. */
function judge(file: string, text: string): string[] {
  const { imports, uses } = read(file, text)
  return [
    ...(moduleOf(file) in IMPORTS ? [] : [`${file}: not in a known module`]),
    ...imports.flatMap((one) => judgeImport(file, one)),
    ...uses.filter((use) => !(EXCEPTIONS[use] ?? []).includes(file)).map((use) => `${file}: ${use}`),
  ]
}

function judgeImport(file: string, { from, names }: Import): string[] {
  const wrong = (why: string): string[] => [`${file}: ${why}`]
  if (names.includes('sealPlan') && !SEALS_PLANS.includes(file)) return wrong('only policy seals plans')
  if (from === '<computed>') return wrong('imports something that cannot be read here')
  const builtin = builtinOf(from)
  if (builtin !== undefined) return judgeBuiltin(file, builtin)
  if (!from.startsWith('.'))
    return permits(IMPORTS[moduleOf(file)] ?? [], `npm:${from}`) || mayUsePackage(file, from)
      ? []
      : wrong(`imports the package ${from}`)
  if (!from.endsWith('.ts')) return wrong(`imports ${from} without its ending`)
  const to = normalize(join(posix.dirname(file), from))
  if (to.startsWith('..')) return wrong(`imports ${to} from outside`)
  const target = moduleOf(to)
  if (names.includes('*') && to === 'model/plan.ts')
    return wrong('imports all of model/plan.ts, the seal included')
  return target === moduleOf(file) || (IMPORTS[moduleOf(file)] ?? []).includes(target)
    ? []
    : wrong(`may not import ${to}`)
}

const mayUsePackage = (file: string, name: string): boolean =>
  (IMPORTS[moduleOf(file)] ?? []).includes(`npm:${name}`)

function judgeBuiltin(file: string, builtin: string): string[] {
  const top = builtin.split('/')[0] as string
  const guarded = GUARDED[top]
  if (guarded && !permits(guarded, file)) return [`${file}: may not import node:${builtin}`]
  return PURE.includes(moduleOf(file)) ? [`${file}: is pure and imports node:${builtin}`] : []
}

const SRC = join(packageRoot(), 'src')
const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' })
  .filter((name) => /\.[cm]?[jt]sx?$/.test(name))
  .map((name) => relative('.', name))
const sources = files.filter((name) => !/\.test\.ts$/.test(name))

describe('every source file', () => {
  test('is checked', () => {
    expect(sources.length).toBeGreaterThan(60)
    expect(sources.filter((name) => !name.endsWith('.ts'))).toEqual([])
    for (const module of [
      'model',
      'policy',
      'host',
      'audit',
      'backends',
      'supervisor',
      'cli',
      'compose',
      'index.ts',
    ])
      expect(sources.some((name) => moduleOf(name) === module)).toBe(true)
  })

  test('imports only what its module may import', () => {
    expect(sources.flatMap((name) => judge(name, readFileSync(join(SRC, name), 'utf8')))).toEqual([])
  })

  test('of tests has no `any` and no default export', () => {
    const wrong = files
      .filter((name) => /\.test\.ts$/.test(name))
      .flatMap((name) => {
        const { uses } = read(name, readFileSync(join(SRC, name), 'utf8'))
        return uses.filter((use) => use === 'any' || use === 'default export').map((use) => `${name}: ${use}`)
      })
    expect(wrong).toEqual([])
  })

  test('has a doc comment on every export', () => {
    const library = sources.filter((name) => !name.includes('/testkit/'))
    expect(library.flatMap((name) => undocumented(name, readFileSync(join(SRC, name), 'utf8')))).toEqual([])
  })

  test('needs its exceptions', () => {
    const uses = (name: string, use: string): boolean =>
      sources.includes(name) && read(name, readFileSync(join(SRC, name), 'utf8')).uses.includes(use)
    for (const [use, names] of Object.entries(EXCEPTIONS))
      expect(names.filter((name) => !uses(name, use))).toEqual([])
    for (const module of Object.keys(IMPORTS)) expect(IMPORTS[module]).not.toContain(module)
  })
})

const LISTED = ['src', 'guest/agent', 'guest/front', 'web/src']

/** One line for each folder: the names of its source files, without tests. */
function fileList(): string {
  const lines = LISTED.flatMap((top) => {
    const names = readdirSync(join(packageRoot(), top), { recursive: true, encoding: 'utf8' }).sort()
    const files = names.filter(
      (name) => /\.(ts|tsx|c)$/.test(name) && !/\.test\.|testkit\/|\.d\.ts$/.test(name),
    )
    const folders = new Map<string, string[]>()
    for (const name of files) {
      const folder = posix.join(top, posix.dirname(name))
      folders.set(folder, [...(folders.get(folder) ?? []), name])
    }
    return [...folders].map(
      ([folder, inside]) => `- \`${folder}/\`: ${inside.map((name) => posix.basename(name)).join(', ')}`,
    )
  })
  return `${lines.join('\n')}\n`
}

/** `UPDATE=1 npx vitest run test/architecture` writes the generated parts. */
test.each([
  ['the enforced table of modules', 'modules', moduleTable],
  ['the names of all files', 'files', fileList],
])('ARCHITECTURE.md contains %s', (_, mark, generate) => {
  const file = join(packageRoot(), 'ARCHITECTURE.md')
  const text = readFileSync(file, 'utf8')
  const [start, end] = [`<!-- ${mark}: generated -->\n`, `<!-- /${mark} -->`]
  const from = text.indexOf(start) + start.length
  const expected = text.slice(0, from) + generate() + text.slice(text.indexOf(end))
  if (process.env.UPDATE) writeFileSync(file, expected)
  else expect(text).toBe(expected)
})

test('every path that ARCHITECTURE.md names exists', () => {
  const text = readFileSync(join(packageRoot(), 'ARCHITECTURE.md'), 'utf8')
  const paths = [...text.matchAll(/`((?:src|guest|web|test|scripts|docs)\/[\w./-]+)/g)].map(
    ([, path]) => path as string,
  )
  expect(paths.length).toBeGreaterThan(80)
  expect(paths.filter((path) => !existsSync(join(packageRoot(), path)))).toEqual([])
})

describe('the module checker', () => {
  test.each<[string, string, string, string | RegExp]>([
    [
      'an import of a higher module',
      'policy/x.ts',
      "import { Gate } from '../supervisor/gate.ts'",
      'may not import supervisor/gate.ts',
    ],
    [
      'a type import of a higher module',
      'policy/x.ts',
      "import type { Gate } from '../supervisor/gate.ts'",
      /may not import/,
    ],
    [
      'a dynamic import of a higher module',
      'policy/x.ts',
      "export const f = () => import('../supervisor/gate.ts')",
      /may not import/,
    ],
    [
      'an import type of a higher module',
      'policy/x.ts',
      "export type G = import('../supervisor/gate.ts').Gate",
      /may not import/,
    ],
    [
      'a re-export of a higher module',
      'policy/x.ts',
      "export * from '../supervisor/gate.ts'",
      /may not import/,
    ],
    [
      'a named re-export of a higher module',
      'host/x.ts',
      "export { Gate } from '../supervisor/gate.ts'",
      /may not import/,
    ],
    ['a side-effect import', 'host/x.ts', "import '../backends/registry.ts'", /may not import/],
    [
      'sideways',
      'backends/a/x.ts',
      "import { p } from '../../policy/plan.ts'",
      'may not import policy/plan.ts',
    ],
    ['any import into model', 'model/x.ts', "import { run } from '../host/spawn.ts'", /may not import/],
    [
      'the composition root from a module',
      'supervisor/x.ts',
      "import { compose } from '../compose/compose.ts'",
      'may not import compose/compose.ts',
    ],
    [
      'a command from a module',
      'supervisor/x.ts',
      "import { run } from '../cli/run.ts'",
      'may not import cli/run.ts',
    ],
    [
      'a command from the root',
      'compose/compose.ts',
      "import { run } from '../cli/run.ts'",
      'may not import cli/run.ts',
    ],
    ['an import from outside src', 'host/x.ts', "import { x } from '../../test/x.ts'", /from outside/],
    ['a computed import', 'host/x.ts', 'export const f = (name: string) => import(name)', /cannot be read/],
    ['an unknown module', 'utils/x.ts', 'export const x = 1', 'not in a known module'],
    ['an unknown package', 'host/x.ts', "import x from 'left-pad'", 'imports the package left-pad'],
    [
      'a package of policy in another module',
      'host/x.ts',
      "import { parse } from 'unbash'",
      /imports the package/,
    ],
    ['an import without a file extension', 'host/x.ts', "import { x } from './spawn'", /without its ending/],
    [
      'a process',
      'backends/x.ts',
      "import { spawn } from 'node:child_process'",
      'may not import node:child_process',
    ],
    [
      'a process in the same module',
      'host/x.ts',
      "import { spawn } from 'node:child_process'",
      /child_process/,
    ],
    [
      'child_process without the node: prefix',
      'cli/x.ts',
      "import { spawn } from 'child_process'",
      /child_process/,
    ],
    ['a process at run time', 'cli/x.ts', "await import('node:child_process')", /child_process/],
    [
      'a process through createRequire',
      'cli/x.ts',
      "createRequire(import.meta.url)('child_process')",
      'createRequire',
    ],
    [
      'a process through process.getBuiltinModule',
      'cli/x.ts',
      "process.getBuiltinModule('child_process')",
      /getBuiltinModule/,
    ],
    ['a socket', 'supervisor/x.ts', "import { connect } from 'node:net'", 'may not import node:net'],
    ['a datagram', 'wasm/x.ts', "import 'node:dgram'", /node:dgram/],
    ['a name', 'cli/x.ts', "import { lookup } from 'node:dns/promises'", 'may not import node:dns/promises'],
    ['a page', 'cli/x.ts', "import { request } from 'node:https'", /node:https/],
    [
      'a file in policy',
      'policy/x.ts',
      "import { readFileSync } from 'node:fs'",
      'is pure and imports node:fs',
    ],
    ['a harmless built-in module in model', 'model/x.ts', "import { join } from 'node:path'", /is pure/],
    ['the seal', 'backends/x.ts', "import { sealPlan } from '../model/plan.ts'", 'only policy seals plans'],
    [
      'the seal under another name',
      'supervisor/x.ts',
      "import { sealPlan as s } from '../model/plan.ts'",
      /seals plans/,
    ],
    [
      'the seal through a namespace import',
      'supervisor/x.ts',
      "import * as plan from '../model/plan.ts'",
      /the seal included/,
    ],
    ['the environment', 'host/x.ts', 'export const x = process.env.HOME', 'process.env'],
    ['the environment in brackets', 'host/x.ts', "export const x = process['env']", 'process.env'],
    ['the environment by destructuring', 'host/x.ts', 'const { env } = process', 'process.env'],
    [
      'the environment through globalThis',
      'host/x.ts',
      'export const x = globalThis.process.env',
      'process.env',
    ],
    ['a default export', 'host/x.ts', 'export default 5', 'default export'],
    ['a default function', 'host/x.ts', 'export default function f() {}', 'default export'],
    ['a default by renaming', 'host/x.ts', 'const a = 1\nexport { a as default }', 'default export'],
    ['any', 'host/x.ts', 'export const x = (y: any) => y', 'any'],
    ['any inside', 'host/x.ts', 'export type X = Record<string, Array<any>>', 'any'],
  ])('reports: %s', (_, file, text, complaint) => {
    const found = judge(file, text)
    expect(found.length).toBeGreaterThan(0)
    if (typeof complaint === 'string') expect(found).toContain(`${file}: ${complaint}`)
    else expect(found.join('\n')).toMatch(complaint)
  })

  test.each<[string, string, string]>([
    [
      'an import of a lower module',
      'supervisor/x.ts',
      "import { planFor } from '../policy/plan.ts'\nimport type { Plan } from '../model/plan.ts'",
    ],
    [
      'an import in the same module',
      'policy/commands/x.ts',
      "import { planFor } from '../plan.ts'\nimport { parse } from 'unbash'",
    ],
    ['the root from a command', 'cli/x.ts', "import { compose } from '../compose/compose.ts'"],
    ['a process where it belongs', 'host/process/spawn.ts', "import { spawn } from 'node:child_process'"],
    ['the seal where it belongs', 'policy/plan.ts', "import { sealPlan } from '../model/plan.ts'"],
    ['the environment where it belongs', 'compose/compose.ts', 'export const x = process.env'],
    [
      'forbidden words in strings and comments',
      'host/x.ts',
      "// import 'node:net', any, process.env\nexport const x = \"import('node:net') any process.env\"",
    ],
    [
      'other properties of process',
      'host/x.ts',
      "export const x = [process.pid, process['platform']]\nexport const env = 1",
    ],
  ])('accepts: %s', (_, file, text) => {
    expect(judge(file, text)).toEqual([])
  })
})

/** `web/` runs in a browser: it may import our client and model, and packages that render pages and terminals. */
const WEB = join(packageRoot(), 'web', 'src')
const WEB_PACKAGES = [
  'react',
  'react-dom/client',
  '@tanstack/react-virtual',
  '@xterm/xterm',
  '@xterm/addon-fit',
  '@xterm/xterm/css/xterm.css',
]

describe('the console source', () => {
  const pages = readdirSync(WEB, { recursive: true, encoding: 'utf8' }).filter((name) => /\.tsx?$/.test(name))

  test('imports only the client and the model', () => {
    const wrong = pages.flatMap((name) => {
      const { imports, uses } = read(name, readFileSync(join(WEB, name), 'utf8'))
      return [
        ...imports
          .filter(({ from }) => {
            if (!from.startsWith('.')) return !WEB_PACKAGES.includes(from)
            const to = posix.normalize(posix.join('web/src', posix.dirname(name), from))
            return !/^(web\/src|src\/client|src\/model)\//.test(to)
          })
          .map(({ from }) => `${name}: imports ${from}`),
        ...uses.map((use) => `${name}: ${use}`),
      ]
    })
    expect(pages.length).toBeGreaterThan(20)
    expect(wrong).toEqual([])
  })

  test('never creates markup from text', () => {
    const makers =
      /dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function/
    expect(pages.filter((name) => makers.test(readFileSync(join(WEB, name), 'utf8')))).toEqual([])
  })
})
