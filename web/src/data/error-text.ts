import { SandboxError } from '../../../src/model/errors.ts'

/** An error as one line for people: the message, then the hint. */
export function errorText(error: unknown): string {
  if (error instanceof SandboxError)
    return error.hint ? `${error.message}. ${capitalized(error.hint)}` : error.message
  return error instanceof Error ? error.message : String(error)
}

const capitalized = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1)
