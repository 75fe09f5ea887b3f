import { shellQuote } from '../../model/text/shell-quote.ts'
import { asked, denied, dynamic, type Finding, unseen } from './finding.ts'
import { LazyMap, type LazySet } from './lazy-map.ts'
import { outputOf } from './output.ts'
import { absolute, pathFindings } from './paths.ts'
import { familyOf, handlerOf } from './programs.ts'
import { runFile } from './run-file.ts'
import { joined, type Scope, type Stream, UNKNOWN } from './shell/scope.ts'
import { ANY, isStatic, SPLIT, show } from './shell/unknown-text.ts'
import { type Call, deeper, type Node, newNode, spend, type Walk } from './walk.ts'

/** How a command was started. */
export type Started = {
  readonly stdin: Stream
  readonly findings?: readonly Finding[]
  readonly sources?: LazySet
  /** Runs the shell function with this name, if one is defined. */
  readonly call?: ((name: string, args: readonly string[]) => CalledFunction | undefined) | undefined
}

/** The output of a shell function, and whether the name may stand for the program instead. */
export type CalledFunction = { readonly out: Stream; readonly mayBeProgram: boolean }

/** Judges one simple command and everything it starts; returns its output as far as it is known. */
export function runArgv(walk: Walk, scope: Scope, argv: readonly string[], started: Started): Stream {
  spend(walk, 5 + Math.floor(argv.length / 16))
  const node = newNode(walk, argv)
  node.cwds = scope.cwds
  if (started.findings) for (const finding of started.findings) node.findings.push(finding)
  if (started.sources) walk.sources = started.sources
  const name = argv[0] ?? ''
  const args = argv.slice(1)
  if (!isStatic(name)) return runUnknown(walk, scope, node, started)
  const called = name.includes('/') ? undefined : started.call?.(name, args)
  if (called && !called.mayBeProgram) return called.out
  const renamed = scope.names.get(name)
  if (!called && renamed === undefined)
    return runNamed({ walk, scope, node, name, args, stdin: started.stdin })
  // SECURITY: scripts ignore an alias unless an option is set, so the program itself may run too.
  const others = [called?.out, renamed && runRenamed(walk, scope, renamed, { args, started })]
  const out = runNamed({ walk, scope, node, name, args, stdin: started.stdin })
  return others.reduce<Stream>((all, one) => (one ? { ...joined(all, one), text: ANY } : all), out)
}

function runUnknown(walk: Walk, scope: Scope, node: Node, started: Started): Stream {
  const [name = '', ...args] = node.argv
  node.findings.push(
    unseen('shell/dynamic-program', `\`${show(name)}\` stands for a program that is known only when it runs`),
  )
  // An unquoted expansion can be empty; then the next word is the program.
  if (name === SPLIT && args.length > 0)
    deeper(walk, () => runArgv(walk, scope, args, { stdin: started.stdin }))
  return UNKNOWN
}

type Renamed = { readonly args: readonly string[]; readonly started: Started }

function runRenamed(walk: Walk, scope: Scope, renamed: string, { args, started }: Renamed): Stream {
  return deeper(walk, () => {
    if (renamed[0] !== '=') return runArgv(walk, scope, [renamed, ...args], { stdin: started.stdin })
    return walk.source(
      { ...scope, names: new LazyMap() },
      `${renamed.slice(1)} ${args.map(quote).join(' ')}`,
      started.stdin,
    )
  })
}

/** A word as shell source; an unknown word stays unknown. */
const quote = (text: string): string => (isStatic(text) ? shellQuote(text) : '"$UNKNOWN"')

const SYSTEM_BIN =
  /^\/(usr\/(local\/)?)?s?bin\/[^/]+$|^\/opt\/homebrew\/s?bin\/[^/]+$|^\/usr\/libexec\/.+$|^\/(usr\/)?lib(32|64|x32)?\/(.+\/)?ld[-.\w]*\.so[.\d]*$|^\/snap\/bin\/[^/]+$/
const SHELL_LINK = /^\/proc\/[^/]+\/exe$/

const PLAIN_NAME = /^[\x21-\x7e]+$/

function runNamed(call: Call): Stream {
  const { scope, node, name, args } = call
  if (!PLAIN_NAME.test(name) && !(name.includes('/') && /^[^\s]+$/.test(name)))
    node.findings.push(
      unseen('unicode/program', `\`${name.slice(0, 40)}\` is not the plain name of a program`),
    )
  if (!name.includes('/')) return runProgram(named(call, familyOf(name)), true)
  const path = absolute(name, scope.cwds[0] ?? ANY)
  if (SHELL_LINK.test(path)) return runProgram({ ...call, name: 'bash' }, true)
  const made = scope.files.get(path)
  const base = path.slice(path.lastIndexOf('/') + 1)
  if (made?.kind === 'copy') return runCopy(call, made.of, base)
  if (SYSTEM_BIN.test(path)) return runProgram({ ...call, name: familyOf(base) }, true)
  node.base = 'rules'
  runFile(call, path, 'unknown')
  // A file in the workspace may be a copy of, or a link to, the program it is named after.
  if (handlerOf(familyOf(base))) return runProgram({ ...call, name: familyOf(base) }, false)
  node.program = base
  node.canonical = [name, ...args]
  miner(call, base)
  suspicious(call)
  return UNKNOWN
}

const named = (call: Call, name: string): Call => (name === call.name ? call : { ...call, name })

function runCopy(call: Call, of: string, base: string): Stream {
  call.node.findings.push(asked('programs/copy', `a copy or link of \`${of}\``))
  const original = familyOf(of.slice(of.lastIndexOf('/') + 1))
  // A multi-call binary acts according to its own file name.
  const multi = original === 'busybox' || original === 'toybox'
  return runProgram({ ...call, name: multi ? familyOf(base) : original }, false)
}

const MINER =
  /^(xmrig|xmr-stak|minerd|cpuminer|ccminer|cgminer|bfgminer|ethminer|nbminer|lolminer|phoenixminer|t-rex|teamredminer|nanominer|srbminer)/i

/** Cryptocurrency miners. */
function miner({ node, args }: Call, base: string): void {
  if (MINER.test(base) || args.some((arg) => /^stratum\+?\w*:\/\//.test(arg)))
    node.findings.push(denied('resource/miner', 'mines a currency'))
}

function runProgram(call: Call, trusted: boolean): Stream {
  const { node, name } = call
  node.base = 'rules'
  node.program = name
  node.trusted = trusted
  // Rules are matched against this list, and nothing changes it.
  node.canonical = name === node.argv[0] ? node.argv : [name, ...call.args]
  const handler = handlerOf(name)
  if (!handler) {
    miner(call, name)
    suspicious(call)
    return outputOf(call)
  }
  const out = handler(call)
  return out ?? outputOf(call)
}

const TELLING =
  /^(rm|shred|mkfs(\.\w+)?|dd|wipefs|sudo|doas|su|curl|wget|nc|ncat|bash|sh|zsh|dash|ksh|chmod|chown|eval|find|python3?|perl|node|tee|cat|cp|mv|busybox|xargs|env)$/

/** How many arguments of an unknown program are checked; with more, a person is asked. */
const MAX_LOOKED_AT = 48

/** An unknown program may run its arguments; if running them would be denied, a person is asked. */
function suspicious({ walk, scope, node, args }: Call): void {
  if (args.length > 4 * MAX_LOOKED_AT)
    node.findings.push(unseen('programs/arguments', 'too many arguments to look at'))
  if (args.some((arg) => arg === SPLIT || arg === ANY))
    node.findings.push(dynamic('an argument is known only when it runs'))
  for (const [index, arg] of args.slice(0, MAX_LOOKED_AT).entries()) {
    const value = arg.replace(/^--?[\w-]+=/, '')
    const base = value.slice(value.lastIndexOf('/') + 1)
    const line = /\s/.test(value)
      ? value
      : TELLING.test(base)
        ? args
            .slice(index, index + 32)
            .map(quote)
            .join(' ')
        : undefined
    if (line === undefined || line.length > 2048 || walk.steps > 800) continue
    spend(walk, 20)
    if (walk.probe(scope, line) === 'deny') {
      node.findings.push(unseen('programs/unknown-launcher', `could run \`${show(line).slice(0, 60)}\``))
      return
    }
  }
  node.findings.push(...args.slice(0, MAX_LOOKED_AT).flatMap((arg) => mentioned(walk, scope, arg)))
}

/** A path passed to an unknown program counts as read at least. */
function mentioned(walk: Walk, scope: Scope, arg: string): readonly Finding[] {
  const value = arg.replace(/^-[-\w]*=/, '').replace(/^@/, '')
  if (value[0] === '-' || !/[/.]/.test(value) || value.includes('://')) return []
  return pathFindings(walk, scope, value, 'read').filter(
    (finding) => finding.action === 'deny' || finding.action === 'ask',
  )
}
