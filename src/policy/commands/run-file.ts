import { isInWorkspace } from '../../model/files/path.ts'
import { codeFindings } from './code.ts'
import { asked, boxed, denied, unseen } from './finding.ts'
import { absolute, pathFindings } from './paths.ts'
import { fork, type Stream } from './shell/scope.ts'
import { ANY, isOpen, isStatic, show } from './shell/unknown-text.ts'
import { type Call, deeper } from './walk.ts'

/**
 * Judges running a file as a program or as code for an interpreter: `shell`, `source` (in the current shell), a language,
 * or `unknown`.
 */
export function runFile(call: Call, file: string, language: string): void {
  const { scope, walk, node } = call
  if (file === '-' || file === '/dev/stdin' || file === '/dev/fd/0' || file === '/proc/self/fd/0') {
    runStream(call, call.stdin, language)
    return
  }
  const path = absolute(file, scope.cwds[0] ?? ANY)
  const made = scope.files.get(path)
  if (made?.kind === 'content') {
    runStream(call, made.stream, language)
    return
  }
  if (isOpen(path) || !isStatic(file)) {
    node.findings.push(
      unseen('code/dynamic-file', `runs \`${show(file)}\`, which is known only when it runs`),
    )
    return
  }
  node.findings.push(
    ...pathFindings(walk, scope, file, 'read').filter(
      ({ action, rule }) => action === 'deny' || (action === 'ask' && rule.startsWith('secrets/')),
    ),
  )
  const { workspace, own = [] } = walk.context
  const inside = [workspace, ...own].some((dir) => isInWorkspace(path, dir))
  if (inside) node.findings.push(boxed('code/workspace', `runs \`${show(file)}\` from the workspace`))
  else if (/^\/(usr|opt|nix|lib|lib64)\//.test(path))
    node.findings.push(boxed('code/system', `runs \`${path}\``))
  else node.findings.push(unseen('code/outside', `runs \`${show(file)}\` from outside the workspace`))
}

/** Judges code read from a stream: downloaded code never runs, known text is inspected, anything else needs approval. */
export function runStream(call: Call, stream: Stream, language: string): void {
  const { node, walk, scope } = call
  if (stream.from.has('network')) {
    node.findings.push(denied('download/execute', 'runs downloaded code'))
    return
  }
  if (!stream.piped) {
    node.findings.push(boxed('code/interactive', 'reads its commands from the terminal'))
    return
  }
  if (!isStatic(stream.text)) {
    node.findings.push(unseen('code/stream', 'runs text that is known only when it runs'))
    if (stream.text === ANY) return
  }
  if (language === 'shell' || language === 'source' || language === 'unknown') {
    const script = stream.text.replace(/^#![^\n]*\n/, '')
    const inside = language === 'source' ? scope : fork(scope)
    deeper(walk, () => walk.source(inside, script, { ...call.stdin, text: ANY }))
    if (language === 'unknown') node.findings.push(asked('code/made', 'runs a file that the same line wrote'))
  } else
    node.findings.push(
      ...codeFindings(walk, stream.text, language),
      boxed('code/stream', 'runs code from a stream'),
    )
}
