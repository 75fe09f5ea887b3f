import type { PolicyDescription } from '../../../src/client/console-types.ts'
import { ACTIONS } from '../../../src/model/decision.ts'
import { oneLine, plain } from '../format.ts'
import { useClient, useLive, useSnapshot } from '../live.ts'
import { useLoad } from '../load.ts'
import { Badge, Empty, Page, Panel, ScrollX, Tabs } from '../ui.tsx'
import { PolicyEdit, Suggestions } from './policy-edit.tsx'
import { PolicyTry } from './policy-try.tsx'

/** The policy: what it says, what it would say, and how to change it. */
export function Policy({ tab }: { readonly tab: string }) {
  const client = useClient()
  const { who } = useLive()
  const { policy: hash, records } = useSnapshot()
  const reloaded = records.findLast((one) => one.event === 'PolicyDecision' && one.subject === 'reload')?.seq
  const { value, error, again } = useLoad(`policy ${hash} ${reloaded}`, () => client.policy())
  const tabs = [
    ['', 'Read'],
    ['try', 'Try'],
    ...(who.operator
      ? ([
          ['edit', 'Edit'],
          ['suggestions', 'Suggestions'],
        ] as const)
      : []),
  ] as const
  return (
    <Page title="Policy" aside={value && <span className="dim mono">in force: {value.policy}</span>}>
      <Tabs label="Parts of the policy" base="/policy" current={tab} tabs={tabs} />
      <div className="tab-body">
        {error && (
          <p role="alert" className="problem">
            ✕ {error}
          </p>
        )}
        {!value && !error && <p className="dim">…</p>}
        {tab === '' && value && <Read description={value.description} />}
        {tab === 'try' && <PolicyTry rules={value?.description.rules.length ?? 0} />}
        {tab === 'edit' && who.operator && value && (
          <PolicyEdit key={value.base} policy={value} onSaved={again} />
        )}
        {tab === 'suggestions' && who.operator && <Suggestions policy={value} onSaved={again} />}
      </div>
    </Page>
  )
}

const MEANS = {
  deny: 'does not run',
  ask: 'a person approves it first',
  sandbox: 'runs, only inside a sandbox',
  allow: 'may run directly on the host',
} as const

const LIMIT_WORDS: Readonly<Record<string, string>> = {
  max_cpus: 'processors',
  max_memory_mb: 'MB of memory',
  max_disk_mb: 'MB of disk',
  max_pids: 'processes',
}

function Read({ description: of }: { readonly description: PolicyDescription }) {
  const limits = Object.entries(of.limits).filter(([, value]) => value !== null)
  return (
    <>
      <div className="columns">
        <Panel title="Commands">
          <p>
            A command that no rule knows: <Badge word={of.default_action} /> {MEANS[of.default_action]}.
          </p>
          <p>
            {of.programs === null ? (
              'Every program may be named.'
            ) : (
              <>
                Only these programs: <code>{of.programs.join(' ')}</code>
              </>
            )}
          </p>
          {of.always_sandbox.length > 0 && (
            <p>
              Always in a sandbox: <code>{of.always_sandbox.join(' ')}</code>
            </p>
          )}
          {of.never_sandbox.length > 0 && (
            <p>
              On the host unless something is found: <code>{of.never_sandbox.join(' ')}</code>
            </p>
          )}
          <p>{of.allow_interactive ? 'Terminals may be opened.' : 'No interactive terminals.'}</p>
        </Panel>
        <Panel title="Files and limits">
          <p>
            {of.allowed_host_prefixes === null ? (
              'Whoever starts a sandbox chooses what it sees, but for the names below.'
            ) : of.allowed_host_prefixes.length === 0 ? (
              'Nothing of the host may be shown.'
            ) : (
              <>
                May be shown: <code>{of.allowed_host_prefixes.join(' ')}</code> and below.
              </>
            )}
          </p>
          <p>
            Never shown: <code className="wrap">{of.blocked_host_patterns.join(' ')}</code>
          </p>
          <p>
            {limits.length === 0 ? (
              'No ceilings of the operator.'
            ) : (
              <>
                At most {limits.map(([name, value]) => `${value} ${LIMIT_WORDS[name] ?? name}`).join(', ')}.
              </>
            )}
          </p>
        </Panel>
        <Panel title="Network">
          <p>
            Modes: <code>{of.network.modes.join(' ')}</code>
          </p>
          <p>
            {of.network.allow_hosts === null ? (
              'A sandbox in mode fetch may ask for any public host.'
            ) : of.network.allow_hosts.length === 0 ? (
              'No host may be asked for.'
            ) : (
              <>
                Only these hosts: <code>{of.network.allow_hosts.join(' ')}</code>
              </>
            )}
          </p>
          {of.network.allow_private.length > 0 && (
            <p>
              Private addresses opened on purpose: <code>{of.network.allow_private.join(' ')}</code>
            </p>
          )}
          <p>Cloud metadata: never.</p>
        </Panel>
      </div>
      <Panel title="Your rules">
        {of.rules.length === 0 ? (
          <Empty title="No rule of your own yet" command="ringfence policy init">
            The built-in rules below hold. A rule of yours replaces them for the commands it matches, but
            never relaxes a hard deny:
          </Empty>
        ) : (
          <ScrollX label="Your rules">
            <table>
              <thead>
                <tr>
                  <th scope="col">Action</th>
                  <th scope="col">Matches</th>
                  <th scope="col">Why</th>
                  <th scope="col" className="num">
                    Examples
                  </th>
                  <th scope="col">Id</th>
                </tr>
              </thead>
              <tbody>
                {of.rules.map((rule) => (
                  <tr key={rule.id}>
                    <td>
                      <Badge word={rule.action} />
                    </td>
                    <td className="mono">
                      {plain(rule.matches)}
                      {rule.dirs.length > 0 && <span className="dim"> in {rule.dirs.join(', ')}</span>}
                    </td>
                    <td>{plain(rule.why)}</td>
                    <td className="num">{rule.examples}</td>
                    <td className="mono dim">{oneLine(rule.id)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </ScrollX>
        )}
      </Panel>
      <Panel title="Built in">
        <ScrollX label="Built-in rules">
          <table>
            <thead>
              <tr>
                <th scope="col">Theme</th>
                <th scope="col">Rules</th>
                <th scope="col" className="num">
                  Hard
                </th>
                <th scope="col">Among them</th>
              </tr>
            </thead>
            <tbody>
              {of.built_in.map((theme) => (
                <tr key={theme.theme}>
                  <td className="mono">{theme.theme}</td>
                  <td>
                    <div className="badges">
                      {ACTIONS.map((action) =>
                        theme.actions[action] ? (
                          <span key={action} className="nowrap">
                            {theme.actions[action]} <Badge word={action} />
                          </span>
                        ) : null,
                      )}
                    </div>
                  </td>
                  <td className="num">{theme.hard > 0 ? theme.hard : ''}</td>
                  <td className="dim">
                    {theme.what.slice(0, 3).join(', ')}
                    {theme.what.length > 3 ? ', …' : ''}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </ScrollX>
      </Panel>
    </>
  )
}
