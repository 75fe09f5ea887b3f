import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Sandbox } from '../../src/supervisor/sandbox.ts'
import { canHaveRoot, type RootHost, rootHost, sh } from './root-host.ts'

/** Unmodified package managers install into the sandbox's own root, above the host's programs. */

let host: RootHost
beforeAll(async () => {
  host = await rootHost()
})
afterAll(() => host.close())

/** A Debian package with one program and a script that runs when it is installed. */
function debianPackage(dir: string, name: string): Buffer {
  const tree = join(dir, name)
  mkdirSync(join(tree, 'DEBIAN'), { recursive: true })
  mkdirSync(join(tree, 'usr/bin'), { recursive: true })
  const control = `Package: ${name}\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: a\n`
  writeFileSync(join(tree, 'DEBIAN/control'), control)
  writeFileSync(join(tree, 'DEBIAN/postinst'), `#!/bin/sh\nset -e\nadduser --system --group ${name}\n`, {
    mode: 0o755,
  })
  writeFileSync(join(tree, 'usr/bin', name), `#!/bin/sh\necho ${name} runs\n`, { mode: 0o755 })
  const file = join(dir, `${name}.deb`)
  execFileSync('dpkg-deb', ['--root-owner-group', '-b', tree, file], { stdio: 'ignore' })
  return readFileSync(file)
}

const PYPROJECT = `[project]\nname = "rf-local"\nversion = "1.0"\n`
const SETUP = `from setuptools import setup\nsetup(name="rf-local", version="1.0", py_modules=["rf_local"])\n`

describe.runIf(canHaveRoot)('installing packages', () => {
  let sandbox: Sandbox
  beforeAll(async () => {
    sandbox = await host.open()
  })
  afterAll(() => sandbox.close())

  test('works with dpkg and a package script that adds a user', { timeout: 120_000 }, async () => {
    await sandbox.files.write('/tmp/one.deb', debianPackage(host.base, 'rfone'))
    const said = await sh(
      sandbox,
      'sudo dpkg -i /tmp/one.deb && rfone && id -un rfone && dpkg -l rfone | tail -1',
    )
    expect(said).toMatch(/rfone runs\nrfone\nii {2}rfone/)
    expect(
      execFileSync('sh', ['-c', 'dpkg -l rfone 2>&1; ls /usr/bin/rfone 2>&1; true'], { encoding: 'utf8' }),
    ).toMatch(/no packages found[\s\S]*No such file/)
  })

  test('keeps our `sudo` when a package brings its own', { timeout: 120_000 }, async () => {
    await sandbox.files.write('/tmp/sudo.deb', debianPackage(host.base, 'sudo'))
    const said = await sh(sandbox, 'sudo dpkg -i /tmp/sudo.deb >/dev/null 2>&1; sudo id -un; sudo.distrib')
    expect(said).toBe('root\nsudo runs\n')
  })

  test('works with apt-get from a local repository, and so does removing', { timeout: 120_000 }, async () => {
    await sandbox.files.write('/srv/repo/two.deb', debianPackage(host.base, 'rftwo'))
    const said = await sh(
      sandbox,
      `set -e
cd /srv/repo
sudo sh -c 'cd /srv/repo && { dpkg-deb -f two.deb; echo "Filename: ./two.deb"; echo "Size: $(stat -c %s two.deb)"; echo "SHA256: $(sha256sum two.deb | cut -d" " -f1)"; } > Packages'
sudo rm -rf /etc/apt/sources.list /etc/apt/sources.list.d
echo 'deb [trusted=yes] file:/srv/repo ./' | sudo tee /etc/apt/sources.list >/dev/null
sudo apt-get -qq update
sudo DEBIAN_FRONTEND=noninteractive apt-get -qq install -y rftwo >/dev/null
rftwo
sudo apt-get -qq remove -y rftwo >/dev/null
rftwo || echo gone`,
    )
    expect(said).toMatch(/rftwo runs\n/)
    expect(said).toMatch(/gone\n/)
  })

  test('works with pip, for all users and for one user', { timeout: 120_000 }, async () => {
    await sandbox.files.write('/srv/py/pyproject.toml', PYPROJECT)
    await sandbox.files.write('/srv/py/setup.py', SETUP)
    await sandbox.files.write('/srv/py/rf_local.py', 'print("imported")\n')
    const pip = '/usr/bin/python3 -m pip install -q --no-build-isolation --no-index --no-deps'
    const said = await sh(
      sandbox,
      `/usr/bin/python3 -m pip --version >/dev/null 2>&1 || { echo no pip; exit; }
cp -r /srv/py /tmp/py; sudo ${pip} /tmp/py 2>&1; cd /; /usr/bin/python3 -c 'import rf_local; print(rf_local.__file__)'`,
    )
    expect(said).toMatch(/no pip|imported\n\/usr\/local\/lib\/python3/)
  })

  test('works with npm -g', { timeout: 120_000 }, async () => {
    const manifest = { name: 'rf-tool', version: '1.0.0', bin: { 'rf-tool': 'tool.js' } }
    await sandbox.files.write('/srv/js/package.json', JSON.stringify(manifest))
    await sandbox.files.write('/srv/js/tool.js', '#!/usr/bin/env node\nconsole.log("tool runs")\n')
    const said = await sh(
      sandbox,
      'command -v npm >/dev/null || { echo no npm; exit; }; cd /srv/js && T=$(npm pack --silent) && sudo npm install -g --offline --no-audit --silent /srv/js/$T && rf-tool',
    )
    expect(said).toMatch(/no npm|tool runs\n$/)
  })
})
