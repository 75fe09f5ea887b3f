import { compose, databaseUrl } from '../compose/compose.ts'
import { openStore } from '../store/open.ts'
import { audit } from './audit.ts'
import { standardIo } from './check.ts'

/** `ringfence audit`, with the real standard streams. */
export const trail = (args: readonly string[]): Promise<number> => {
  const io = standardIo(args.includes('--json'))
  return audit(args, io, async () => {
    const { config, env } = await compose()
    return openStore({ stateDir: io.home, databaseUrl: databaseUrl(config, env) })
  })
}
