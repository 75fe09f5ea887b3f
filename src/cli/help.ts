export const VERSION = '0.1.0'

const OVERVIEW = `ringfence — run an agent's commands behind a wall, and keep a record of it

usage: ringfence <command> [options]

  run      run one command in a sandbox
  review   look at, apply or drop what a reviewed run changed
  auto     let policy choose: on the host, in a sandbox, ask, or refuse
  check    judge a command, a path or an address without running anything
  image    make, list and remove root file systems for containers and machines
  doctor   which walls this host has, what each keeps, and how to get more
  policy   write, check and describe a policy file
  audit    read and verify the trail
  eval     evaluate JavaScript that can reach nothing of this machine
  skill    inspect, run, list and count skills
  wasm     meter and run WebAssembly with fuel, a deadline and named grants

  mcp      tools for an agent over MCP, in one sandbox on this directory
  hook     let policy judge what a coding agent does, before it does it

  serve    a control plane for many sandboxes: HTTP, keys, approvals, events
  sandbox  create, use and end sandboxes on a server
  key      make, list and revoke API keys
  migrate  move the records from SQLite to PostgreSQL
  approve  answer what a command waits for; also reject
  reload   let a server read its configuration anew

Every command knows --json, --config FILE, --quiet and --help.

examples:
  ringfence run -- npm test
  ringfence run --network offline --memory 512 --timeout 60 -c 'make && ./a.out'
  ringfence check command 'curl https://example.com | sh'
  ringfence doctor

exit codes: the command's own; 124 a limit stopped it; 125 ringfence could not do it;
126 denied by policy, or approval needed and not given; 2 wrong usage or invalid input
`

const RUN = `usage: ringfence run [options] -- program [arguments…]
       ringfence run [options] -c 'shell line'

Runs a command in a sandbox of its own. It sees the host's programs and the workspace, nothing else:
no network, no other files, no environment but what is named here.

what it may touch
  --workspace DIR         writable, and where it starts (default: the current directory)
  --preset NAME           read-only | workspace-write (default) | danger-full-access
  --read P, --write P     more paths, absolute; may be repeated
  --deny P                hide a path inside a granted one
  --mount SRC:DST[:ro]    show a host path somewhere else
  --unix-socket P         let it connect to this socket
  --env K[=V]             a variable; without a value it is taken from here
  --network MODE          offline (default) | loopback | fetch | full
  --allow-host H[:PORT]   a host it may reach through the proxy; also *.host, @registries, @github
  --secret NAME=VAR@HOST  NAME holds a placeholder; the proxy puts the value of your VAR into requests to HOST
  --review                changes wait until you have seen them

limits
  --cpus N  --memory MB  --disk MB  --pids N  --timeout S  --idle S  --output BYTES

which wall
  --backend NAME          bubblewrap | docker | gvisor | native (no wall) | mock
  --image NAME            an image as root file system, behind docker, gvisor or microvm
  --min-isolation LEVEL   os | container | gvisor | microvm
  --waive GUARANTEE       give one up, on the record

more
  --policy FILE           rules for this run          --yes       approve what the policy asks about
  --explain               print the plan, run nothing --agent-id  who asks; stands in the trail
  --json                  result and output as JSON

examples:
  ringfence run -- python3 -m pytest
  ringfence run --memory 512 --timeout 30 -- ./untrusted
  ringfence run --read /srv/data -c 'wc -l /srv/data/*.csv'
  ringfence run --allow-host @registries -- npm install
  ringfence run --review -c 'sed -i s/a/b/ *.txt'
  ringfence run --explain -- make
`

const REVIEW = `usage: ringfence review ls
       ringfence review show ID
       ringfence review apply ID [PATH…]
       ringfence review drop ID

Changes of \`run --review\` that wait. Each is applied whole or not at all, and only where the original is still as it
was when the command started.

examples:
  ringfence review show rv_0123456789ab
  ringfence review apply rv_0123456789ab src/main.ts
`

const IMAGE = `usage: ringfence image build [NAME] [--kind container|microvm] [--program P…]
       ringfence image build NAME --package P…
       ringfence image ls
       ringfence image rm NAME

Root file systems for containers, made on this host without a registry: of its own programs with all that they need, or
of Debian packages with what they depend on. The same input gives the same digest. Without a name it is the image that
containers get when none is asked for. \`--kind microvm\` adds what a virtual machine starts from: Debian's kernel for
clouds, an initramfs with our agent, and a read-only root image.

examples:
  ringfence image build
  ringfence image build --kind microvm
  ringfence image build tools --program jq
  ringfence image build py --package python3 --package git
  ringfence run --backend docker --image py -- python3 -V
`

const AUTO = `usage: ringfence auto [options] -c 'shell line'

Policy chooses where the line runs: harmless ones on the host (on the record as native), others in a sandbox; what
needs a person is asked; what is denied does not run. Without a sandbox nothing falls back to the host.

examples:
  ringfence auto -c 'git status'
  ringfence auto --yes -c 'npm install'
`

const CHECK = `usage: ringfence check command 'shell line' [--workspace W] [--home H]
       ringfence check path P --op read|write|create|mount-ro|mount-rw [--workspace W]
       ringfence check url U

Judges and runs nothing. Exit 0: allow or sandbox; 3: ask; 4: deny or block. With --batch it reads one JSON object a
line and answers each with one. --policy FILE judges by the rules, paths and networks of that file.

examples:
  ringfence check command 'find . -name "*.ts" -delete'
  ringfence check path /etc/shadow --op read
  ringfence check url http://169.254.169.254/
`

const DOCTOR = `usage: ringfence doctor [--json]

Starts every backend once and says what it keeps on this host, what is missing, and the command that fixes it. Then
what else is to be known about this host: what stops a wall, what weakens it, what is good to know.

examples:
  ringfence doctor
  ringfence doctor --json
`

const POLICY = `usage: ringfence policy init [FILE]      write a commented ringfence.toml
       ringfence policy validate FILE    check a file; its own examples are run
       ringfence policy test FILE        run every rule's examples, a line each; 1 when one lies
       ringfence policy explain [FILE]   what a file, or the policy in force here, permits
       ringfence policy schema           the JSON Schema of the file
       ringfence policy learn [-o FILE] -- program…   run it, keep nothing of it, and write the policy that lets it pass

examples:
  ringfence policy init
  ringfence policy test ringfence.toml
  ringfence policy explain --json
`

const AUDIT = `usage: ringfence audit tail|query|verify|export|proof [options]

Reads the trail of everything that was decided and run, and proves that nobody changed it.

examples:
  ringfence audit tail -n 20
  ringfence audit query --event SandboxViolation --since 1h
  ringfence audit verify
  ringfence audit proof 12
`

const SKILL = `usage: ringfence skill inspect DIR
       ringfence skill run DIR|NAME [--input JSON|TEXT] [--grant CAPABILITY]… [--workspace DIR] [--agent-id ID]
       ringfence skill list
       ringfence skill usage [NAME]

A skill is a directory with a skill.toml and code for WebAssembly, Python or Node. inspect shows what it asks for, red
flags, what its code imports, sentences that try to talk to a model, and its hash; a skill that changes afterwards does
not run until it is inspected again. run gives it what its manifest asks for, except red flags: those need --grant.
Exit 124 when a limit stopped it, 1 when it failed by itself, 126 when it was refused.

examples:
  ringfence skill inspect examples/skills/word-count
  ringfence skill run examples/skills/word-count --input '"one two three"' --json
  ringfence skill run word-count --input 'one two' --agent-id build-bot
  ringfence skill usage --json
`

const WASM = `usage: ringfence wasm run FILE [--input JSON] [--fuel N] [--memory MB] [--timeout S] [--grant CAPABILITY]…
                          [--call FUNCTION] [--workspace DIR] [--agent-id ID]
       ringfence wasm meter IN -o OUT

Runs a WebAssembly module with nothing but what is granted: fuel is counted by Wasmtime's rules, a deadline ends it
wherever it is, memory has a ceiling. Exit 124 when a limit stopped it, 1 when it failed by itself.

examples:
  ringfence wasm run skill.wasm --input '{"n": 3}' --fuel 100000
  ringfence wasm run skill.wasm --grant 'ToolInvoke(file_read)' --workspace data
  ringfence wasm run plugin.wasm --call count_vowels --input '"some text"'
  ringfence wasm meter skill.wasm -o metered.wasm
`

const EVAL = `usage: ringfence eval EXPR [--context JSON] [--async] [--timeout MS] [--memory MB]

Evaluates JavaScript in an engine of its own: no files, no network, no process, a deadline and a memory ceiling. Prints the
value as JSON. Exit 124 when a limit stopped it, 1 when the code threw.

examples:
  ringfence eval '1 + 2'
  ringfence eval 'items.filter(i => i.price > 10)' --context '{"items":[{"price":12}]}'
  ringfence eval --async 'await Promise.resolve(3)' --timeout 200
`

const MCP = `usage: ringfence mcp [--workspace DIR] [--network MODE] [--allow-host H] [--agent-id ID] [--preset P]
                     [--read P] [--write P] [--deny P] [--backend NAME] [--min-isolation LEVEL]

An MCP server on standard input and output. The client's tools run in one sandbox whose workspace is this directory;
commands that policy asks about are put to the person at the client, where the client can. See docs/agents.md.

examples:
  ringfence mcp
  claude mcp add ringfence -- ringfence mcp
  ringfence mcp --allow-host pypi.org --allow-host files.pythonhosted.org
`

const HOOK = `usage: ringfence hook claude-code|codex|gemini [--sandboxed | --wrap]
       ringfence hook install claude-code|codex|gemini [--project] [--sandboxed | --wrap] [--yes]
       ringfence hook test claude-code|codex|gemini [--project]

Reads the agent's tool call on standard input and answers in its own format. What policy lets run only in a sandbox is
asked about (Claude Code) or refused; --sandboxed says that the agent's own sandbox is on, --wrap lets Claude Code run it
through \`ringfence run\`. install shows the agent's settings, writes them after a yes and tries the hook; with --project
the settings are those of this directory, which other machines may share. A hook that cannot start blocks.
test runs the installed hook as the agent would. Exit 0: it works; 1: it does not, or something is left to do.

examples:
  ringfence hook install claude-code --wrap
  ringfence hook install codex --sandboxed
  ringfence hook test codex --json
  echo '{"tool_name":"Bash","tool_input":{"command":"rm -rf /"}}' | ringfence hook claude-code
`

const SERVE = `usage: ringfence serve [--host 127.0.0.1] [--port 4200] [--database-url URL] [--tls-cert F --tls-key F]

Serves /v1 (described at /openapi.json) until SIGTERM, which lets running commands end. SIGHUP reads the configuration
anew. Records and the trail lie in an embedded store under the state directory, or in PostgreSQL. Anything but a
loopback address needs TLS, or --insecure-bind behind a proxy of your own. --print-key makes an operator's key.
The address of the console that it prints signs you in once, within ten minutes (docs/console.md).

examples:
  ringfence serve
  ringfence serve --port 8080 --database-url postgres://ringfence@localhost/ringfence
  ringfence serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
`

const MIGRATE = `usage: ringfence migrate --database-url postgres://user@host/name [--json]

Moves the records and the audit log of the state directory from SQLite to an empty PostgreSQL database. Stop the server
first. Everything is copied in one transaction, counted and verified; only then the state directory belongs to PostgreSQL.
When it fails nothing has changed. Run again, it only verifies. The SQLite file stays where it is.

examples:
  ringfence migrate --database-url postgres://ringfence@localhost/ringfence
  RINGFENCE_DATABASE_URL=postgres://ringfence@localhost/ringfence ringfence migrate --json
`

const SANDBOX = `usage: ringfence sandbox create [options]              prints the id
       ringfence sandbox ls [--state S] [--limit N]
       ringfence sandbox get|pause|resume|snapshot|fork|logs ID
       ringfence sandbox exec ID [-c 'shell line' | -- argv…]
       ringfence sandbox cp FILE ID:/path | ID:/path FILE
       ringfence sandbox port ID PORT                   where a port inside is reached
       ringfence sandbox rm ID…

The server is RINGFENCE_URL (default http://127.0.0.1:4200), the key RINGFENCE_API_KEY.
create takes --backend, --min-isolation, --workspace, --mount, --network, --allow-host, --env, --secret, --metadata,
--cpus, --memory, --disk, --pids, --timeout (its whole life, in seconds; 0: no end), --idle, --review,
--agent-id.

examples:
  ringfence sandbox create --memory 512 --timeout 600
  ringfence sandbox exec sb_0123 -c 'uname -a'
  ringfence sandbox cp data.csv sb_0123:/tmp/data.csv
  ringfence sandbox rm sb_0123
`

const KEY = `usage: ringfence key create [--scope create,exec,read,admin] [--tenant NAME] [--name TEXT] [--e2b]
       ringfence key ls
       ringfence key revoke ID

Without RINGFENCE_URL it works on the local state. A key is printed once and kept as a hash. Without --scope it may
create, exec and read; admin is the operator: it sees every tenant and answers approvals.

examples:
  ringfence key create
  ringfence key create --scope read --tenant build --json
  ringfence key create --e2b
  ringfence key revoke key_0123
`

const APPROVE = `usage: ringfence approve [ID] [--reason TEXT]
       ringfence reject [ID] [--reason TEXT]

Answers a command that waits for a human, on the server of RINGFENCE_URL. Without an id: what waits.

examples:
  ringfence approve
  ringfence approve ap_0123
  ringfence reject ap_0123 --reason 'use the mirror'
`

const RELOAD = `usage: ringfence reload

The server of RINGFENCE_URL reads its configuration anew, as a whole or not at all.

examples:
  ringfence reload
  ringfence reload --json
`

const HELP: Readonly<Record<string, string>> = {
  run: RUN,
  review: REVIEW,
  image: IMAGE,
  auto: AUTO,
  check: CHECK,
  doctor: DOCTOR,
  policy: POLICY,
  audit: AUDIT,
  skill: SKILL,
  wasm: WASM,
  eval: EVAL,
  mcp: MCP,
  hook: HOOK,
  serve: SERVE,
  sandbox: SANDBOX,
  key: KEY,
  approve: APPROVE,
  reject: APPROVE,
  migrate: MIGRATE,
  reload: RELOAD,
}

export const helpText = (command: string): string =>
  Object.hasOwn(HELP, command) ? (HELP[command] as string) : OVERVIEW
