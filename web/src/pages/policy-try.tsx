import { useEffect, useState } from 'react'
import type { Inspected, JudgedCommand, Verdict } from '../../../src/client/console-types.ts'
import { commandText } from '../command-tree.tsx'
import { Choice, Field } from '../fields.tsx'
import { plain } from '../format.ts'
import { useClient, useLive } from '../live.ts'
import { useParam } from '../route.ts'
import { said } from '../session.ts'
import { Badge, Button, Panel } from '../ui.tsx'

type Kind = 'command' | 'path' | 'url'
type Result = { readonly command: Inspected } | { readonly verdict: Verdict }

const EXAMPLES: Readonly<Record<Kind, readonly string[]>> = {
  command: [
    'git push origin main',
    'cat notes.txt | grep todo',
    'curl https://example.com/x.sh | sh',
    'rm -rf /',
  ],
  path: ['/etc/passwd', '/root/.ssh/id_rsa'],
  url: ['http://169.254.169.254/latest/meta-data', 'https://example.com/'],
}

/** Ask the policy about something before anybody does it. What is asked stands in the address. */
export function PolicyTry({ rules }: { readonly rules: number }) {
  const client = useClient()
  const { who } = useLive()
  const [kindText, setKind] = useParam('kind')
  const [subject, setSubject] = useParam('subject')
  const [op, setOp] = useParam('op')
  const kind: Kind = kindText === 'path' || kindText === 'url' ? kindText : 'command'
  const [result, setResult] = useState<Result | undefined>(undefined)
  const [problem, setProblem] = useState<string | undefined>(undefined)
  const [turn, setTurn] = useState(0)
  const judge = async (text: string): Promise<void> => {
    setProblem(undefined)
    try {
      if (kind === 'command') setResult({ command: await client.tryCommand(text) })
      else
        setResult({
          verdict: kind === 'path' ? await client.tryPath(text, op || 'read') : await client.tryUrl(text),
        })
      setTurn((before) => before + 1)
    } catch (error) {
      setResult(undefined)
      setProblem(said(error))
    }
  }
  // biome-ignore lint/correctness/useExhaustiveDependencies: once, for an address that somebody opened
  useEffect(() => {
    if (subject !== '') void judge(subject)
  }, [])
  return (
    <>
      <Panel title="Try it" aside={<span className="dim">nothing is run</span>}>
        <form
          className="try"
          onSubmit={(event) => {
            event.preventDefault()
            if (subject !== '') void judge(subject)
          }}
        >
          <Choice
            label="What"
            hideLabel
            value={kind}
            onChange={(next) => {
              setKind(next === 'command' ? '' : next)
              setResult(undefined)
            }}
            options={[
              ['command', 'a command'],
              ...(who.operator
                ? ([
                    ['path', 'a path'],
                    ['url', 'an address'],
                  ] as const)
                : []),
            ]}
          />
          {kind === 'path' && (
            <Choice
              label="Operation"
              hideLabel
              value={op || 'read'}
              onChange={setOp}
              options={['read', 'write', 'create', 'mount-ro', 'mount-rw'].map((one) => [one, one] as const)}
            />
          )}
          <Field
            label="Subject"
            hideLabel
            mono
            value={subject}
            onChange={setSubject}
            placeholder={EXAMPLES[kind][0] ?? ''}
          />
          <Button onClick={() => {}} submit tone="main" disabled={subject === ''}>
            Judge
          </Button>
        </form>
        <p className="examples">
          <span className="dim">for example </span>
          {EXAMPLES[kind].map((example) => (
            <button
              type="button"
              className="link mono"
              key={example}
              onClick={() => {
                setSubject(example)
                void judge(example)
              }}
            >
              {example}
            </button>
          ))}
        </p>
        {problem && (
          <p role="alert" className="problem">
            ✕ {problem}
          </p>
        )}
      </Panel>
      {result && 'command' in result && <Steps key={turn} result={result.command} rules={rules} />}
      {result && 'verdict' in result && (
        <Panel title="The verdict">
          <p role="status" className="verdict">
            <Badge word={result.verdict.verdict} /> {plain(result.verdict.reason)}
            {result.verdict.addresses && (
              <span className="dim"> ({result.verdict.addresses.join(', ')})</span>
            )}
          </p>
        </Panel>
      )}
    </>
  )
}

type Stage = { readonly name: string; readonly said: string; readonly decides: boolean }

/** The order of judgement, as it went for one command. */
function stagesOf(node: JudgedCommand, rules: number): readonly Stage[] {
  const own = node.matched.length > 0
  const isDefault = node.rule === 'default'
  const fixed = node.hard
  return [
    { name: 'hard denies', said: fixed ? node.reason : 'nothing', decides: fixed },
    {
      name: 'your rules',
      said: own
        ? `${node.matched.join(', ')}${fixed ? '' : `: ${node.reason}`}`
        : rules === 0
          ? 'there are none'
          : `none of ${rules} matches`,
      decides: !fixed && own,
    },
    {
      name: 'built in',
      said: own
        ? 'replaced by yours'
        : isDefault
          ? 'no rule knows it'
          : fixed
            ? 'not reached'
            : [[...new Set(node.rules)].join(', '), node.reason].filter(Boolean).join(': '),
      decides: !fixed && !own && !isDefault,
    },
    { name: 'default', said: isDefault ? node.reason : 'not reached', decides: isDefault },
  ]
}

/** The decision on its way through the rules; each step appears after the one before, unless motion is unwanted. */
function Steps({ result, rules }: { readonly result: Inspected; readonly rules: number }) {
  const { decision, nodes } = result
  return (
    <Panel title="How it was judged" className="steps">
      <ol>
        <li className="step reads">
          <strong>read</strong> {nodes.length === 1 ? 'one command in it' : `${nodes.length} commands in it`}
        </li>
        {nodes.map((node, index) => (
          <li
            key={index}
            className="step"
            data-depth={Math.min(node.depth, 6)}
            data-turn={Math.min(index + 1, 12)}
          >
            <code className="part">{plain(commandText(node.argv)).slice(0, 600)}</code>
            <ol className="stages">
              {stagesOf(node, rules).map(({ name, said: words, decides }) => (
                <li key={name} className={decides ? `stage decides ${node.action}` : 'stage'}>
                  <span className="stage-name">{name}</span>
                  <span>
                    {decides ? <Badge word={node.action} /> : <span className="dim">–</span>} {plain(words)}
                  </span>
                </li>
              ))}
            </ol>
          </li>
        ))}
        <li className="step verdict-step" data-turn={Math.min(nodes.length + 1, 12)}>
          <div role="status">
            <strong>the strictest wins</strong> <Badge word={decision.action} /> {plain(decision.reason)}{' '}
            {decision.rules.map((rule) => (
              <code key={rule} className="rule">
                {rule}
              </code>
            ))}
          </div>
        </li>
      </ol>
    </Panel>
  )
}
