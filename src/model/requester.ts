/** Whose key asks a server for something: the operator's (scope `admin`), or a tenant's. */
export type Requester = { readonly tenant: string; readonly operator: boolean }

/** For what the server does by itself, such as filling its pools. */
export const OPERATOR: Requester = { tenant: '', operator: true }
