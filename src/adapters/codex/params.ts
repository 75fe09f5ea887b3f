import { SandboxError } from '../../model/errors.ts'

/** The parameters of a request, not checked yet. */
export type Params = Readonly<Record<string, unknown>>

/** A parameter that must be text. */
export function text(params: Params, name: string): string {
  const value = params[name]
  if (typeof value !== 'string') throw new SandboxError('invalid-input', `\`${name}\` must be text`)
  return value
}

/** A parameter that is a whole number, or absent. */
export function count(params: Params, name: string, fallback: number): number {
  const value = params[name]
  if (value === undefined || value === null) return fallback
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 0)
    throw new SandboxError('invalid-input', `\`${name}\` must be a whole number, 0 or more`)
  return value
}
