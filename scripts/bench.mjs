/** `npm run bench`: installs the tools to compare with, if they are available, and measures all in one run. */
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { root, setup } from './setup.mjs'

setup()

const bench = join(root, 'bench')
const wanted = ['@openai', '@anthropic-ai', 'sql.js']
if (wanted.some((name) => !existsSync(join(bench, 'node_modules', name)))) {
  process.stdout.write('peers and modules: installing (about 530 MB)\n')
  const npm = spawnSync(
    'npm',
    ['install', '--no-package-lock', '--ignore-scripts', '--no-audit', '--no-fund'],
    { cwd: bench, stdio: ['ignore', 'ignore', 'inherit'] },
  )
  if (npm.status !== 0) process.stdout.write('peers: installation failed; measuring ringfence alone\n')
}
const missing = ['socat', 'rg'].filter((name) => !existsSync(`/usr/bin/${name}`))
if (missing.length > 0 && process.getuid?.() === 0 && existsSync('/usr/bin/apt-get'))
  spawnSync('apt-get', ['install', '-y', '-qq', 'socat', 'ripgrep'], { stdio: 'ignore' })

for (const part of [
  'bench.mjs',
  'proxy.mjs',
  'skills.mjs',
  'server.mjs',
  'e2b.mjs',
  'containers.mjs',
  'microvm.mjs',
]) {
  const { status } = spawnSync(process.execPath, [join(bench, part)], { cwd: root, stdio: 'inherit' })
  process.exitCode ||= status ?? 1
}
