import type { RuleId } from '../../rules/risks.ts'
import { runText } from '../effects.ts'
import { asked, boxed, denied } from '../finding.ts'
import { UNKNOWN } from '../shell/scope.ts'
import { type Call, deeper, type Handler } from '../walk.ts'

/** Programs that access the session, the kernel's network configuration or the key ring. */

const refuses =
  (pattern: RegExp, rule: RuleId, why: string): Handler =>
  (call) => {
    if (pattern.test(call.args.join(' '))) call.node.findings.push(denied(rule, why))
    return undefined
  }

const asks =
  (pattern: RegExp, rule: RuleId, why: string): Handler =>
  (call) => {
    if (pattern.test(call.args.join(' '))) call.node.findings.push(asked(rule, why))
    return undefined
  }

const bus: Handler = (call) => {
  const reads = /^(--version|--help|list|status|tree|introspect|monitor)?\b/.exec(call.args[0] ?? '')?.[0]
  if (reads) call.node.findings.push(boxed('session/bus', 'looks at the services of the session'))
  else call.node.findings.push(denied('escape/bus', 'controls services outside the sandbox'))
  return UNKNOWN
}

const ip: Handler = (call) => {
  const text = call.args.filter((arg) => arg[0] !== '-').join(' ')
  const inside = call.args.indexOf('exec')
  if (/^netns? (exec|add|del|attach|set)/.test(text))
    call.node.findings.push(denied('privilege/namespaces', 'creates or enters namespaces'))
  else if (/ (add|del|delete|set|change|replace|flush|append)\b/.test(` ${text}`))
    call.node.findings.push(denied('privilege/network', 'changes the network of the machine'))
  if (inside !== -1 && call.args.length > inside + 2)
    deeper(call.walk, () => call.walk.run(call.scope, call.args.slice(inside + 2), call.stdin))
  return undefined
}

/** A terminal runs the command after `-e`, and may open its window on another machine. */
const terminal: Handler = (call: Call) => {
  const { args, node } = call
  const display = args.findIndex((arg) => /^-{1,2}display$/.test(arg))
  if (display !== -1 && !/^(unix)?:/.test(args[display + 1] ?? ''))
    node.findings.push(denied('network/reverse-shell', 'shows a terminal on another machine'))
  const at = args.findIndex((arg) => /^(-e|-x|--|--command|--execute)$/.test(arg))
  if (at !== -1) runText(call, args.slice(at + 1).join(' '))
  node.findings.push(boxed('session/terminal', 'opens a terminal'))
  return UNKNOWN
}

/** Only short pauses run on the host. */
const sleep: Handler = (call) => {
  const long = call.args.some((arg) => !/^(\d{1,3}(\.\d+)?s?|[1-5]m|0?\.\d+s?)$/.test(arg))
  if (long) call.node.findings.push(boxed('resource/endless', 'waits for a long time'))
  return undefined
}

const seq: Handler = (call) => {
  // A fraction or zero as the step, or a wide format, prints for ever or gigabytes.
  const plain = call.args.every((arg) => /^-?\d{1,6}$|^-w$|^-s[^%]{0,4}$/.test(arg))
  if (!plain || call.args.some((arg) => /^-?0+$/.test(arg) && call.args.length > 2))
    call.node.findings.push(boxed('resource/endless', 'may print without end'))
  return undefined
}

/** Programs that act on the user's session: message buses, terminals, network settings. */
export const SESSION: Readonly<Record<string, Handler>> = {
  busctl: bus,
  gdbus: bus,
  'dbus-send': bus,
  qdbus: bus,
  ip,
  ...Object.fromEntries(
    'xterm urxvt konsole gnome-terminal alacritty kitty st foot xfce4-terminal'
      .split(' ')
      .map((name) => [name, terminal]),
  ),
  ifconfig: asks(
    /\s(up|down|netmask|hw|add|del|promisc)\b/,
    'privilege/network',
    'changes the network of the machine',
  ),
  route: asks(/^(add|del)/, 'privilege/network', 'changes the network of the machine'),
  keyctl: refuses(/^(print|read|pipe|search|request|show)/, 'secrets/keyring', 'reads keys of the kernel'),
  loginctl: refuses(
    /linger|kill|terminate|lock|unlock|attach/,
    'persistence/session',
    'changes sessions of the machine',
  ),
  logrotate: asks(/./, 'system/log', 'moves or removes records'),
  sleep,
  seq,
}
