import { describe, expect, test } from 'vitest'
import { parseDockerfile } from './dockerfile.ts'

const steps = (text: string) => parseDockerfile(`FROM debian:12\n${text}`).steps

describe('a Dockerfile', () => {
  test('becomes the steps of a build', () => {
    const {
      image,
      steps: all,
      startCommand,
    } = parseDockerfile(
      [
        '# comment',
        'ARG VERSION=12',
        'FROM debian:$VERSION AS base',
        'ENV A=1 B="two words"',
        'RUN apt-get update && \\',
        '    apt-get install -y curl',
        'WORKDIR /srv/$A',
        'COPY --chown=33:33 a.txt b.txt dir/',
        'EXPOSE 80',
        'USER www-data',
        'ENTRYPOINT ["run", "it now"]',
        'CMD --fast',
      ].join('\n'),
    )
    expect(image).toBe('debian:12')
    expect(startCommand).toBe("run 'it now' --fast")
    expect(all).toEqual([
      { type: 'ENV', args: ['A', '1'] },
      { type: 'ENV', args: ['B', 'two words'] },
      { type: 'RUN', args: ['apt-get update &&      apt-get install -y curl'] },
      { type: 'WORKDIR', args: ['/srv/1'] },
      { type: 'COPY', args: ['a.txt', 'dir/', '33:33', ''] },
      { type: 'COPY', args: ['b.txt', 'dir/', '33:33', ''] },
      { type: 'USER', args: ['www-data'] },
    ])
  })

  test('keeps user and directory of its image; on the base template it ends with those of a sandbox', () => {
    expect(parseDockerfile('FROM x').steps).toEqual([])
    expect(parseDockerfile('FROM e2bdev/base').steps).toEqual([
      { type: 'USER', args: ['root'] },
      { type: 'WORKDIR', args: ['/'] },
      { type: 'USER', args: ['user'] },
      { type: 'WORKDIR', args: ['/home/user'] },
    ])
  })

  test.each([
    ['RUN ["echo", "a b"]', { type: 'RUN', args: ["echo 'a b'"] }],
    ['ENV OLD a value', { type: 'ENV', args: ['OLD', 'a value'] }],
    ['COPY ["a b", "/x"]', { type: 'COPY', args: ['a b', '/x', '', ''] }],
    ['COPY / /x', { type: 'COPY', args: ['.', '/x', '', ''] }],
    ['ARG N=1', { type: 'ENV', args: ['N', '1'] }],
  ])('translates %s', (line, step) => expect(steps(line)).toEqual([step]))

  test.each([
    'FROM other',
    'RUN --mount=type=cache,target=/x make',
    'RUN <<EOF',
    'COPY --from=builder /a /b',
    'ADD https://example.com/x /x',
    'SHELL ["/bin/zsh"]',
    'ONBUILD RUN x',
    'COPY one',
    'WHATEVER x',
  ])('%s is refused', (line) => {
    expect(() => steps(line)).toThrow('cannot be built')
  })

  test('without a valid FROM is refused', () => {
    for (const text of ['', 'RUN x', 'FROM a b c'])
      expect(() => parseDockerfile(text)).toThrow('cannot be built')
  })

  test('whose variables grow without end is refused', () => {
    const doubled = Array.from({ length: 40 }, () => 'ENV A=$A$A').join('\n')
    expect(() => steps(`ENV A=0123456789\n${doubled}`)).toThrow('variables of the Dockerfile add more')
    const copied = Array.from({ length: 1000 }, (_, i) => `ENV B${i}=$A`).join('\n')
    expect(() => steps(`ENV A=${'x'.repeat(10_000)}\n${copied}`)).toThrow(
      'variables of the Dockerfile add more',
    )
    expect(steps('ENV A=1\nENV A=$A$A')).toEqual([
      { type: 'ENV', args: ['A', '1'] },
      { type: 'ENV', args: ['A', '11'] },
    ])
  })

  test('has only the variables that it sets', () => {
    expect(steps('ENV A=$constructor')).toEqual([{ type: 'ENV', args: ['A', '$constructor'] }])
  })
})
