import type { McpOptions } from '../../src/adapters/mcp/server.ts'

/**
 * What the official conformance suite expects a server to have: tools, prompts and resources with fixed answers. No
 * product has them; they are added to our server for the suite, beside our own tools, on our own transport.
 */

const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
const WAV = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=='
const text = (said: string) => ({ type: 'text' as const, text: said })
const image = { type: 'image' as const, data: PNG, mimeType: 'image/png' }
const resource = (uri: string, mimeType: string, said: string) => ({
  type: 'resource' as const,
  resource: { uri, mimeType, text: said },
})
const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 50))

type Extend = NonNullable<McpOptions['extend']>
type Handlers = Parameters<Extend>[1]
type Context = Parameters<Handlers['call']>[2]
type Answer = Awaited<ReturnType<Handlers['call']>>
type Fixture = (args: Readonly<Record<string, unknown>>, context: Context) => Promise<Answer> | Answer

const TITLED = [
  { const: 'value1', title: 'First Option' },
  { const: 'value2', title: 'Second Option' },
  { const: 'value3', title: 'Third Option' },
]
const PLAIN = ['option1', 'option2', 'option3']

/** On the stream of the call itself: another one may not be open yet. */
const related = ({ mcpReq }: Context) => ({ relatedRequestId: mcpReq.id })

async function elicit(context: Context, message: string, properties: object, label: string): Promise<Answer> {
  const asked = { message, requestedSchema: { type: 'object' as const, properties, required: [] } }
  const { action, content } = await context.mcpReq.elicitInput(
    asked as Parameters<Context['mcpReq']['elicitInput']>[0],
    related(context),
  )
  return { content: [text(`${label}: action=${action}, content=${JSON.stringify(content ?? {})}`)] }
}

const TOOLS: Readonly<Record<string, Fixture>> = {
  test_simple_text: () => ({ content: [text('This is a simple text response for testing.')] }),
  test_image_content: () => ({ content: [image] }),
  test_audio_content: () => ({ content: [{ type: 'audio', data: WAV, mimeType: 'audio/wav' }] }),
  test_embedded_resource: () => ({
    content: [resource('test://embedded-resource', 'text/plain', 'This is an embedded resource content.')],
  }),
  test_multiple_content_types: () => ({
    content: [
      text('Multiple content types test:'),
      image,
      resource('test://mixed-content-resource', 'application/json', '{"test":"data","value":123}'),
    ],
  }),
  async test_tool_with_logging(_, { mcpReq }) {
    for (const said of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
      await mcpReq.log('info', said)
      await pause()
    }
    return { content: [text('logged')] }
  },
  async test_tool_with_progress(_, { mcpReq }) {
    const progressToken = mcpReq._meta?.progressToken
    for (const progress of [0, 50, 100]) {
      if (progressToken !== undefined)
        await mcpReq.notify({
          method: 'notifications/progress',
          params: { progressToken, progress, total: 100 },
        })
      await pause()
    }
    return { content: [text('done')] }
  },
  test_error_handling: () => ({
    isError: true,
    content: [text('This tool intentionally returns an error for testing')],
  }),
  async test_sampling({ prompt }, { mcpReq }) {
    const messages = [{ role: 'user' as const, content: text(String(prompt)) }]
    const { content } = await mcpReq.requestSampling(
      { messages, maxTokens: 100 },
      { relatedRequestId: mcpReq.id },
    )
    return { content: [text(`LLM response: ${JSON.stringify(content)}`)] }
  },
  test_elicitation: ({ message }, context) =>
    elicit(
      context,
      String(message),
      {
        username: { type: 'string', description: "User's response" },
        email: { type: 'string', description: "User's email address" },
      },
      'User response',
    ),
  test_elicitation_sep1034_defaults: (_, context) =>
    elicit(
      context,
      'defaults',
      {
        name: { type: 'string', default: 'John Doe' },
        age: { type: 'integer', default: 30 },
        score: { type: 'number', default: 95.5 },
        status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
        verified: { type: 'boolean', default: true },
      },
      'Elicitation completed',
    ),
  test_elicitation_sep1330_enums: (_, context) =>
    elicit(
      context,
      'enums',
      {
        untitledSingle: { type: 'string', enum: PLAIN },
        titledSingle: { type: 'string', oneOf: TITLED },
        legacyEnum: {
          type: 'string',
          enum: ['opt1', 'opt2', 'opt3'],
          enumNames: ['Option One', 'Option Two', 'Option Three'],
        },
        untitledMulti: { type: 'array', items: { type: 'string', enum: PLAIN } },
        titledMulti: { type: 'array', items: { anyOf: TITLED } },
      },
      'Elicitation completed',
    ),
  test_reconnection: async (_, { http }) => {
    http?.closeSSE?.()
    await pause()
    return { content: [text('reconnected')] }
  },
  json_schema_2020_12_tool: () => ({ content: [text('ok')] }),
}

const SCHEMA_2020 = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object' as const,
  $defs: {
    address: { type: 'object', properties: { street: { type: 'string' }, city: { type: 'string' } } },
  },
  properties: { name: { type: 'string' }, address: { $ref: '#/$defs/address' } },
  additionalProperties: false,
}

const RESOURCES: Readonly<Record<string, object>> = {
  'test://static-text': { mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
  'test://static-binary': { mimeType: 'image/png', blob: PNG },
  'test://watched-resource': { mimeType: 'text/plain', text: 'watched' },
}

const user = (content: ReturnType<typeof text> | typeof image | ReturnType<typeof resource>) => ({
  role: 'user' as const,
  content,
})
type Said = ReturnType<typeof user>
const PROMPTS: Readonly<Record<string, (args: Readonly<Record<string, string>>) => Said[]>> = {
  test_simple_prompt: () => [user(text('This is a simple prompt for testing.'))],
  test_prompt_with_arguments: ({ arg1, arg2 }) => [
    user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)),
  ],
  test_prompt_with_embedded_resource: ({ resourceUri = '' }) => [
    user(resource(resourceUri, 'text/plain', 'Embedded resource content for testing.')),
    user(text('Please process the embedded resource above.')),
  ],
  test_prompt_with_image: () => [user(image), user(text('Please analyze the image above.'))],
}
const ARGUMENTS: Readonly<Record<string, readonly string[]>> = {
  test_prompt_with_arguments: ['arg1', 'arg2'],
  test_prompt_with_embedded_resource: ['resourceUri'],
}

export const extendWithFixtures: Extend = (server, ours) => {
  server.registerCapabilities({ prompts: {}, completions: {}, logging: {}, resources: { subscribe: true } })
  server.setRequestHandler('tools/list', () => ({
    tools: [
      ...ours.tools,
      ...Object.keys(TOOLS).map((name) => ({
        name,
        description: 'a fixture of the conformance suite',
        inputSchema: name === 'json_schema_2020_12_tool' ? SCHEMA_2020 : { type: 'object' as const },
      })),
    ],
  }))
  server.setRequestHandler('tools/call', async ({ params }, context) => {
    const fixture = Object.hasOwn(TOOLS, params.name) ? TOOLS[params.name] : undefined
    return fixture
      ? fixture(params.arguments ?? {}, context)
      : ours.call(params.name, params.arguments, context)
  })
  server.setRequestHandler('resources/list', () => ({
    resources: Object.keys(RESOURCES).map((uri) => ({ uri, name: uri, description: 'a fixture' })),
  }))
  server.setRequestHandler('resources/templates/list', () => ({
    resourceTemplates: [
      { uriTemplate: 'test://template/{id}/data', name: 'template', description: 'a fixture' },
    ],
  }))
  server.setRequestHandler('resources/read', ({ params: { uri } }) => {
    const id = /^test:\/\/template\/(\w+)\/data$/.exec(uri)?.[1]
    const made = {
      mimeType: 'application/json',
      text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }),
    }
    return { contents: [{ uri, ...(id ? made : RESOURCES[uri]) } as { uri: string; text: string }] }
  })
  server.setRequestHandler('resources/subscribe', () => ({}))
  server.setRequestHandler('resources/unsubscribe', () => ({}))
  server.setRequestHandler('prompts/list', () => ({
    prompts: Object.keys(PROMPTS).map((name) => ({
      name,
      description: 'a fixture',
      arguments: (ARGUMENTS[name] ?? []).map((one) => ({ name: one, description: 'text', required: true })),
    })),
  }))
  server.setRequestHandler('prompts/get', ({ params }) => ({
    messages: PROMPTS[params.name]?.(params.arguments ?? {}) ?? [],
  }))
  server.setRequestHandler('completion/complete', () => ({
    completion: { values: ['paris', 'park', 'party'], hasMore: false },
  }))
}
