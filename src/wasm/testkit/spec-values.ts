/** The values of the spec tests' text format, converted for the engine. */
export type SpecArgument = readonly [type: string, ...literal: string[]]

const HOST_REFERENCES = new Map<string, object>()

/** One argument of a call; `undefined` if JavaScript cannot pass it. */
export function argumentOf([type, literal = '']: SpecArgument): { readonly value: unknown } | undefined {
  switch (type) {
    case 'i32.const':
      return { value: Number(BigInt.asIntN(32, integerOf(literal))) }
    case 'i64.const':
      return { value: BigInt.asIntN(64, integerOf(literal)) }
    case 'f32.const':
    case 'f64.const':
      return { value: floatOf(literal) }
    case 'ref.null':
      return { value: null }
    case 'ref.extern': {
      const known = HOST_REFERENCES.get(literal) ?? { reference: literal }
      HOST_REFERENCES.set(literal, known)
      return { value: known }
    }
    default:
      return undefined
  }
}

function integerOf(literal: string): bigint {
  const text = literal.replaceAll('_', '')
  return /^[-+]/.test(text) ? (text[0] === '-' ? -1n : 1n) * BigInt(text.slice(1)) : BigInt(text)
}

function floatOf(literal: string): number {
  const text = literal.replaceAll('_', '')
  const sign = text.startsWith('-') ? -1 : 1
  const bare = text.replace(/^[-+]/, '')
  if (bare.startsWith('nan')) return Number.NaN
  if (bare === 'inf') return sign * Number.POSITIVE_INFINITY
  return sign * (bare.startsWith('0x') ? hexFloatOf(bare.slice(2)) : Number(bare))
}

function hexFloatOf(text: string): number {
  const [mantissa = '0', exponent = '0'] = text.toLowerCase().split('p')
  const [whole = '0', fraction = ''] = mantissa.split('.')
  const digits = Number(BigInt(`0x${whole || '0'}${fraction}`))
  return digits * 2 ** (Number(exponent) - 4 * fraction.length)
}

/** A canonical text for a value. The bits of a NaN are not preserved by JavaScript. */
export function showValue(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(showValue).join(' ')}]`
  if (typeof value === 'number') return Object.is(value, -0) ? '-0' : String(value)
  if (typeof value === 'function') return 'function'
  if (typeof value === 'object' && value !== null && 'reference' in value)
    return `host ${String(value.reference)}`
  // An object of the engine's garbage collector has no text of its own.
  if (typeof value === 'object' && value !== null) return 'object'
  return `${typeof value} ${String(value)}`
}
