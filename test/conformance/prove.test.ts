import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { createKey, signingKeyOf } from '../../src/audit/chain.ts'
import { bubblewrap } from '../../src/backends/bubblewrap/backend.ts'
import { compose } from '../../src/compose/compose.ts'
import { ProofStore } from '../../src/host/proof-store.ts'
import { VERSION } from '../../src/model/version.ts'
import { proveBackend, storedProof } from '../../src/prove/prove.ts'
import { checkReport, reportOf, signReport } from '../../src/prove/report.ts'
import { SABOTAGES } from './sabotage.ts'
import { packageRoot, planOf } from './world.ts'

/** `ringfence prove`: its findings and their effect on sandboxes. */

const base = mkdtempSync(join(tmpdir(), 'rf-prove-'))
afterAll(() => rmSync(base, { recursive: true, force: true }))

const guest = (name: string): string => join(packageRoot(), 'dist', 'guest', name)
const isFull = process.env.RINGFENCE_FULL === '1'

/** In `npm test`, one sabotage of the mounts and one of the agent's configuration. */
const TRIED = isFull
  ? SABOTAGES
  : SABOTAGES.filter(({ name }) => /home directory can be read|sockets in mounted/.test(name))

test.each(TRIED)(
  '`ringfence prove` reports a broken guarantee when $name',
  async ({ breaks, sabotage }) => {
    const backend = bubblewrap({
      agent: guest('ringfence-agent'),
      probePlan: (isolation) => planOf({ limits: { wallMs: 10_000 }, ...(isolation ? { isolation } : {}) }),
      sabotage,
    })
    const proof = await proveBackend(backend, {
      mode: 'standard',
      probe: guest('ringfence-probe'),
      only: breaks,
    })
    const broken = storedProof(proof, 'standard', new Date()).broken
    expect(broken.some((name) => breaks.includes(name))).toBe(true)
    expect(process.env.RF_SECRET).toBeUndefined()
  },
  600_000,
)

describe('a guarantee that `ringfence prove` found broken', () => {
  const found = {
    backend: 'bubblewrap',
    time: '2026-01-01T00:00:00.000Z',
    mode: 'quick',
    proven: [],
    broken: ['fs.read'],
  } as const

  test('blocks the sandbox unless it is waived by name, and is accepted again after a later run proves it', async () => {
    const stateDir = join(base, 'state')
    const workspace = mkdtempSync(join(base, 'work-'))
    const proofs = new ProofStore(stateDir, VERSION)
    proofs.save(found)
    const env = { ...process.env, RINGFENCE_HOME: stateDir, RINGFENCE_CONFIG: '/dev/null' }
    const ringfence = await compose({ env })
    try {
      await expect(ringfence.gate.open({ workspace })).rejects.toMatchObject({
        code: 'missing-guarantee',
        message: 'bubblewrap: cannot guarantee: fs.read (`ringfence prove` found it broken here)',
      })
      await (await ringfence.gate.open({ workspace, waive: ['fs.read'] })).close()
      proofs.save({ ...found, proven: ['fs.read'], broken: [] })
      await (await ringfence.gate.open({ workspace })).close()
    } finally {
      await ringfence.close()
    }
  })

  test('is ignored for another version of Ringfence or of the backend program; a damaged proof file is an error', () => {
    const dir = join(base, 'other')
    new ProofStore(dir, '0.0.1').save(found)
    expect(new ProofStore(dir, VERSION).load('bubblewrap')).toBeUndefined()
    // A different build of the backend's program invalidates the proof.
    const programs = join(dir, 'bin')
    mkdirSync(programs)
    writeFileSync(join(programs, 'bwrap'), 'one build')
    new ProofStore(dir, VERSION, [programs]).save(found)
    expect(new ProofStore(dir, VERSION, [programs]).load('bubblewrap')).toMatchObject(found)
    writeFileSync(join(programs, 'bwrap'), 'another build')
    expect(new ProofStore(dir, VERSION, [programs]).load('bubblewrap')).toBeUndefined()
    mkdirSync(join(dir, 'proofs'), { recursive: true })
    writeFileSync(join(dir, 'proofs', 'bubblewrap.json'), '{"broken":')
    expect(() => new ProofStore(dir, VERSION).load('bubblewrap')).toThrow('is damaged')
  })
})

describe('a signed report', () => {
  const key = signingKeyOf(createKey())
  const signed = signReport(reportOf(VERSION, 'quick', new Date(), []), key)
  const found = { guarantee: 'fs.read', verdict: 'proven', held: 1, tried: 1 }
  const proof = { backend: 'x', guarantees: [found], attacks: [] }

  test('is verified from a copy, and rejected if the expected public key differs', () => {
    const copy = JSON.parse(JSON.stringify(signed))
    expect(checkReport(copy)).toMatchObject({ public_key: key.x })
    expect(checkReport(copy, signingKeyOf(createKey()).x)).toBe('it is signed with another key')
  })
  test.each([
    ['another mode', { ...signed, report: { ...signed.report, mode: 'full' } }],
    ['another key', { ...signed, public_key: signingKeyOf(createKey()).x }],
    ['another signature', { ...signed, signature: signed.signature.replace(/^./, '/') }],
  ])('with %s is rejected', (_, value) => expect(checkReport(value)).toBe('its signature is not valid'))
  test.each([
    ['no list of backends', { backends: 'x' }],
    ['a backend without results', { backends: [{ backend: 'x' }] }],
    ['numbers that are text', { backends: [{ ...proof, guarantees: [{ ...found, held: '7' }] }] }],
    ['attacks without a reason', { backends: [{ ...proof, attacks: [{ guarantee: 'x', attack: 'y' }] }] }],
    ['no kernel', { kernel: 3 }],
  ])('with a valid signature but %s is rejected', (_, changed) => {
    const report = { ...signed.report, ...changed } as unknown as typeof signed.report
    expect(checkReport(signReport(report, key))).toBe('it is not a report of this version of ringfence')
  })
  test.each([null, {}, [], 'x'])('is not recognized in %j', (value) =>
    expect(checkReport(value)).toBe('it is not a signed report'),
  )
})

test('the version constant equals the version in package.json', () =>
  expect(VERSION).toBe(JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')).version))
