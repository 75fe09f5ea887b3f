import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import NodeModule from 'node:module'
import { dirname } from 'node:path'
import { Script } from 'node:vm'

/**
 * Keeps V8's compiled code of our own files beside them, so that `ringfence run` does not compile half a megabyte each
 * time (newer versions of Node can do this themselves). A cache of another V8 is refused by V8 and the file compiled.
 * INVARIANT: no file of ours has an `import()` in it. Code from a cache has no callback for it; the build writes `require`.
 */

type Loaded = { exports: unknown; require(id: string): unknown }
type Compile = (this: Loaded, content: string, filename: string) => unknown
type Internals = { prototype: { _compile: Compile }; wrap(content: string): string }

const cacheOf = (filename: string): string => `${filename}.cache`

/** From here on modules of ours are compiled from their caches. With `record`, caches are written at exit instead. */
export function useCodeCache(directory: string, record = false): void {
  const internals = NodeModule as unknown as Internals
  const compileAnew = internals.prototype._compile
  const scripts: [string, Script][] = []
  internals.prototype._compile = function (this: Loaded, content, filename) {
    if (dirname(filename) !== directory) return compileAnew.call(this, content, filename)
    const cachedData = !record && existsSync(cacheOf(filename)) ? readFileSync(cacheOf(filename)) : undefined
    const script = new Script(internals.wrap(content), {
      filename,
      ...(cachedData && { cachedData }),
    })
    if (record) scripts.push([filename, script])
    const load = (id: string): unknown => this.require(id)
    return script.runInThisContext().call(this.exports, this.exports, load, this, filename, directory)
  }
  // Written at the end, when V8 knows which functions a run really needs.
  if (record)
    process.on('exit', () =>
      scripts.forEach(([name, script]) => {
        writeFileSync(cacheOf(name), script.createCachedData())
      }),
    )
}
