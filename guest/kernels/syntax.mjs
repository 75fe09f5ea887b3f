/**
 * TypeScript and `import` statements for the JavaScript kernel; built into one file (`tsdown.config.ts`), because the sandbox
 * has no packages of ours.
 */
import { parse } from 'es-module-lexer/js'
import { transform } from 'sucrase'

/** Code as Node's REPL accepts it: without types and without `import` statements. */
export function prepare(code, isTypeScript) {
  return withoutImports(isTypeScript ? withoutTypes(code) : code)
}

/** Line breaks stay where they are, so that tracebacks name the right lines. */
function withoutTypes(code) {
  // An import that is not used here may be used by the next piece of code.
  return transform(code, { transforms: ['typescript'], disableESTransforms: true, keepUnusedImports: true })
    .code
}

/** Each `import` statement becomes an assignment to global names, so that the code can be run again. */
function withoutImports(code) {
  let [statements] = parse(code)
  statements = statements.filter(({ d }) => d === -1)
  let rest = 0
  let out = ''
  for (const { ss, se, n, s, e } of statements) {
    const clause = code.slice(ss + 'import'.length, s - 1).replace(/\bfrom\s*$/, '')
    const lines = code.slice(ss, se).replace(/[^\n]/g, '')
    out += code.slice(rest, ss) + assignment(clause, JSON.stringify(n ?? code.slice(s, e))) + lines
    rest = se
  }
  return out + code.slice(rest)
}

const NAME = '[\\p{ID_Start}$_][\\p{ID_Continue}$]*'
const WHOLE = new RegExp(`^\\*\\s*as\\s+(${NAME})$`, 'u')
const ONE = new RegExp(`^(${NAME}|"[^"]*"|'[^']*')(?:\\s+as\\s+(${NAME}))?$`, 'u')

function assignment(clause, from) {
  const text = clause.replace(/\/\*[\s\S]*?\*\/|\/\/[^\n]*/g, ' ').trim()
  if (text === '') return `void await import(${from});`
  const [, first = '', more = ''] = /^([^{*,]*),?\s*([\s\S]*)$/.exec(text) ?? []
  const whole = WHOLE.exec(more.trim())?.[1]
  const names = [
    ...(first.trim() ? [`default: globalThis.${first.trim()}`] : []),
    ...(whole ? [] : named(more)),
  ]
  const module = whole ? `globalThis.${whole} = await import(${from})` : `await import(${from})`
  return names.length > 0 ? `void ({ ${names.join(', ')} } = ${module});` : `void (${module});`
}

/** `{ a, b as c }` as the members of a pattern. */
function named(list) {
  return list
    .replace(/^\{|\}$/g, '')
    .split(',')
    .map((one) => one.trim())
    .filter((one) => one !== '' && !/^type\s+(?!as\b)/.test(one))
    .map((one) => {
      const [, name, alias = name] = ONE.exec(one) ?? []
      if (name === undefined) throw new SyntaxError(`cannot read the import of \`${one.slice(0, 40)}\``)
      return `${name}: globalThis.${alias}`
    })
}
