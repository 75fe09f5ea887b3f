import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'

const CIPHER = 'aes-256-gcm'
const NONCE = 12
const TAG = 16

/** Encrypts bytes so that any change is detected. They decrypt only with the same key and the same `name`. */
export function encrypt(key: Uint8Array, bytes: Uint8Array, name = ''): Buffer {
  const nonce = randomBytes(NONCE)
  const cipher = createCipheriv(CIPHER, key, nonce, { authTagLength: TAG }).setAAD(Buffer.from(name))
  const body = Buffer.concat([cipher.update(bytes), cipher.final()])
  return Buffer.concat([nonce, cipher.getAuthTag(), body])
}

/** What `encrypt` was given, or undefined for another key or name, or changed bytes. */
export function decrypt(key: Uint8Array, sealed: Uint8Array, name = ''): Buffer | undefined {
  // SECURITY: a shorter tag would be easier to forge.
  if (sealed.length < NONCE + TAG) return undefined
  const decipher = createDecipheriv(CIPHER, key, sealed.subarray(0, NONCE), { authTagLength: TAG })
  decipher.setAAD(Buffer.from(name)).setAuthTag(sealed.subarray(NONCE, NONCE + TAG))
  try {
    return Buffer.concat([decipher.update(sealed.subarray(NONCE + TAG)), decipher.final()])
  } catch {
    return undefined
  }
}
