import { asked, denied, dynamic, type Finding } from './finding.ts'
import { isStatic, show } from './marks.ts'
import { pathFindings } from './paths.ts'
import type { Scope } from './scope.ts'
import type { Walk } from './walk.ts'

/** Names and addresses where clouds hand out credentials. */
const METADATA =
  /^(169\.254\.\d+\.\d+|100\.100\.100\.200|192\.0\.0\.192|168\.63\.129\.16|\[fd00:ec2::254\]|\[fe80:[0-9a-f:]*\]|\[::ffff:(a9fe:[0-9a-f]+|6464:64c8|a83f:8110)\]|metadata(\.google\.internal|\.goog|\.azure\.com|\.aws\.internal|\.tencentyun\.com)?|instance-data(\.ec2\.internal)?|kubernetes\.default(\.svc.*)?)\.?$/i

const LOCAL =
  /^(localhost|.*\.localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[::1?\]|\[::ffff:7f[0-9a-f:]*\]|host\.docker\.internal|ip6-localhost)\.?$/i

const PRIVATE =
  /^(10\.\d+\.\d+\.\d+|192\.168\.\d+\.\d+|172\.(1[6-9]|2\d|3[01])\.\d+\.\d+|100\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7])\.\d+\.\d+|\[f[cd][0-9a-f]{2}:.*\]|.*\.(internal|local|lan|intranet|corp|home\.arpa))\.?$/i

export const isLocalHost = (host: string): boolean => LOCAL.test(host)

/** The host of an address as programs write it, normalised the way browsers do; undefined when it has none. */
export function hostOf(text: string): string | undefined {
  const withScheme = /^[a-z][a-z0-9+.-]*:\/\//i.test(text)
    ? text.replace(/^[a-z][a-z0-9+.-]*:/i, 'http:')
    : `http://${text}`
  try {
    return new URL(withScheme).hostname.toLowerCase()
  } catch {
    return undefined
  }
}

/** Why talking to this address is stricter than the program alone. */
export function addressFindings(walk: Walk, scope: Scope, text: string): Finding[] {
  if (!isStatic(text)) return openAddress(walk, text)
  const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(text)?.[1]?.toLowerCase()
  if (scheme === 'file')
    return pathFindings(walk, scope, decodeURI(text.replace(/^file:(\/\/[^/]*)?/i, '')), 'read')
  if (
    scheme !== undefined &&
    /^(gopher|dict|ldaps?|tftp|smbs?|telnet|rtsp|imaps?|pop3s?|smtps?|mqtt|scp|sftp|ext|fd|jar|phar|data)$/.test(
      scheme,
    )
  )
    return [asked('network/scheme', `\`${scheme}:\` reaches services that are no web servers`)]
  const host = hostOf(text)
  if (host === undefined)
    return [asked('network/address', `\`${show(text).slice(0, 60)}\` is no address we can read`)]
  if (METADATA.test(host))
    return [denied('network/metadata', `\`${host}\` hands out credentials of this machine`)]
  if (PRIVATE.test(host)) return [asked('network/private', `\`${host}\` is inside the local network`)]
  return []
}

function openAddress(walk: Walk, text: string): Finding[] {
  const leaks = ['files', 'secret', 'environment', 'identity', 'decoded'].filter((source) =>
    walk.sources.has(source),
  )
  if (leaks.length > 0)
    return [denied('exfiltration/address', 'puts output of other commands into a network address')]
  const host = hostOf(text.replace(/[\uFDD0-\uFDEF]/g, 'x'))
  if (host !== undefined && METADATA.test(host))
    return [denied('network/metadata', `\`${host}\` hands out credentials`)]
  return [dynamic(`talks to \`${show(text).slice(0, 60)}\`, which is known only when it runs`)]
}
