/**
 * A small evaluator of Seatbelt profiles, for tests: the last rule that matches an operation decides.
 * It supports only what our profiles use, and throws on everything else.
 */

export type Node = string | { readonly text: string } | readonly Node[]

/** Parses a profile to nested lists; strings are distinct from symbols. */
export function parse(source: string): readonly Node[] {
  const stack: Node[][] = [[]]
  const token = /\s+|;[^\n]*|([()])|"((?:[^"\\]|\\.)*)"|([^\s()";]+)/gy
  for (let found = token.exec(source); found; found = token.exec(source)) {
    const [, bracket, text, word] = found
    if (bracket === '(') stack.push([])
    else if (bracket === ')') {
      const done = stack.pop() as Node[]
      if (stack.length === 0) throw new Error('unbalanced closing bracket')
      stack.at(-1)?.push(done)
    } else if (text !== undefined) stack.at(-1)?.push({ text: text.replace(/\\(.)/g, '$1') })
    else if (word !== undefined) stack.at(-1)?.push(word)
    if (token.lastIndex === source.length) break
  }
  if (stack.length !== 1 || token.lastIndex !== source.length) throw new Error('the profile is truncated')
  return stack[0] as readonly Node[]
}

/** An operation on a path, an address, a service or a process. */
export type Attempt = {
  readonly operation: string
  readonly path?: string
  readonly remote?: string
  readonly local?: string
  readonly service?: string
  readonly target?: string
}

const isText = (node: Node | undefined): node is { readonly text: string } =>
  typeof node === 'object' && node !== null && 'text' in node
const textOf = (node: Node | undefined): string => {
  if (!isText(node)) throw new Error('a string is missing')
  return node.text
}

const matchesOperation = (pattern: string, operation: string): boolean =>
  pattern === 'default' ||
  pattern === operation ||
  (pattern.endsWith('*') && operation.startsWith(pattern.slice(0, -1)))

const isBelow = (path: string, root: string): boolean =>
  path === root || path.startsWith(root === '/' ? '/' : `${root}/`)

function addressMatches(pattern: string, address: string | undefined): boolean {
  if (address === undefined) return false
  const [host, port] = pattern.split(':')
  const at = address.lastIndexOf(':')
  const isLocal = ['127.0.0.1', '::1', 'localhost'].includes(address.slice(0, at).replace(/[[\]]/g, ''))
  return (
    (host === '*' || (host === 'localhost' && isLocal)) && (port === '*' || port === address.slice(at + 1))
  )
}

function matchesFilter(filter: Node, attempt: Attempt): boolean {
  if (!Array.isArray(filter)) throw new Error('a filter is a list')
  const [kind, first, second] = filter as readonly Node[]
  const { path, remote, local, service, target } = attempt
  switch (kind) {
    case 'literal':
      return path === textOf(first)
    case 'subpath':
      return path !== undefined && isBelow(path, textOf(first))
    case 'regex':
      return path !== undefined && new RegExp(textOf(first)).test(path)
    case 'remote':
      return addressMatches(textOf(second), remote)
    case 'local':
      return addressMatches(textOf(second), local)
    case 'global-name':
      return service === textOf(first)
    case 'target':
      return target === first
    default:
      throw new Error(`unknown filter ${JSON.stringify(kind)}`)
  }
}

/** Whether the profile allows the operation. */
export function allows(source: string, attempt: Attempt): boolean {
  let allowed = false
  for (const node of parse(source)) {
    const [action, ...rest] = node as readonly Node[]
    if (action === 'version') continue
    if (action !== 'allow' && action !== 'deny') throw new Error(`unknown rule ${String(action)}`)
    const operations = rest.filter((part): part is string => typeof part === 'string')
    const filters = rest.filter((part) => typeof part !== 'string')
    const applies = operations.some((pattern) => matchesOperation(pattern, attempt.operation))
    if (applies && (filters.length === 0 || filters.some((filter) => matchesFilter(filter, attempt))))
      allowed = action === 'allow'
  }
  return allowed
}
