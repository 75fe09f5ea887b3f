import type { Duplex } from 'node:stream'
import type { Usage } from '../../backend.ts'
import type { GuestImage } from '../image/image.ts'
import type { Accelerator } from './launch.ts'

/** What a machine is started with. */
export type MachineSpec = {
  readonly image: GuestImage
  readonly memoryMb: number
  /** The machine's own writable disk; the driver opens it and never reads its content. */
  readonly disk: string
  /** A read-only drive; an image may be written to it until the guest is told to read it. */
  readonly inputs: string
  /** The host's CPU limit for the whole machine. */
  readonly cpus: number
}

/** The saved memory and state of a machine on the host's disk. */
export type MachineSnapshot = { readonly memory: string; readonly state: string }

/** A machine that runs or is paused. */
export interface Machine {
  /** The byte stream to the agent in the machine. */
  readonly channel: Duplex
  readonly pid: number
  /** Resolves with the hypervisor's output when the machine has ended. */
  readonly ended: Promise<string>
  usage(): Usage | undefined
  pause(): Promise<void>
  resume(): Promise<void>
  /** Saves the state of a paused machine and ends it. Only for machines started with `bootTemplate`. */
  save(state: string): Promise<void>
  /** Writes the memory and state of a paused machine to a file, and ends it. */
  hibernate(file: string, mostBytes: number): Promise<void>
  /** Idempotent; nothing of the machine is left. */
  kill(): Promise<void>
}

/** One hypervisor. */
export interface Driver {
  readonly name: string
  /** Why the hypervisor cannot be used here, or how it would run guests. */
  probe(): Promise<
    | { readonly usable: true; readonly accelerator: Accelerator }
    | { readonly usable: false; readonly reason: string; readonly fix: string }
  >
  /** Everything that a saved machine depends on besides its image and size: versions, flags, the host's CPU. */
  fingerprint(): Promise<string>
  boot(spec: MachineSpec): Promise<Machine>
  /** Boots a machine whose memory is a file, so that it can be saved. */
  bootTemplate(spec: MachineSpec, memory: string): Promise<Machine>
  /** Clones a saved machine; the clone is paused until `resume`. */
  clone(spec: MachineSpec, saved: MachineSnapshot): Promise<Machine>
  /** Continues a machine that `hibernate` wrote to this file; it is paused until `resume`. */
  restore(spec: MachineSpec, file: string): Promise<Machine>
}
