/** Who sent a request to a server: the operator (scope `admin`) or a tenant. */
export type Requester = { readonly tenant: string; readonly operator: boolean }

/** The requester of the server's own actions, such as filling its pools. */
export const OPERATOR: Requester = { tenant: '', operator: true }
