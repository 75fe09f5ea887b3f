import { GUARANTEE_NAMES } from '../guarantee.ts'
import { boolean, type Infer, number, object, oneOf } from '../shape.ts'
import { NETWORK_MODES } from '../spec.ts'
import { arrayOf, json, nullable, pageOf, string, time } from './fields.ts'

/** What an operator sees of tenants, settings and the network. */

const integer = () => number({ integer: true })

const tenantShape = object({
  name: string(),
  /** Whether the configuration has a `[[tenant]]` for it; without one the defaults apply. */
  configured: boolean(),
  /** Keys that are not revoked. */
  keys: integer(),
  /** Sandboxes that have not ended, on all servers. */
  sandboxes: integer(),
  max_sandboxes: integer(),
  backends: arrayOf(string()),
  network_modes: arrayOf(oneOf(...NETWORK_MODES)),
  /** Null: the list of the server. */
  allow_hosts: nullable(arrayOf(string())),
  host_paths: arrayOf(object({ path: string(), mode: oneOf('ro', 'rw') })),
  waive: arrayOf(oneOf(...GUARANTEE_NAMES)),
  public_ports: boolean(),
})
/** A tenant with what it may have and what it uses. */
export type TenantInfo = Infer<typeof tenantShape>
/** All tenants; `next` is always null. */
export const tenantPage = pageOf(tenantShape)

const settingShape = object({
  /** `server.port`. */
  name: string(),
  /** Null if neither the file nor a default gives one. Of a list of tables only how many it has. */
  value: json(),
  /** Whether the file sets it. */
  configured: boolean(),
  description: string(),
})
/** One setting of the configuration file. */
export type SettingInfo = Infer<typeof settingShape>
/** All settings, and the file that they come from. */
export const settingsShape = object({ file: nullable(string()), items: arrayOf(settingShape) })
/** All settings, and the file that they come from. */
export type SettingList = Infer<typeof settingsShape>

const hostTrafficShape = object({
  host: string(),
  allowed: integer(),
  blocked: integer(),
  /** How many sandboxes tried to reach it. */
  sandboxes: integer(),
  last_at: time(),
  /** Why the last blocked connection was blocked. */
  reason: nullable(string()),
})
/** The connections to one host. */
export type HostTraffic = Infer<typeof hostTrafficShape>
/** Connections by host; `since` is the oldest record that was counted. */
export const trafficShape = object({ since: nullable(time()), items: arrayOf(hostTrafficShape) })
/** Connections by host. */
export type Traffic = Infer<typeof trafficShape>
