import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { ClusterKey } from '../cluster/identity.ts'
import type { Store } from '../store/sql.ts'
import { loadSandboxTokens, SandboxTokens } from '../supervisor/access/sandbox-tokens.ts'
import { loadWebhookKey, sealStoredSecrets, WebhookSecrets } from '../supervisor/telemetry/webhook-secrets.ts'
import { clusterKeyFile, type Ringfence } from './compose.ts'
import type { Membership } from './serve-cluster.ts'

/** The server's own secrets; all nodes of a cluster derive the same ones. */
export async function secretsOf(
  ringfence: Ringfence,
  store: Store,
  membership: Membership | undefined,
  log: (line: string) => void = () => {},
): Promise<{ readonly tokens: SandboxTokens; readonly webhookSecrets: WebhookSecrets }> {
  const tokens = membership
    ? new SandboxTokens(membership.key.derive('sandbox tokens'))
    : loadSandboxTokens(join(ringfence.stateDir, 'sandbox-tokens.key'))
  const webhookSecrets = webhookSecretsOf(ringfence, membership)
  await sealStoredSecrets(store, webhookSecrets, log)
  return { tokens, webhookSecrets }
}

const WEBHOOK_PURPOSE = 'webhook secrets'

/** All nodes of a cluster derive the same key; a server that joins or leaves one can still read what it stored before. */
export function webhookSecretsOf(
  { config, stateDir }: Ringfence,
  membership: Membership | undefined,
): WebhookSecrets {
  const file = join(stateDir, 'webhook-secrets.key')
  const cluster = membership?.key ?? ClusterKey.load(clusterKeyFile(config, stateDir))
  const shared = cluster?.derive(WEBHOOK_PURPOSE)
  if (membership && shared) return new WebhookSecrets(shared, existsSync(file) ? [loadWebhookKey(file)] : [])
  return new WebhookSecrets(loadWebhookKey(file), shared ? [shared] : [])
}
