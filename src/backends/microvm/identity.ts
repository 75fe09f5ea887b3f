import { randomBytes } from 'node:crypto'

/** Who a machine is; what it was cloned from had another one. */
export type Identity = {
  readonly token: string
  readonly hostname: string
  readonly fields: readonly string[]
}

const SEED_BYTES = 64

/**
 * A new one each time. SECURITY: two clones begin with the same random pool; only these bytes, which no other machine ever
 * gets, tell them apart.
 */
export function newIdentity(): Identity {
  const token = randomBytes(16).toString('hex')
  const hostname = `sandbox-${randomBytes(4).toString('hex')}`
  const named = ['token', token, 'hostname', hostname, 'machine-id', randomBytes(16).toString('hex')]
  return { token, hostname, fields: [...freshness(), ...named] }
}

/** What a machine that stood still needs: the time, and randomness that nobody could have read meanwhile. */
export const freshness = (): readonly string[] => [
  'seed',
  randomBytes(SEED_BYTES).toString('hex'),
  'time',
  `${Date.now()}000000`,
]

export const fieldsOf = (fields: readonly string[]): Buffer =>
  Buffer.from(fields.map((field) => `${field}\0`).join(''))
