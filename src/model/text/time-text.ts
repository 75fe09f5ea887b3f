/** The years 1 and 9999 bound what RFC 3339 and the clients' parsers can read. */
const FIRST_MS = Date.parse('0001-01-01T00:00:00.000Z')
const LAST_MS = Date.parse('9999-12-31T23:59:59.999Z')

/** A time as RFC 3339. The nearest one that can be written: a program in a sandbox may give its files any time. */
export const timeText = (ms: number): string =>
  new Date(Math.max(FIRST_MS, Math.min(LAST_MS, ms || 0))).toISOString()
