import { createRequire } from 'node:module'
import { dirname } from 'node:path'
import { useCodeCache } from './code-cache.ts'

/** Runs one command and writes the caches of all it loaded; the build calls it. */
useCodeCache(dirname(__filename), true)
createRequire(__filename)('./main.cjs')
