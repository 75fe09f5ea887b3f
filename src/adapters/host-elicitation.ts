import type { HostScope } from '../model/host-question.ts'

/** How the user of a tool client is asked about a host. The same shape as the supervisor's, which adapters do not import. */
export type AskHost = (question: {
  readonly host: string
  readonly port: number
  readonly signal: AbortSignal
}) => Promise<{
  readonly state: 'approved' | 'rejected' | 'expired'
  readonly scope?: HostScope
  readonly by?: string
  readonly reason?: string
}>

/** Clients ask with a form of one field. "Always" is not among the answers: it changes the policy, which a person edits. */
export const HOST_FORM = {
  type: 'object' as const,
  properties: {
    allow: {
      type: 'string' as const,
      title: 'Allow it',
      enum: ['no', 'once', 'this sandbox'],
      default: 'no',
    },
  },
  required: ['allow'],
}

/** The answer in a form that came back; everything but a clear yes is a no. */
export function hostAnswerOf(form: { readonly action: string; readonly content?: unknown }) {
  const allow = (form.content as { readonly allow?: unknown } | undefined)?.allow
  if (form.action !== 'accept' || (allow !== 'once' && allow !== 'this sandbox'))
    return { state: 'rejected', by: 'client' } as const
  return { state: 'approved', by: 'client', scope: allow === 'once' ? 'once' : 'sandbox' } as const
}
