import { type Infer, number, object } from '../shape.ts'
import { arrayOf, pageOf, string } from './fields.ts'

/** Webhooks. */

const webhookFields = { id: string(), url: string(), events: arrayOf(string()) }

/** A new webhook with the secret that signs its deliveries, which is in no other answer. */
export const createdWebhookShape = object({ ...webhookFields, secret: string() })
const webhookShape = object({ ...webhookFields, failures: number({ integer: true }) })
/** All webhooks. */
export const webhookPage = pageOf(webhookShape)
/** A webhook as it is listed. */
export type WebhookInfo = Infer<typeof webhookShape>
/** A new webhook. */
export type CreatedWebhook = Infer<typeof createdWebhookShape>
