import type { Outcome } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'
import { parseAddress } from './network/address.ts'
import { isHostName } from './network/hosts.ts'

/** The maximum number of hosts in a hint. */
const MOST = 4
const URL_HOST = /\b(?:https?|ftp|git|ssh|wss?):\/\/(?:[^\s/@'"]*@)?([A-Za-z0-9.-]+)(?::(\d{1,5}))?/g
/** `git@host:path`, as git and scp write it. */
const SCP_HOST = /(?<![\w.@/])[\w.-]+@([A-Za-z0-9.-]+\.[A-Za-z]{2,}):/g
const REGISTRY_CLIENTS = /^(npm|npx|pnpm|yarn|bun|pip3?|pipx|uv|uvx|poetry|cargo|gem|bundle|go)$/

/**
 * Why a command could not reach the network, and the option that permits it: for a command whose network questions were
 * skipped because its sandbox has no network.
 */
export function networkHint({ contained, commands }: Decision, outcome: Outcome): string | undefined {
  const guarantee = contained?.find(({ rule, by }) => by.network && rule !== 'system/packages')?.by.network
  if (guarantee === undefined) return undefined
  const hosts = hostsIn(commands)
  const failed = outcome.kind !== 'exited' || outcome.code !== 0
  // Programs inside the sandbox are reachable, so a command that names no other host and succeeds needs no hint.
  if (hosts.length === 0 && !failed) return undefined
  const option =
    hosts.length === 0 ? '--allow-host HOST' : hosts.map((host) => `--allow-host ${host}`).join(' ')
  return `this sandbox reaches no host (${guarantee}); \`${option}\` lets the command reach ${hosts.length === 1 ? 'this host' : 'its hosts'}`
}

/** Public hosts that the commands name. */
function hostsIn(commands: Decision['commands']): readonly string[] {
  const hosts = new Set<string>()
  for (const { argv, rule } of commands) {
    const named = argv.flatMap(hostsOf)
    for (const host of named.length > 0 ? named : bareHosts(argv)) hosts.add(host)
    if (rule?.startsWith('packages/') && REGISTRY_CLIENTS.test(argv[0] ?? '')) hosts.add('@registries')
  }
  return [...hosts].slice(0, MOST)
}

/** A host that is named without a scheme: `curl example.com/x`. */
function bareHosts([program = '', ...args]: readonly string[]): readonly string[] {
  if (!/^(curl|wget|http|https|ssh|ping|telnet|nc|dig|host|nslookup)$/.test(program)) return []
  const word = args.findLast((arg) => /^[a-z0-9.-]+\.[a-z]{2,}(:\d+)?(\/.*)?$/i.test(arg))
  return word === undefined ? [] : hostsOf(`https://${word}`)
}

function hostsOf(word: string): readonly string[] {
  const found = [...word.matchAll(URL_HOST), ...word.matchAll(SCP_HOST)]
  return found.flatMap(([, name = '', port]) => {
    const host = name.toLowerCase().replace(/\.$/, '')
    if (!host.includes('.') || !isHostName(host) || parseAddress(host) !== undefined) return []
    return [port === undefined || port === '443' || port === '80' ? host : `${host}:${port}`]
  })
}
