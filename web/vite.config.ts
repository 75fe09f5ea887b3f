import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'
import react from '@vitejs/plugin-react'
import { defineConfig, type Plugin } from 'vite'

const out = join(import.meta.dirname, '..', 'dist', 'web')

/** Writes a Brotli and a gzip copy of each file, so that the server does not compress at run time. */
const compressed = (): Plugin => ({
  name: 'compressed',
  apply: 'build',
  closeBundle() {
    for (const name of readdirSync(out, { recursive: true, encoding: 'utf8' })) {
      if (!/\.(js|css|html|svg)$/.test(name)) continue
      const bytes = readFileSync(join(out, name))
      const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 10 } }
      writeFileSync(join(out, `${name}.br`), brotliCompressSync(bytes, quality))
      writeFileSync(join(out, `${name}.gz`), gzipSync(bytes, { level: 9 }))
    }
  },
})

export default defineConfig({
  root: import.meta.dirname,
  base: '/console/',
  plugins: [react(), compressed()],
  build: {
    outDir: out,
    emptyOutDir: true,
    target: 'es2022',
    // No inline data and no preload script: the Content-Security-Policy permits neither.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
})
