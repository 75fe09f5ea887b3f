import { accessSync, constants } from 'node:fs'
import { systemProgram } from '../../../host/system.ts'
import { SandboxError } from '../../../model/errors.ts'
import type { Driver } from './driver.ts'

type Requirement = { readonly isMet: () => boolean; readonly reason: string; readonly fix: string }

const canOpen = (path: string): boolean => {
  try {
    accessSync(path, constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}

/** What each hypervisor needs of a host, in the order in which an operator would install it. */
const REQUIREMENTS = {
  firecracker: [
    {
      isMet: () => process.platform === 'linux',
      reason: 'firecracker needs Linux',
      fix: 'set `[microvm] driver = "vz"`',
    },
    {
      isMet: () => canOpen('/dev/kvm'),
      reason: 'firecracker needs /dev/kvm, which cannot be opened',
      fix: 'enable virtualization and add the user to the group `kvm`, or set `[microvm] driver = "qemu"`',
    },
    {
      isMet: () => systemProgram('firecracker') !== undefined,
      reason: '`firecracker` is not installed',
      fix: 'install a release of Firecracker in /usr/local/bin, or set `[microvm] driver = "qemu"`',
    },
    {
      isMet: () => systemProgram('jailer') !== undefined,
      reason: '`jailer` is not installed',
      fix: 'install the jailer of the same Firecracker release in /usr/local/bin',
    },
  ],
  vz: [
    {
      isMet: () => process.platform === 'darwin',
      reason: 'vz needs macOS: it uses Apple’s Virtualization framework',
      fix: 'set `[microvm] driver = "qemu"`',
    },
    {
      isMet: () => systemProgram('vfkit') !== undefined,
      reason: '`vfkit` is not installed',
      fix: 'brew install vfkit',
    },
  ],
} satisfies Readonly<Record<string, readonly Requirement[]>>

/**
 * A hypervisor whose configuration (`firecracker.ts`, `vz.ts`) is tested against a fake only: no host that we test on can run
 * it. It can be selected, and reports what the host lacks. SECURITY: it starts no machine, because no proof exists that its
 * sandboxes hold.
 */
export class UntestedDriver implements Driver {
  readonly name: keyof typeof REQUIREMENTS

  constructor(name: keyof typeof REQUIREMENTS) {
    this.name = name
  }

  async probe(): ReturnType<Driver['probe']> {
    const missing = REQUIREMENTS[this.name].find(({ isMet }) => !isMet())
    if (missing) return { usable: false, reason: missing.reason, fix: missing.fix }
    return {
      usable: false,
      reason: `the ${this.name} driver has not passed the conformance suite on any host yet`,
      fix: 'set `[microvm] driver = "qemu"`',
    }
  }

  async fingerprint(): Promise<string> {
    return this.name
  }

  boot = (): Promise<never> => this.#refuse()
  bootTemplate = (): Promise<never> => this.#refuse()
  clone = (): Promise<never> => this.#refuse()
  restore = (): Promise<never> => this.#refuse()

  async #refuse(): Promise<never> {
    const probe = await this.probe()
    throw new SandboxError('backend-unavailable', probe.usable ? this.name : probe.reason)
  }
}
