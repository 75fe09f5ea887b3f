/** How much a JSON text may contain. */
export type JsonLimits = { readonly depth: number; readonly values: number }

/**
 * What a JSON text exceeds. SECURITY: counted without parsing: a deep text overflows the stack of whatever handles its value,
 * and an empty array of two characters takes forty bytes once it is parsed.
 */
export function exceededBy(text: string, limits: JsonLimits): keyof JsonLimits | undefined {
  let depth = 0
  let values = 1
  let quoted = false
  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at)
    if (quoted) {
      if (char === BACKSLASH) at++
      else if (char === QUOTE) quoted = false
    } else if (char === QUOTE) quoted = true
    else if (char === COMMA) values++
    else if (char === BRACE || char === BRACKET) {
      values++
      if (++depth > limits.depth) return 'depth'
    } else if (char === BRACE_END || char === BRACKET_END) depth--
    if (values > limits.values) return 'values'
  }
  return undefined
}

const [QUOTE, COMMA, BRACKET, BACKSLASH, BRACKET_END, BRACE, BRACE_END] = [34, 44, 91, 92, 93, 123, 125]
