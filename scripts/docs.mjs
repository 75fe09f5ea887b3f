/** `npm run docs`: builds the documentation site into dist/docs. Its tools are installed in docs-site, for this command alone. */
import { join } from 'node:path'
import { installClients, root, run } from './setup.mjs'

const site = join(root, 'docs-site')
installClients('docs-site')
// An absolute path: VitePress looks for its own packages from there.
run(process.execPath, [join(site, 'node_modules/vitepress/bin/vitepress.js'), 'build', site])
