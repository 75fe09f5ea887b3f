import { touch } from '../../effects.ts'
import { asked, boxed } from '../../finding.ts'
import type { Parsed } from '../../options.ts'
import { isStatic } from '../../shell/unknown-text.ts'
import type { Call } from '../../walk.ts'
import { isPlainJq } from './filter-scripts.ts'

/** jq: a plain filter may run on the host. */
export function jqProgram(call: Call, parsed: Parsed): void {
  jqFiles(call)
  const given = parsed.options.some(({ name }) => name === '-f' || name === '--from-file')
  const program = parsed.operands[0]
  if (given || (program !== undefined && !(isStatic(program) && isPlainJq(program))))
    call.node.findings.push(boxed('programs/jq', 'a program that does more than select'))
}

/** `jq --rawfile name file`: two values for one option. */
export function jqFiles(call: Call): void {
  const { args } = call
  for (const [index, arg] of args.entries()) {
    if (!/^--(raw|slurp|arg)file/.test(arg)) continue
    const file = args[index + 2]
    if (file !== undefined) touch(call, file, 'read')
  }
  for (const arg of args) jqText(call, arg)
  if (
    args.some(
      (arg) =>
        isStatic(arg) &&
        /\$ENV|\benv\b|input_filename|\binput\b/.test(arg) &&
        /\$ENV|(^|[\s|(])env\b/.test(arg),
    )
  )
    call.node.findings.push(asked('secrets/environment', 'prints environment variables'))
}

function jqText(call: Call, arg: string): void {
  if (!/load|import|include|env|^-/.test(arg)) return
  for (const match of arg.matchAll(/\bload(?:_\w+)?\s*\(\s*(?:"([^"]*)")?/g))
    if (match[1] === undefined)
      call.node.findings.push(asked('programs/jq', 'reads a file that it chooses itself'))
    else touch(call, match[1], 'read')
  if (/\bload(_\w+)?\s*\(/.test(arg)) call.node.findings.push(boxed('programs/jq', 'reads other files'))
  if (/(^|;)\s*(import|include)\s+"/.test(arg))
    call.node.findings.push(asked('programs/jq', 'loads modules or data from other files'))
  if (call.name === 'yq' && /^(-s|--split-exp)/.test(arg))
    call.node.findings.push(boxed('programs/jq', 'writes the parts of a document'))
  if (/\b(str)?env\s*\(/.test(arg))
    call.node.findings.push(boxed('secrets/environment', 'prints environment variables'))
}
