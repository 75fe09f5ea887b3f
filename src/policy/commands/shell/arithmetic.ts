import type { Word } from 'unbash'
import { isStatic } from './unknown-text.ts'
import type { Words } from './words.ts'

/** Judges a word that bash evaluates as arithmetic: a subscript, an offset, a length. Quotes do not protect it. */
export function arithmeticText(words: Words, word: Word): void {
  for (const part of word.parts ?? []) if (part.type === 'SingleQuoted') words.runHidden(words, part.value)
  for (const part of word.parts ?? []) {
    // The value of an unquoted variable is evaluated again, including subscripts.
    const held = part.type === 'SimpleExpansion' ? words.scope.vars.get(part.text.slice(1)) : undefined
    if (held !== undefined && isStatic(held)) words.runHidden(words, held)
  }
  const text = words.expandText(words, word)
  if (isStatic(text)) words.runHidden(words, text)
  for (const [name] of text.matchAll(/[A-Za-z_]\w*/g)) {
    const known = words.scope.vars.get(name)
    if (known !== undefined && isStatic(known)) words.runHidden(words, known)
  }
}
