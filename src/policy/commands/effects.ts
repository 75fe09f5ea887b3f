import { addressFindings } from './address.ts'
import { codeFindings } from './code.ts'
import { asked, boxed, denied, dynamic, type Finding, unseen } from './finding.ts'
import type { Effect, Option } from './options.ts'
import { type PathUse, pathFindings } from './paths.ts'
import { CLOSED, fork } from './shell/scope.ts'
import { isStatic, show } from './shell/unknown-text.ts'
import { type Call, deeper } from './walk.ts'

const PATHS: ReadonlySet<string> = new Set(['list', 'read', 'tree', 'write', 'delete'])

/** Applies the effect of an option to its command. */
export function applyOption(call: Call, option: Option): void {
  const { effect } = option
  if (effect === undefined) return
  const flag = effect.includes(':') ? /^(ask|deny|box):\s*(.*)$/.exec(effect) : null
  if (flag) call.node.findings.push(flagFinding(call, flag[1] as string, `\`${option.name}\` ${flag[2]}`))
  else applyValue(call, effect, option.value ?? '')
}

function flagFinding(call: Call, kind: string, reason: string): Finding {
  const rule = `${call.name}/option` as const
  if (kind === 'deny') return denied(rule, reason)
  return kind === 'ask' ? asked(rule, reason) : boxed(rule, reason)
}

/** Applies the effect of a program on one value. */
export function applyValue(call: Call, effect: Effect, value: string): void {
  if (PATHS.has(effect)) touch(call, value, effect as PathUse)
  else if (effect === 'shell') runText(call, value)
  else if (effect === 'program') runProgram(call, value)
  else if (effect === 'code') call.node.findings.push(...codeFindings(call.walk, value, call.name))
  else if (effect === 'url') call.node.findings.push(...addressFindings(call.walk, call.scope, value))
  else if (effect === 'upload' && value.startsWith('@')) touch(call, value.slice(1), 'read')
}

/** Judges the use of a path and adds the finding to the command. */
export function touch(call: Call, path: string, use: PathUse): readonly Finding[] {
  const found = pathFindings(call.walk, call.scope, path, use)
  for (const finding of found) call.node.findings.push(finding)
  return found
}

/** Judges text that the program passes to a shell. */
export function runText(call: Call, text: string): void {
  if (!isStatic(text)) {
    call.node.findings.push(unseen('shell/dynamic-code', 'runs a shell line that is known only when it runs'))
    if (text.replace(/[\uFDD0-\uFDEF]/g, '').trim() === '') return
  }
  deeper(call.walk, () => call.walk.source(fork(call.scope), text, CLOSED))
}

/** Judges a program that the tool starts itself; starting one is never treated as plain reading. */
export function runProgram(call: Call, text: string): void {
  call.node.findings.push(asked(`${call.name}/program`, `starts \`${show(text).slice(0, 60)}\``))
  if (text !== '') runText(call, text)
}

/** Records that part of the command is known only at run time. */
export function note(call: Call, reason: string): void {
  call.node.findings.push(dynamic(reason))
}
