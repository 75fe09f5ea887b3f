import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** The site that `npm run docs` builds from README.md, docs/ and the pages beside them. */

const root = fileURLToPath(new URL('../..', import.meta.url))
const { version } = JSON.parse(readFileSync(`${root}/package.json`, 'utf8'))

const page = (text, link) => ({ text, link: `/docs/${link}` })
const group = (text, items) => ({ text, items: items.map(([name, link]) => page(name, link)) })

const sidebar = [
  {
    text: 'Start',
    items: [
      { text: 'Ringfence', link: '/' },
      page('Build an agent', 'start-agent-builders'),
      page('Coding agents', 'start-coding-agents'),
      page('Run a server', 'start-operators'),
      page('Concepts', 'concepts'),
      page('Command line', 'cli'),
      page('Agents', 'agents'),
    ],
  },
  group('Policy', [
    ['Cookbook', 'cookbook'],
    ['Configuration', 'configuration'],
    ['Network', 'network'],
    ['Protected names', 'protected-names'],
    ['Review', 'review'],
  ]),
  group('Sandboxes', [
    ['Containers and gVisor', 'containers'],
    ['MicroVMs', 'microvm'],
    ['Writable root', 'writable-root'],
    ['Remote', 'remote'],
    ['Isolation between commands', 'isolation'],
    ['The broker', 'broker'],
    ['Prove', 'prove'],
    ['Performance', 'performance'],
  ]),
  group('Server', [
    ['Server', 'server'],
    ['Production checklist', 'production'],
    ['Operations', 'operations'],
    ['Cluster', 'cluster'],
    ['Kubernetes', 'kubernetes'],
    ['Console', 'console'],
    ['Pictures of the console', 'console-pictures'],
    ['E2B clients', 'e2b'],
    ['MCP gateway', 'mcp-gateway'],
  ]),
  group('Migrate', [
    ['From E2B', 'migrate-from-e2b'],
    ['From srt', 'migrate-from-srt'],
    ['From docker run', 'migrate-from-docker-run'],
  ]),
  group('Reference', [
    ['REST API', 'rest'],
    ['Library', 'library'],
    ['Error codes', 'errors'],
  ]),
  group('More', [
    ['Skills', 'skills'],
    ['Troubleshooting', 'troubleshooting'],
  ]),
  {
    text: 'Project',
    items: ['GUARANTEES', 'SECURITY', 'ARCHITECTURE', 'CONTRIBUTING', 'CHANGELOG'].map((name) => ({
      text: name[0] + name.slice(1).toLowerCase(),
      link: `/${name}`,
    })),
  },
]

/** Directories and files of the repository are no pages: their names stay, as text. */
const isFile = (href) => /^(\.{0,2}\/)*((deploy|examples|guest)\/|(docs\/)?decisions\/?$|LICENSE$)/.test(href)

/** The README is the first page of the site. */
function adaptLinks({ tokens }) {
  for (const token of tokens.flatMap(({ children }) => children ?? [])) {
    const href = token.type === 'link_open' ? token.attrGet('href') : null
    if (href === null) continue
    if (isFile(href)) token.attrs = []
    else token.attrSet('href', href.replace(/^((?:\.\.?\/)*)README\.md/, '$1index.md'))
  }
}

/** The versions whose sites are built beside this one (scripts/docs.mjs). PLATFORM: a link out of a site must be a whole URL. */
const { RINGFENCE_DOCS_URL: url = '', RINGFENCE_DOCS_VERSIONS: versions = '' } = process.env
const versionMenu = [
  { text: 'Changes', link: '/CHANGELOG' },
  ...(url ? [{ text: 'Development', link: `${url}/`, target: '_self' }] : []),
  ...versions
    .split(' ')
    .filter(Boolean)
    .map((one) => ({ text: one, link: `${url}/${one}/`, target: '_self' })),
]

export default {
  base: process.env.RINGFENCE_DOCS_BASE ?? '/',
  title: 'Ringfence',
  description: 'Runs the commands of AI agents in a sandbox.',
  srcDir: root,
  srcExclude: ['{bench,deploy,dist,docs-site,examples,guest,policies,scripts,src,test,web}/**'],
  outDir: `${root}/dist/docs`,
  rewrites: { 'README.md': 'index.md' },
  markdown: { config: (md) => md.core.ruler.push('links', adaptLinks) },
  themeConfig: {
    search: { provider: 'local' },
    nav: [{ text: `Version ${version}`, items: versionMenu }],
    sidebar,
    outline: [2, 3],
  },
}
