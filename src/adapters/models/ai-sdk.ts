import { OPERATIONS } from '../operations/index.ts'
import type { Result } from '../operations/operation.ts'
import type { AgentSession } from '../session.ts'
import { performLeniently } from './functions.ts'

/** Tools for the Vercel AI SDK. The caller passes the SDK's `jsonSchema`, so that we depend on no version of it. */
export function aiSdkTools<S>(
  session: AgentSession,
  jsonSchema: (schema: Record<string, unknown>) => S,
): Record<string, AiSdkTool<S>> {
  return Object.fromEntries(
    OPERATIONS.map(({ name, about, input }) => [
      name,
      {
        description: about,
        inputSchema: jsonSchema({ ...input.schema }),
        execute: async (args, { abortSignal } = {}) =>
          performLeniently(session, name, args, { signal: abortSignal }),
        toModelOutput: (given) => modelOutput(resultIn(given)),
      } satisfies AiSdkTool<S>,
    ]),
  )
}

type ModelOutput =
  | { readonly type: 'text' | 'error-text'; readonly value: string }
  | {
      readonly type: 'content'
      readonly value: (
        | { readonly type: 'text'; readonly text: string }
        | { readonly type: 'media'; readonly data: string; readonly mediaType: string }
      )[]
    }

/** A tool in the form of the Vercel AI SDK. */
export type AiSdkTool<S> = {
  readonly description: string
  readonly inputSchema: S
  readonly execute: (args: unknown, options?: { readonly abortSignal?: AbortSignal }) => Promise<Result>
  readonly toModelOutput: (given: unknown) => ModelOutput
}

/** Version 5 passes the output itself, version 6 and later an object around it. */
const resultIn = (given: unknown): Result =>
  (typeof given === 'object' && given !== null && 'output' in given && !('ok' in given)
    ? given.output
    : given) as Result

function modelOutput({ ok, text, image }: Result): ModelOutput {
  if (!image) return { type: ok ? 'text' : 'error-text', value: text }
  return {
    type: 'content',
    value: [
      { type: 'text', text },
      { type: 'media', data: image.base64, mediaType: image.mime },
    ],
  }
}
