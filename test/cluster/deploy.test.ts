import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'smol-toml'
import { expect, test } from 'vitest'
import { configShape } from '../../src/model/config.ts'
import { packageRoot } from '../conformance/world.ts'

/** The examples for engines: their settings exist, and their dashboard shows metrics that exist. */

const read = (...path: string[]): string => readFileSync(join(packageRoot(), 'deploy', ...path), 'utf8')

test('the example configurations are valid, also with the variables of the containers', () => {
  const kubernetes =
    /ringfence\.toml: \|\n((?: {4}.*\n?)+)/.exec(read('kubernetes', 'base', 'config.yaml'))?.[1] ?? ''
  for (const text of [kubernetes.replace(/^ {4}/gm, ''), read('swarm', 'ringfence.toml')]) {
    const added = `${text.trimEnd()}\nurl = "https://10.0.0.1:4300"\nname = "pod"\n`
    expect(configShape.parse(parse(added), '').cluster).toMatchObject({
      url: 'https://10.0.0.1:4300',
      name: 'pod',
    })
  }
})

test('the cluster key is mounted readable by its owner only', () => {
  expect(read('swarm', 'stack.yml')).toMatch(/source: ringfence_cluster_key\n\s+mode: 0400/)
  for (const file of ['api.yaml', 'node.yaml'])
    expect(read('kubernetes', 'base', file)).toMatch(/secretName: ringfence, defaultMode: 0400/)
})

test('every command and flag in the examples exists', () => {
  const all = [
    read('swarm', 'stack.yml'),
    read('kubernetes', 'base', 'api.yaml'),
    read('kubernetes', 'base', 'node.yaml'),
  ]
  const help = readFileSync(join(packageRoot(), 'src', 'cli', 'server', 'serve.ts'), 'utf8')
  for (const text of [...all, read('systemd', 'ringfence.service')])
    for (const [, line = ''] of text.matchAll(/ringfence serve (.*)$/gm))
      for (const [, flag] of line.matchAll(/--([\w-]+)/g))
        if (flag !== 'config') expect(help, flag).toMatch(new RegExp(`'?${flag}'?: \\{ type`))
})

test('every metric in the dashboard exists', () => {
  const dashboard = read('grafana', 'ringfence-cluster.json')
  const sources = ['compose/serve-cluster.ts', 'server/cluster/create-router.ts', 'server/cluster/router.ts']
  const ours = [...sources, 'supervisor/telemetry/sandbox-gauges.ts', 'supervisor/lifecycle/takeover.ts']
    .map((file) => readFileSync(join(packageRoot(), 'src', file), 'utf8'))
    .join('\n')
  const names = new Set([...dashboard.matchAll(/ringfence_\w+/g)].map(([name]) => name))
  expect(names.size).toBeGreaterThan(8)
  for (const name of names) expect(ours, name).toContain(`'${name}'`)
})
