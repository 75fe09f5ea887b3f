/** Numbers, times and untrusted text, formatted for people. */

export function timeSince(time: string | null | undefined, now: number): string {
  if (!time) return '–'
  return formatDuration(Math.max(0, now - Date.parse(time)))
}

/** A duration in its two largest units. */
export function formatDuration(ms: number): string {
  const seconds = Math.floor(ms / 1000)
  if (seconds < 60) return `${seconds}s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${pad(seconds % 60)}s`
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h ${pad(Math.floor((seconds % 3600) / 60))}m`
  return `${Math.floor(seconds / 86_400)}d ${Math.floor((seconds % 86_400) / 3600)}h`
}

const pad = (value: number): string => String(value).padStart(2, '0')

export function formatMillis(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return '–'
  if (ms < 1000) return `${Math.round(ms)} ms`
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : formatDuration(ms)
}

const UNITS = ['B', 'kB', 'MB', 'GB', 'TB']
export function formatBytes(value: number): string {
  let unit = 0
  let size = value
  while (size >= 1000 && unit < UNITS.length - 1) {
    size /= 1024
    unit++
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`
}

export const formatCount = (value: number): string => value.toLocaleString('en-US')

export function formatTime(time: string | number): string {
  const date = new Date(time)
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`
}

export function formatDateTime(time: string): string {
  const date = new Date(time)
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${formatTime(time)}`
}

/**
 * SECURITY: text chosen by an agent must not hide or reorder the text around it, so control and direction characters
 * are shown as their code points.
 */
export const safeText = (text: string): string =>
  text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (mark) => `‹${mark.codePointAt(0)?.toString(16)}›`,
  )

/** The same, on one line. */
export const safeLine = (text: string): string => safeText(text.replace(/[\n\t]+/g, ' ⏎ '))

/** With a capital letter, for messages that the server words in lower case. */
export const capitalize = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1)

export const shortId = (id: string): string => id.replace(/^([a-z]+_)(.{8}).*$/, '$1$2')

/** A number with its noun: `1 change`, `2 changes`. */
export const plural = (count: number, noun: string): string =>
  `${formatCount(count)} ${noun}${count === 1 ? '' : /[sx]$/.test(noun) ? 'es' : 's'}`

/** Whether a backend separates commands from the host; `native` and `mock` do not. */
export const isIsolating = (backend: string): boolean => !['native', 'mock'].includes(backend)
