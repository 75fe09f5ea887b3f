import { describe, expect, it } from 'vitest'
import { compilePolicy } from '../../policy/policy.ts'
import { answerCommandLine, checkCommand } from './command.ts'

const run = async (...args: readonly string[]): Promise<{ code: number; out: string }> => {
  const parts: string[] = []
  const io = { home: '/tmp', out: (text: string) => void parts.push(text), err: () => {}, json: false }
  const code = await checkCommand([...args, '--workspace', '/workspace', '--home', '/home/agent'], io)
  return { code, out: parts.join('') }
}

describe('check command', () => {
  it.each([
    ['ls', 0],
    ['npm test', 0],
    ['git push', 3],
    ['rm -rf /', 4],
  ])('%s exits %i', async (line, code) => expect((await run(line)).code).toBe(code))

  it('--json is the decision', async () => {
    const { out } = await run('ls | sudo tee x', '--json')
    expect(JSON.parse(out)).toMatchObject({
      action: 'deny',
      rules: expect.arrayContaining(['privilege/become']),
    })
    expect(JSON.parse(out).commands.map((command: { argv: string[] }) => command.argv[0])).toEqual([
      'ls',
      'sudo',
      'tee',
    ])
  })

  it('shows the tree, the reasons and how to allow it', async () => {
    const { out } = await run('git status && env rm -rf /')
    expect(out).toMatchInlineSnapshot(`
      "deny: deletes \`/\`, which contains everything else
        sandbox git status
                uses a repository whose settings can start programs [git/repository]
        allow   env rm -rf /
                runs only the commands checked below
          deny    rm -rf /
                  deletes \`/\`, which contains everything else [destructive/root]
      to run it: remove the denied part; it cannot be approved
      "
    `)
  })

  it('shows no control character of the line', async () => {
    const { out } = await run('echo done\b\b\u202E; rm -rf ~')
    expect(out).not.toMatch(/[\b\u202E]/)
  })

  it('needs exactly one line', async () => {
    await expect(run()).rejects.toMatchObject({ code: 'invalid-input' })
    await expect(run('a', 'b')).rejects.toMatchObject({ code: 'invalid-input' })
  })

  it('--batch answers every line, including unreadable ones', () => {
    const answer = (line: string) =>
      answerCommandLine(compilePolicy({}), { workspace: '/workspace', home: '/home/agent' }, line)
    expect(answer('{"id":"a","cmd":"ls","shell":"bash"}')).toMatchObject({
      id: 'a',
      action: 'allow',
      us: expect.any(Number),
    })
    expect(answer('{"id":1}')).toMatchObject({ id: 1, action: 'deny' })
    expect(answer('nonsense')).toMatchObject({ id: null, action: 'deny' })
  })
})
