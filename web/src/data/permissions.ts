import { useIdentity } from './live-context.ts'

/** Whether the session's key may create and remove sandboxes, templates, snapshots, volumes and webhooks. */
export function useMayCreate(): boolean {
  const { operator, scopes } = useIdentity()
  return operator || scopes.includes('create')
}
