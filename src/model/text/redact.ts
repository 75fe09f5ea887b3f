/** Patterns of credentials in command lines; they must not be written to the audit log. */
const SECRETS: readonly RegExp[] = [
  /\b(?:sk|pk|rk|xai|gsk)-[A-Za-z0-9_-]{16,}/g,
  /\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}/g,
  /\bgithub_pat_[A-Za-z0-9_]{20,}/g,
  /\bglpat-[A-Za-z0-9_-]{16,}/g,
  /\bnpm_[A-Za-z0-9]{20,}/g,
  /\bxox[abprs]-[A-Za-z0-9-]{10,}/g,
  /\b(?:AKIA|ASIA)[A-Z0-9]{16}\b/g,
  /\bAIza[A-Za-z0-9_-]{30,}/g,
  /(?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}/g,
  /-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)/g,
]
/**
 * `Authorization: Bearer …`, `PASSWORD=…`, `--token …`: keeps the name, removes the value.
 * SECURITY: an agent chooses the text; no pattern may be retried from the middle of a long word (quadratic time).
 */
const NAMED =
  /((?:authorization:\s*(?:bearer|basic|token)\s+)|(?:\b(?=\w*(?:password|passwd|secret|token|api_?key))\w+=)|(?:--?(?:password|token|api-key|secret)[= ]))("(?:[^"\\]|\\.)*"|'[^']*'|[^\s'"]+)/gi
const USERINFO = /(:\/\/[^\s/:@]+:)([^\s/@]+)(?=@)/g

const MASK = '«redacted»'

/** Replaces everything in a text that looks like a credential. */
export const redact = (text: string): string => masked(text, () => true)

/** One word, or the lines of a key: text that a shell reads as a plain value. */
const PLAIN_VALUE =
  /^(["']?)[\w.+/=:@~-]+\1$|^-----BEGIN [A-Z ]*-----\s+(?:[A-Za-z0-9+/=]{16,}\s+)*[A-Za-z0-9+/=]*\s*-----END [A-Z ]*-----$/

/**
 * Redacts a text that a person approves. SECURITY: its author could disguise a command as a credential (`TOKEN=$(…)`), so
 * only plain values are replaced.
 */
export const redactPlainValues = (text: string): string => masked(text, (value) => PLAIN_VALUE.test(value))

function masked(text: string, mayHide: (value: string) => boolean): string {
  const hide = (value: string): string => (mayHide(value) ? MASK : value)
  let out = text
  for (const shape of SECRETS) out = out.replace(shape, hide)
  for (const shape of [NAMED, USERINFO])
    out = out.replace(shape, (_, name: string, value: string) => name + hide(value))
  return out
}
