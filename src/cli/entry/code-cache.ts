import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import NodeModule from 'node:module'
import { dirname } from 'node:path'
import { Script } from 'node:vm'

/**
 * Stores V8's compiled code next to our built files, so that `ringfence run` does not compile half a megabyte each time
 * (newer versions of Node can do this themselves). V8 rejects a cache of another version, and the file is compiled.
 * INVARIANT: no built file contains `import()`, because cached code has no callback for it; the build emits `require`.
 */

type Loaded = { exports: unknown; require(id: string): unknown }
type Compile = (this: Loaded, content: string, filename: string) => unknown
type Internals = { prototype: { _compile: Compile }; wrap(content: string): string }

const cacheOf = (filename: string): string => `${filename}.cache`

/** Loads the modules of `directory` from their code caches from now on. With `record`, writes the caches at exit instead. */
export function useCodeCache(directory: string, record = false): void {
  const internals = NodeModule as unknown as Internals
  const compileUncached = internals.prototype._compile
  const scripts: [string, Script][] = []
  internals.prototype._compile = function (this: Loaded, content, filename) {
    if (dirname(filename) !== directory) return compileUncached.call(this, content, filename)
    const cachedData = !record && existsSync(cacheOf(filename)) ? readFileSync(cacheOf(filename)) : undefined
    const script = new Script(internals.wrap(content), {
      filename,
      ...(cachedData && { cachedData }),
    })
    if (record) scripts.push([filename, script])
    const load = (id: string): unknown => this.require(id)
    return script.runInThisContext().call(this.exports, this.exports, load, this, filename, directory)
  }
  // Written at exit, when V8 knows which functions the run used.
  if (record)
    process.on('exit', () =>
      scripts.forEach(([name, script]) => {
        writeFileSync(cacheOf(name), script.createCachedData())
      }),
    )
}
