import { type AddressClass, classify, parseAddress } from '../network/address.ts'
import { isInternalName, isMetadataName } from '../network/hosts.ts'
import { asked, denied, dynamic, type Finding } from './finding.ts'
import { pathFindings } from './paths.ts'
import type { Scope } from './shell/scope.ts'
import { isStatic, show } from './shell/unknown-text.ts'
import type { Walk } from './walk.ts'

/** A host that refers to this machine. */
export const isLocalHost = (host: string): boolean =>
  /^(.*\.)?localhost\.?$|^host\.docker\.internal$/i.test(host) ||
  ['loopback', 'unspecified'].includes(classOf(host) ?? '')

/** The class of an address literal; undefined for a name. */
function classOf(host: string): AddressClass | undefined {
  const bytes = parseAddress(host.replace(/^\[|\]$/g, ''))
  return bytes === undefined ? undefined : classify(bytes)
}

const isMetadata = (host: string, kind: AddressClass | undefined): boolean =>
  kind === 'metadata' || kind === 'link-local' || isMetadataName(host)

const isPrivate = (host: string, kind: AddressClass | undefined): boolean => {
  if (kind !== undefined) return !['public', 'loopback', 'unspecified', 'documentation'].includes(kind)
  return isInternalName(host) && !isLocalHost(host)
}

/** The host of a URL or address as programs write it, normalised as in browsers; undefined if there is none. */
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

/** The finding for connecting to this address, if it needs a stricter action than the program itself. */
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
  const kind = classOf(host)
  if (isMetadata(host, kind))
    return [denied('network/metadata', `\`${host}\` hands out credentials of this machine`)]
  if (isPrivate(host, kind)) return [asked('network/private', `\`${host}\` is inside the local network`)]
  return []
}

function openAddress(walk: Walk, text: string): Finding[] {
  const leaks = ['files', 'secret', 'environment', 'identity', 'decoded'].filter((source) =>
    walk.sources.has(source),
  )
  if (leaks.length > 0)
    return [denied('exfiltration/address', 'puts the output of other commands into a URL')]
  const host = hostOf(text.replace(/[\uFDD0-\uFDEF]/g, 'x'))
  if (host !== undefined && isMetadata(host, classOf(host)))
    return [denied('network/metadata', `\`${host}\` hands out credentials`)]
  return [dynamic(`talks to \`${show(text).slice(0, 60)}\`, which is known only when it runs`)]
}
