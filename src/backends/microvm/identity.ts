import { randomBytes } from 'node:crypto'

/** What distinguishes a machine from the one that it was cloned from. */
export type Identity = {
  readonly token: string
  readonly hostname: string
  readonly fields: readonly string[]
}

const SEED_BYTES = 64

/**
 * Creates a new identity. SECURITY: two clones start with the same random pool; only these bytes, which are unique to a
 * machine, make them different.
 */
export function newIdentity(): Identity {
  const token = randomBytes(16).toString('hex')
  const hostname = `sandbox-${randomBytes(4).toString('hex')}`
  const named = ['token', token, 'hostname', hostname, 'machine-id', randomBytes(16).toString('hex')]
  return { token, hostname, fields: [...freshness(), ...named] }
}

/** What a resumed machine needs: the time, and fresh randomness. */
export const freshness = (): readonly string[] => [
  'seed',
  randomBytes(SEED_BYTES).toString('hex'),
  'time',
  `${Date.now()}000000`,
]

/** Encodes fields for the agent. */
export const fieldsOf = (fields: readonly string[]): Buffer =>
  Buffer.from(fields.map((field) => `${field}\0`).join(''))
