import { audit } from './audit.ts'
import { standardIo } from './check.ts'

/** `ringfence audit`, with the real standard streams. */
export const trail = (args: readonly string[]): Promise<number> =>
  audit(args, standardIo(args.includes('--json')))
