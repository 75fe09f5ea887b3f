/** `ringfence/client`: everything a program needs to use a server. */
export { SandboxError } from '../model/errors.ts'
export { RingfenceClient } from './client.ts'
export { RemoteFiles, RemoteSandbox } from './sandbox.ts'
export type { TransportOptions } from './transport.ts'
export type * from './types.ts'
