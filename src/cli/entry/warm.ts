import { createRequire } from 'node:module'
import { dirname } from 'node:path'
import { useCodeCache } from './code-cache.ts'

/** Runs one command and writes the code cache of every file it loaded; called by the build. */
useCodeCache(dirname(__filename), true)
createRequire(__filename)('./main.cjs')
