import { SandboxError } from '../../../src/model/errors.ts'
import { capitalize } from '../format.ts'

/** An error as one line for people: the message, then the hint. */
export function errorText(error: unknown): string {
  if (error instanceof SandboxError)
    return error.hint ? `${error.message}. ${capitalize(error.hint)}` : error.message
  return error instanceof Error ? error.message : String(error)
}
