import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** Caches the result of a backend's probe in the state directory. Losing the cache only costs another probe. */
export function probeCache<T>(stateDir: string) {
  const file = (name: string): string => join(stateDir, 'probes', `${name}.json`)
  return {
    load(name: string, fingerprint: string): T | undefined {
      try {
        const kept = JSON.parse(readFileSync(file(name), 'utf8')) as { fingerprint: string; probe: T }
        return kept.fingerprint === fingerprint ? kept.probe : undefined
      } catch {
        return undefined
      }
    },
    save(name: string, fingerprint: string, probe: T): void {
      try {
        mkdirSync(join(stateDir, 'probes'), { recursive: true, mode: 0o700 })
        const temporary = `${file(name)}.${process.pid}`
        writeFileSync(temporary, JSON.stringify({ fingerprint, probe }), { mode: 0o600 })
        renameSync(temporary, file(name))
      } catch {
        // A cache is optional; the audit log reports a state directory that is not writable.
      }
    },
    forget(name: string): void {
      rmSync(file(name), { force: true })
    },
  }
}
