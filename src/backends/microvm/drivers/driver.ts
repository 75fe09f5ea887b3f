import type { Duplex } from 'node:stream'
import type { Usage } from '../../backend.ts'
import type { GuestImage } from '../image/image.ts'
import type { Accelerator } from './launch.ts'

/** A machine that somebody wants. */
export type MachineSpec = {
  readonly image: GuestImage
  readonly memoryMb: number
  /** Its own writable disk; the driver opens it and never looks into it. */
  readonly disk: string
  /** A read-only drive; an image may be put on it until the guest is told to look. */
  readonly inputs: string
  /** What the host gives the whole machine of its processors. */
  readonly cpus: number
}

/** A machine's memory and state on the host's disk, as one moment left them. */
export type MachineSnapshot = { readonly memory: string; readonly state: string }

/** A machine that runs, or stands still. */
export interface Machine {
  /** The byte stream to the agent in it. */
  readonly channel: Duplex
  readonly pid: number
  /** Resolves when it is gone, with what the hypervisor said. */
  readonly ended: Promise<string>
  usage(): Usage | undefined
  pause(): Promise<void>
  resume(): Promise<void>
  /** Writes its state out while it stands still, and ends it. Only one that was started to become a template can. */
  save(state: string): Promise<void>
  /** Idempotent; nothing is left of it. */
  kill(): Promise<void>
}

/** One hypervisor. */
export interface Driver {
  readonly name: string
  /** Why it cannot be used here, or how it would run guests. */
  probe(): Promise<
    | { readonly usable: true; readonly accelerator: Accelerator }
    | { readonly usable: false; readonly reason: string; readonly fix: string }
  >
  /** Names everything that a saved machine depends on besides its image and size: versions, flags, the host's processor. */
  fingerprint(): Promise<string>
  boot(spec: MachineSpec): Promise<Machine>
  /** One whose memory is a file from the start, so that it can be saved. */
  bootTemplate(spec: MachineSpec, memory: string): Promise<Machine>
  /** A copy of a saved machine; it stands still until `resume`. */
  clone(spec: MachineSpec, saved: MachineSnapshot): Promise<Machine>
}
