#!/usr/bin/env node
import { createRequire } from 'node:module'
import { dirname } from 'node:path'
import { useCodeCache } from './code-cache.ts'

/** The program itself: everything else is loaded from compiled code. */
useCodeCache(dirname(__filename))
createRequire(__filename)('./main.cjs')
