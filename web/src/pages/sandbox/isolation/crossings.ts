import type { Wall, WallMount } from '../../../../../src/client/console-types.ts'
import { safeLine } from '../../../format.ts'

/** One line of the diagram: a resource outside the sandbox, and whether access crosses the boundary. */
export type Crossing = {
  readonly text: string
  readonly note: string
  readonly direction: 'in' | 'both' | 'out' | 'none'
  readonly title?: string
}

const MAX_ROWS = 9
const MAX_MASKS = 2
const SYSTEM_DIRECTORY = /^\/(usr|bin|sbin|lib\w*|etc|opt|nix|run|proc|dev|sys)(\/|$)/

const isSystemMount = ({ target, mode, own }: WallMount): boolean =>
  mode === 'ro' && !own && SYSTEM_DIRECTORY.test(target)

/** The host's files and sockets. System directories share one row. */
export function hostCrossings(wall: Wall): readonly Crossing[] {
  const mounts = wall.mounts ?? []
  const system = mounts.filter(isSystemMount)
  return shortened([
    ...mounts.filter((mount) => !isSystemMount(mount)).map(mountCrossing),
    ...systemCrossings(system, wall),
    ...(wall.unix_sockets ?? []).map(
      (socket): Crossing => ({ text: socket, note: 'socket', direction: 'both' }),
    ),
    ...maskCrossings(wall.masks ?? []),
    ...(wall.level === 'native' ? [] : [blocked('all other files'), blocked('processes, sockets, devices')]),
  ])
}

const blocked = (text: string): Crossing => ({ text, note: 'no access', direction: 'none' })

function mountCrossing({ target, source, mode, own, review }: WallMount): Crossing {
  return {
    text: target,
    note: own ? 'private' : review ? 'changes are reviewed' : mode === 'rw' ? 'read and write' : 'read-only',
    direction: mode === 'rw' && !review ? 'both' : 'in',
    title: source === null || source === target ? target : `${source} → ${target}`,
  }
}

function systemCrossings(mounts: readonly WallMount[], wall: Wall): readonly Crossing[] {
  const note = 'programs and libraries, read-only'
  if (mounts.length === 0) return wall.level === 'os' ? [{ text: '/usr /etc …', note, direction: 'in' }] : []
  const title = mounts.map(({ target }) => target).join('\n')
  return [{ text: `${mounts.length} system directories`, note, direction: 'in', title }]
}

function maskCrossings(masks: readonly string[]): readonly Crossing[] {
  const rows = masks
    .slice(0, MAX_MASKS)
    .map((mask): Crossing => ({ text: mask, note: 'hidden', direction: 'none' }))
  const more = masks.length - MAX_MASKS
  return more > 0 ? [...rows, { text: `${more} more`, note: 'hidden', direction: 'none' }] : rows
}

/** Hosts, secrets and ports. */
export function networkCrossings(wall: Wall): readonly Crossing[] {
  const { mode = 'offline', allow_hosts: hosts = [] } = wall.network ?? {}
  const rows: Crossing[] = []
  if (mode === 'full') rows.push({ text: 'any address', note: 'not filtered', direction: 'out' })
  if (mode === 'fetch')
    for (const host of hosts) rows.push({ text: host, note: 'through the proxy', direction: 'out' })
  for (const { name, host } of wall.secrets ?? [])
    rows.push({ text: `${name} for ${host}`, note: 'value stays outside', direction: 'none' })
  if (mode === 'loopback') rows.push({ text: 'loopback', note: 'only inside the sandbox', direction: 'none' })
  if (mode !== 'full')
    rows.push({
      text: mode === 'fetch' ? 'all other addresses' : 'all addresses',
      note: 'blocked',
      direction: 'none',
    })
  rows.push({ text: 'listening ports', note: 'with an API key', direction: 'in' })
  return shortened(rows)
}

const shortened = (rows: readonly Crossing[]): readonly Crossing[] =>
  rows.length <= MAX_ROWS
    ? rows
    : [
        ...rows.slice(0, MAX_ROWS - 1),
        { text: `${rows.length - MAX_ROWS + 1} more`, note: 'listed below', direction: 'none' },
      ]

/** What is inside the boundary, a line each. */
export function insideLines(wall: Wall): readonly string[] {
  const { limits = {} } = wall
  const limitTexts = [
    limits.cpus && `${limits.cpus} CPU`,
    limits.memoryMb && `${limits.memoryMb} MB`,
    limits.pids && `${limits.pids} processes`,
  ].filter(Boolean)
  return [
    truncateStart(safeLine(wall.cwd ?? ''), 26),
    wall.run_as ? `user ${wall.run_as.uid}` : 'unprivileged user',
    `${wall.env?.length ?? 0} environment variables, ${wall.secrets?.length ?? 0} secrets`,
    ...(limitTexts.length > 0 ? [limitTexts.join(' · ')] : []),
    `${wall.protection?.length ?? 0} protected paths`,
  ]
}

export const truncateStart = (text: string, max: number): string =>
  text.length > max ? `…${text.slice(-(max - 1))}` : text
export const truncateEnd = (text: string, max: number): string =>
  text.length > max ? `${text.slice(0, max - 1)}…` : text
