#!/usr/bin/env node
import { createRequire } from 'node:module'
import { dirname } from 'node:path'
import { useCodeCache } from './code-cache.ts'

/** Entry point: loads the rest of the program through the code cache. */
useCodeCache(dirname(__filename))
createRequire(__filename)('./main.cjs')
