import { chmodSync, existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { canonical } from '../audit/canonical.ts'
import { createKey, signingKeyOf, verifyKeyOf } from '../audit/chain.ts'
import { writeAtomically } from '../host/files/atomic-file.ts'
import { readPrivateFile } from '../host/secrets/private-file.ts'
import { SandboxError } from '../model/errors.ts'
import { type Infer, object, record, text } from '../model/shape.ts'
import { SIGNATURE_FILE, type SkillPackage } from './package.ts'

/** Signatures of skills (Ed25519), and the keys that the user trusts. */

const signatureShape = object({ key: text({ max: 64 }), signature: text({ max: 128 }) })
const keyShape = object({
  kty: text({ max: 8 }),
  crv: text({ max: 16 }),
  x: text({ max: 64 }),
  d: text({ max: 64 }),
})
const trustedShape = record(object({ name: text({ max: 128 }), trusted_at: text({ max: 64 }) }))

/** The keys that the user trusts, by public key. */
export type TrustedKeys = Infer<typeof trustedShape>

/** The signature of a skill: `trusted` if it is valid and its key is one that the user trusts. */
export type SkillSignature = {
  readonly state: 'unsigned' | 'invalid' | 'untrusted' | 'trusted'
  readonly key?: string
  /** The name under which the user trusts the key. */
  readonly signer?: string
}

// SECURITY: the name of the statement is signed too, so a signature of the key for anything else is no signature of a skill.
const statementOf = ({ manifest, hash }: SkillPackage): Buffer =>
  Buffer.from(
    canonical({
      statement: 'ringfence skill v1',
      name: manifest.skill.name,
      version: manifest.skill.version ?? '',
      hash,
    }),
  )

/** Signs skills with the user's own key, and checks signatures of others. */
export class SkillSignatures {
  readonly #dir: string

  constructor(stateDir: string) {
    this.#dir = join(stateDir, 'skills')
  }

  /** Writes the signature beside the manifest; returns the public key. */
  sign(skill: SkillPackage): string {
    const key = this.#ownKey()
    const signature = key.sign(statementOf(skill)).toString('base64')
    const file = join(skill.dir, SIGNATURE_FILE)
    writeAtomically(file, `${JSON.stringify({ key: key.x, signature })}\n`)
    chmodSync(file, 0o644)
    return key.x
  }

  check(skill: SkillPackage): SkillSignature {
    if (skill.signature === undefined) return { state: 'unsigned' }
    try {
      const given = signatureShape.parse(JSON.parse(skill.signature), SIGNATURE_FILE)
      const { key } = given
      const valid = verifyKeyOf(key).hasSigned(statementOf(skill), Buffer.from(given.signature, 'base64'))
      if (!valid) return { state: 'invalid', key }
      const trusted = this.trusted()
      const known = Object.hasOwn(trusted, key) ? trusted[key] : undefined
      return known ? { state: 'trusted', key, signer: known.name } : { state: 'untrusted', key }
    } catch (error) {
      if (error instanceof SandboxError && error.code === 'invalid-config') throw error
      return { state: 'invalid' }
    }
  }

  /** The keys that the user trusts. SECURITY: a file that cannot be parsed is an error and trusts nobody. */
  trusted(): TrustedKeys {
    const source = textOf(join(this.#dir, 'trusted.json'))
    if (source === undefined) return {}
    return parsed('trusted.json', () => trustedShape.parse(JSON.parse(source), 'trusted.json'))
  }

  trust(key: string, name: string): void {
    if (!isPublicKey(key))
      throw new SandboxError('invalid-input', `\`${key.slice(0, 60)}\` is not a public key`, {
        hint: 'take the key from `ringfence skill sign` or `ringfence skill verify`, and compare it with its owner',
      })
    this.#save({ ...this.trusted(), [key]: { name, trusted_at: new Date().toISOString() } })
  }

  /** Whether the key was trusted before. */
  distrust(key: string): boolean {
    const { [key]: known, ...rest } = this.trusted()
    this.#save(rest)
    return known !== undefined
  }

  #save(keys: TrustedKeys): void {
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    writeAtomically(join(this.#dir, 'trusted.json'), `${JSON.stringify(keys, null, 2)}\n`)
  }

  #ownKey(): ReturnType<typeof signingKeyOf> {
    const file = join(this.#dir, 'signing-key.json')
    if (existsSync(file)) {
      const source = readPrivateFile('the signing key of skills', file).toString()
      const { x, d } = parsed('signing-key.json', () => keyShape.parse(JSON.parse(source), file))
      return signingKeyOf({ kty: 'OKP', crv: 'Ed25519', x, d })
    }
    const json = createKey()
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    writeAtomically(file, `${JSON.stringify(json)}\n`)
    return signingKeyOf(json)
  }
}

function isPublicKey(key: string): boolean {
  if (!/^[A-Za-z0-9_-]{43}$/.test(key)) return false
  try {
    return verifyKeyOf(key).x === key
  } catch {
    return false
  }
}

function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

function parsed<T>(name: string, parse: () => T): T {
  try {
    return parse()
  } catch (cause) {
    throw new SandboxError('invalid-config', `${name} of the skills is broken`, {
      cause,
      hint: 'restore or remove it in the state directory, and trust the keys again',
    })
  }
}
