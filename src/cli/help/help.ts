import { out } from '../terminal/output.ts'

const OVERVIEW = `ringfence — run an agent's commands in a sandbox and record them in an audit log

usage: ringfence <command> [options]

  run      run one command in a sandbox
  review   show, apply or drop the changes of a \`run --review\`
  auto     let the policy decide: run on the host, run in a sandbox, ask, or deny
  check    check a command, path or URL against the policy without running it
  image    build, list and remove root file systems for containers and microVMs
  doctor   show which backends work on this host, what they guarantee, and how to add more
  prove    attack the backends of this host and show which guarantees hold
  policy   write, validate and explain a policy file
  audit    read and verify the audit log
  eval     evaluate JavaScript with no access to files, network or processes
  skill    inspect, run and list skills, and show their usage
  wasm     run WebAssembly with a fuel limit, a deadline and explicit grants

  worker   runs the tools of agents in Anthropic's self-hosted environments
  mcp      MCP server: an agent's tools run in one sandbox on this directory
  exec-server  Codex's commands and file operations run in a sandbox on this directory
  hook     check a coding agent's tool calls against the policy before they run

  serve    start the server: HTTP API, API keys, approvals, events, console
  sandbox  create, use and destroy sandboxes on a server
  volume   create, list, copy and remove volumes: named directories that outlive sandboxes
  cluster  make several servers on one PostgreSQL a cluster: init, token, join
  node     list, cordon, drain and remove the nodes of a cluster
  snapshot list and remove snapshots of sandboxes
  template build, list and remove templates
  webhook  send records of the audit log to a URL
  login    store the address and the key of a server
  key      create, list and revoke API keys
  migrate  move the records from SQLite to PostgreSQL
  backup   write the records, the audit log and the keys to one file
  restore  verify a backup and make it the state directory
  approve  approve a command that waits for an answer
  reject   reject a command that waits for an answer
  reload   reload a server's configuration
  completion  print a completion script for bash, zsh or fish

Every command accepts --json, --config FILE, --quiet and --help.
With --no-broker the native front starts Node at once.

examples:
  ringfence run npm test
  ringfence run --network offline --memory 512m --timeout 60s -c 'make && ./a.out'
  ringfence check command 'curl https://example.com | sh'
  ringfence doctor

exit codes: the command's own; 124 a limit stopped the command; 125 ringfence failed;
126 denied by the policy, or not approved; 2 wrong usage or invalid input
\`ringfence help errors\` explains every error code
`

const RUN = `usage: ringfence run [options] [--] program [arguments…]
       ringfence run [options] -c 'shell line'

Runs a command in a new sandbox. The command sees the host's programs and the workspace. It has no network, no other
files, and no environment variables except those passed with --env.

files, network and environment
  --workspace DIR         writable working directory (default: the current directory)
  --preset NAME           read-only | workspace-write (default) | danger-full-access
  --read P, --write P     grant another absolute path; repeatable
  --deny P                hide a path inside a granted one
  --mount SRC:DST[:ro]    mount a host path at another path
  --unix-socket P         allow connections to this Unix socket
  --env K[=V]             set a variable; without =V, copy it from this environment
  --network MODE          offline (default) | loopback | fetch | full
  --allow-host H[:PORT]   allow a host through the proxy; also *.host, @registries, @github
  --ask-hosts             ask about other hosts while the connection waits, instead of refusing them
  --secret NAME=VAR@HOST  set NAME to a placeholder; the proxy replaces it with the value of VAR in requests to HOST
  --review                hold back file changes until you apply them
  --isolate               keep the command apart from all others of its sandbox (namespaces, /tmp, loopback of its own)

limits
  --cpus N  --memory MB  --disk MB  --pids N  --timeout S  --idle S  --output BYTES
  sizes also as 512m or 2g, times as 500ms, 30s or 5m

backend
  --backend NAME          bubblewrap | docker | gvisor | microvm | kubernetes | native (no isolation) | mock
  --image NAME            root file system image, for docker, gvisor, microvm and kubernetes
  --min-isolation LEVEL   os | container | gvisor | microvm
  --waive GUARANTEE       drop one guarantee (recorded in the audit log)

more
  --policy FILE           policy for this run            --yes       approve what the policy asks about
  --explain               print the plan, run nothing    --agent-id  name of the agent, recorded in the audit log
  --json                  print result and output as JSON

examples:
  ringfence run -- python3 -m pytest
  ringfence run --memory 512m --timeout 30s ./untrusted
  ringfence run --read /srv/data -c 'wc -l /srv/data/*.csv'
  ringfence run --allow-host @registries -- npm install
  ringfence run --review -c 'sed -i s/a/b/ *.txt'
  ringfence run --explain -- make
`

const REVIEW = `usage: ringfence review ls
       ringfence review show ID
       ringfence review apply ID [PATH…]
       ringfence review drop ID

Shows, applies or drops the file changes of \`ringfence run --review\`. Each file is changed completely or not at all, and
only if the original has not changed since the command started.

examples:
  ringfence review show rv_0123456789ab
  ringfence review apply rv_0123456789ab src/main.ts
`

const IMAGE = `usage: ringfence image build [NAME] [--kind container|microvm] [--program P…]
       ringfence image build NAME --package P…
       ringfence image ls
       ringfence image rm NAME

Builds root file systems on this host, without a registry: from the host's own programs and their libraries, or from
Debian packages and their dependencies. The same input gives the same digest. Without a name, builds the default image.
\`--kind microvm\` adds what a virtual machine boots from: Debian's cloud kernel, an initramfs with the guest agent, and
a read-only root image.

examples:
  ringfence image build
  ringfence image build --kind microvm
  ringfence image build tools --program jq
  ringfence image build py --package python3 --package git
  ringfence run --backend docker --image py -- python3 -V
`

const AUTO = `usage: ringfence auto [options] -c 'shell line'

The policy decides where the line runs. A harmless line runs on the host (recorded with the backend \`native\`), other
lines run in a sandbox. A line that needs approval is asked about; a denied line does not run. If no sandbox is
available, nothing falls back to the host.

examples:
  ringfence auto -c 'git status'
  ringfence auto --yes -c 'npm install'
`

const CHECK = `usage: ringfence check command 'shell line' [--workspace W] [--home H] [--behind [options of run]] [--explain]
       ringfence check path P --op read|write|create|mount-ro|mount-rw [--workspace W]
       ringfence check url U

Checks the input against the policy and runs nothing. Exit 0: allow or sandbox; 3: ask; 4: deny or block.
--batch reads one JSON object per line and prints one answer per line. --policy FILE checks against that file.

A command is judged for the host. With --behind it is judged as \`ringfence run\` with the same options would judge it:
questions and denials of the built-in rules become \`sandbox\` where that sandbox contains all their risks. --explain
shows both decisions and which guarantee contains each risk.

examples:
  ringfence check command 'find . -name "*.ts" -delete'
  ringfence check command --behind --network offline 'curl https://example.com'
  ringfence check path /etc/shadow --op read
  ringfence check url http://169.254.169.254/
`

const DOCTOR = `usage: ringfence doctor [--json]

Starts every backend once and prints the guarantees it provides on this host, what is missing, and the command that
fixes it. Then prints other findings about this host: what prevents isolation, what weakens it, and notes.

examples:
  ringfence doctor
  ringfence doctor --json
`

const POLICY = `usage: ringfence policy init [FILE]      write a commented ringfence.toml
       ringfence policy validate FILE    validate a file and run the examples in it
       ringfence policy test FILE        run every rule's examples, one line each; exit 1 if one fails
       ringfence policy explain [FILE]   show what a file, or the current policy, permits
       ringfence policy schema           print the JSON Schema of the file
       ringfence policy learn [-o FILE] -- program…   run a program, drop its changes, and write a policy that permits it

examples:
  ringfence policy init
  ringfence policy test ringfence.toml
  ringfence policy explain --json
`

const AUDIT = `usage: ringfence audit tail|query|verify|export|proof [options]

Reads the audit log of every decision and command, and verifies that no record was changed or removed.

examples:
  ringfence audit tail -n 20
  ringfence audit query --event SandboxViolation --since 1h
  ringfence audit verify
  ringfence audit proof 12
`

const SKILL = `usage: ringfence skill init DIR --lang c|rust|assemblyscript|javascript-wasm|python|node
       ringfence skill inspect DIR
       ringfence skill run DIR|NAME [--input JSON|TEXT] [--grant CAPABILITY]… [--workspace DIR] [--agent-id ID]
       ringfence skill list
       ringfence skill usage [NAME]
       ringfence skill sign DIR|NAME
       ringfence skill verify DIR|NAME
       ringfence skill trust [KEY [--as NAME | --remove]]

A skill is a directory with a skill.toml and code for WebAssembly, Python or Node. \`init\` writes a new one that runs, and
prints the commands that build it. \`inspect\` shows the capabilities it
requests, red flags, the imports of its code, text that looks like prompt injection, and its hash. A skill that changes
afterwards does not run until you inspect it again. \`run\` grants what the manifest requests, except red flags: those
need --grant. \`sign\` writes skill.sig with your Ed25519 key; \`verify\` exits with 0 only if the signature is valid and its key
is one that you \`trust\`. Exit 124: a limit stopped the skill; 1: the skill failed; 126: the run was rejected.

examples:
  ringfence skill init hello --lang python
  ringfence skill inspect examples/skills/word-count
  ringfence skill run examples/skills/word-count --input '"one two three"' --json
  ringfence skill run word-count --input 'one two' --agent-id build-bot
  ringfence skill usage --json
`

const WASM = `usage: ringfence wasm run FILE [--input JSON] [--fuel N] [--memory MB] [--timeout S] [--grant CAPABILITY]…
                          [--call FUNCTION] [--workspace DIR] [--agent-id ID]
       ringfence wasm meter IN -o OUT

Runs a WebAssembly module or component with only the capabilities you grant. Fuel is counted by Wasmtime's rules; a deadline and a
memory limit always apply. Exit 124: a limit stopped the module; 1: the module failed.

examples:
  ringfence wasm run skill.wasm --input '{"n": 3}' --fuel 100000
  ringfence wasm run skill.wasm --grant 'ToolInvoke(file_read)' --workspace data
  ringfence wasm run plugin.wasm --call count_vowels --input '"some text"'
  ringfence wasm meter skill.wasm -o metered.wasm
`

const EVAL = `usage: ringfence eval EXPR [--context JSON] [--async] [--timeout MS] [--memory MB]

Evaluates JavaScript in a separate engine with no files, no network and no processes, under a deadline and a memory
limit. Prints the value as JSON. Exit 124: a limit stopped the code; 1: the code threw.

examples:
  ringfence eval '1 + 2'
  ringfence eval 'items.filter(i => i.price > 10)' --context '{"items":[{"price":12}]}'
  ringfence eval --async 'await Promise.resolve(3)' --timeout 200
`

const MCP = `usage: ringfence mcp [--workspace DIR] [--network MODE] [--allow-host H] [--ask-hosts] [--agent-id ID]
                     [--preset P] [--read P] [--write P] [--deny P] [--backend NAME] [--min-isolation LEVEL] [--yes]
       ringfence mcp ls [--json]
       ringfence mcp approve NAME [--yes]

Starts an MCP server on standard input and output. The client's tools run in one sandbox whose workspace is this
directory. If the policy asks about a command, the user is asked through the client, if the client supports that.
--yes approves such commands without asking (recorded); it never allows a host. See docs/agents.md.

Tools of the MCP servers in [[mcp]] of the configuration are offered too, once their descriptions are approved
(docs/mcp-gateway.md): \`mcp ls\` lists the servers, \`mcp approve NAME\` shows new descriptions and asks.

examples:
  ringfence mcp
  ringfence mcp ls
  ringfence mcp approve notes
  claude mcp add ringfence -- ringfence mcp
  ringfence mcp --allow-host pypi.org --allow-host files.pythonhosted.org
`

const WORKER = `usage: ringfence worker anthropic --environment ID [--workspace DIR] [--sessions N] [--drain S] [--idle S] [--server] [--yes]
                                  [--network MODE] [--allow-host H] [--ask-hosts] [--preset P] [--read P] [--write P] [--deny P]
                                  [--backend NAME] [--min-isolation LEVEL] [--agent-id ID]

Runs the tools (bash, read, write, edit, glob, grep) of agents in a self-hosted environment of Anthropic. Every session has a
sandbox of its own; its files are in a directory of its own below --workspace (this one). Needs the package @anthropic-ai/sdk beside
ringfence, and ANTHROPIC_ENVIRONMENT_KEY. --server: the sandboxes are on the server at RINGFENCE_URL, whose admins approve.
SIGTERM takes no new sessions and waits --drain seconds (30) for the running ones. See docs/agents.md.

examples:
  ANTHROPIC_ENVIRONMENT_KEY=… ringfence worker anthropic --environment env_123
  ringfence worker anthropic --environment env_123 --sessions 8 --allow-host pypi.org --allow-host files.pythonhosted.org
`

const EXEC_SERVER = `usage: ringfence exec-server [--port N] [--workspace DIR] [--network MODE] [--allow-host H] [--agent-id ID]
                             [--preset P] [--read P] [--write P] [--deny P] [--backend NAME] [--min-isolation LEVEL] [--yes]

Runs the commands and file operations of an unmodified Codex in a sandbox on this directory. Prints the variable to start
Codex with; each Codex session gets a sandbox of its own. A command that the policy denies, or that needs approval, ends with exit code 126
and the reason. --yes approves commands that need approval (recorded). --server: in sandboxes of the server at RINGFENCE_URL, with the
key in RINGFENCE_API_KEY. See docs/agents.md.

examples:
  ringfence exec-server > codex.env &
  env $(cat codex.env) codex
  env $(ringfence exec-server --server) codex
`

const HOOK = `usage: ringfence hook claude-code|codex|gemini [--sandboxed | --wrap]
       ringfence hook install claude-code|codex|gemini [--project] [--sandboxed | --wrap] [--yes]
       ringfence hook test claude-code|codex|gemini [--project]

Reads the agent's tool call on standard input and answers in the agent's own format. A command that the policy permits
only in a sandbox is asked about (Claude Code) or rejected. --sandboxed: the agent's own sandbox is enabled. --wrap:
Claude Code runs the command through \`ringfence run\`. A hook that cannot start blocks the tool call.
install shows the settings, writes them after you confirm, and tests the hook; --project writes the settings of this
directory, which may be shared with other machines.
test runs the installed hook as the agent would. Exit 0: the hook works; 1: it does not, or a step is left to do.

examples:
  ringfence hook install claude-code --wrap
  ringfence hook install codex --sandboxed
  ringfence hook test codex --json
  echo '{"tool_name":"Bash","tool_input":{"command":"rm -rf /"}}' | ringfence hook claude-code
`

const SERVE = `usage: ringfence serve [--host 127.0.0.1] [--port 4200] [--database-url URL] [--tls-cert F --tls-key F]
                       [--role all|api|node]

Serves the API under /v1 (described at /openapi.json) until SIGTERM, then waits for running commands to finish. SIGHUP
reloads the configuration. Records and the audit log are stored in SQLite under the state directory, or in PostgreSQL.
An address other than loopback needs TLS, or --insecure-bind behind your own TLS proxy. --print-key creates and prints
an admin key. --role: what this server does in a cluster (docs/cluster.md). The printed console URL signs you in once, within ten minutes (docs/console.md).

  --log-format FORMAT  text (default): messages; json: one JSON line on standard error for each request, record of
                       the audit log and message, without paths, commands and secrets (docs/operations.md)

examples:
  ringfence serve
  ringfence serve --port 8080 --database-url postgres://ringfence@localhost/ringfence
  ringfence serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
`

const BACKUP = `usage: ringfence backup FILE [--database-url postgres://…] [--json]

Writes the records (SQLite or PostgreSQL), the audit log and the keys of the state directory to a new file that only you
can read. The server may run. The copy is verified before the file appears. Keep the file as secret as the state
directory: it contains the signing key of the audit log and the secret of sandbox tokens.

Not in the file: the files of volumes, snapshots, templates, images and paused sandboxes; the command lists them.

examples:
  ringfence backup /var/backups/ringfence.tar.gz
  ringfence backup /var/backups/ringfence.tar.gz --json
`

const RESTORE = `usage: ringfence restore FILE [--force] [--against HEAD] [--database-url postgres://…] [--json]

Unpacks a backup beside the state directory, compares every file with the backup's list, verifies the whole audit log
against its signed head, and only then replaces the state directory. Stop the server first. If anything fails, nothing
has changed.

  --force              replace a state directory that is not empty; the old one is kept beside it
  --against FILE       a copy of anchor/head.jsonl stored elsewhere; detects a backup that is older than it
  --database-url URL   an empty PostgreSQL database for the records (default: as configured; none: SQLite)

examples:
  ringfence restore /var/backups/ringfence.tar.gz
  RINGFENCE_HOME=/srv/ringfence ringfence restore /var/backups/ringfence.tar.gz --force
`

const MIGRATE = `usage: ringfence migrate --database-url postgres://user@host/name [--json]

Moves the records and the audit log of the state directory from SQLite to an empty PostgreSQL database. Stop the server
first. Everything is copied in one transaction, counted and verified; only then does the state directory switch to
PostgreSQL. A failed migration changes nothing. A second run only verifies. The SQLite file is kept.

examples:
  ringfence migrate --database-url postgres://ringfence@localhost/ringfence
  RINGFENCE_DATABASE_URL=postgres://ringfence@localhost/ringfence ringfence migrate --json
`

const SANDBOX = `usage: ringfence sandbox create [options]                prints the id
       ringfence sandbox ls [--all] [--state S] [--label K=V] [--limit N]
       ringfence sandbox exec ID [-it] [-c 'shell line' | program…]
       ringfence sandbox shell ID                       a shell in a terminal of the sandbox
       ringfence sandbox attach ID [EXEC]               the output of a running command
       ringfence sandbox cp [-r] PATH ID:/path | ID:/path PATH
       ringfence sandbox port ID PORT [--open [--listen PORT]]
       ringfence sandbox logs ID [-f]                   audit records; -f follows the output of its commands
       ringfence sandbox stats [ID…] [--no-stream]      processor and memory
       ringfence sandbox wait ID [EXEC]                 until the sandbox, or one of its commands, has ended
       ringfence sandbox get|pause|resume|snapshot|fork ID
       ringfence sandbox ssh ID [command…]              ssh into the sandbox; --print: a configuration for ssh -F, scp, rsync
       ringfence sandbox rm ID…

RINGFENCE_URL names the server (default: the one of \`ringfence login\`, else http://127.0.0.1:4200), RINGFENCE_API_KEY the key.
A sandbox with a name (create --name web) can be used by it wherever an ID is asked for.
create accepts --name, --label K=V, --backend, --min-isolation, --template, --image, --workspace, --mount, --volume NAME:/path[:ro],
--network, --allow-host, --env, --secret, --cpus, --memory, --disk, --pids, --timeout (maximum lifetime; 0 = unlimited), --idle, --review,
--isolate (commands share only the mounts), --agent-id. Sizes are MB, or 512m, 2g; times are seconds, or 30s, 5m, 1h.
exec --isolate is refused unless the sandbox isolates its commands; there, --use-secret NAME gives the command a secret, --use-port N
a port at which it can be reached, and --no-network takes the proxy away.
exec passes standard input that is not a terminal, signals and the exit code. -t needs \`[policy] allow_interactive\` on the server.
port prints the URL of a port inside the sandbox; with --open, this machine's loopback leads to it until Ctrl-C.

examples:
  ringfence sandbox create --name web --memory 512m --timeout 10m
  ringfence sandbox exec web -c 'uname -a'
  tar c src | ringfence sandbox exec web tar x -C /tmp
  ringfence sandbox cp -r src web:/tmp/src
  ringfence sandbox port web 8080 --open
  ringfence sandbox rm web
`

const VOLUME = `usage: ringfence volume create NAME [--size MB]
       ringfence volume ls
       ringfence volume cp NAME NEW-NAME [--read-only]
       ringfence volume rm NAME…

A volume is a named directory of the server that outlives sandboxes. Mount it with
\`ringfence sandbox create --volume NAME:/path[:ro]\`, in several sandboxes if you like. A read-only copy is a snapshot.
RINGFENCE_URL names the server (default http://127.0.0.1:4200), RINGFENCE_API_KEY the key.

examples:
  ringfence volume create models --size 20480
  ringfence sandbox create --volume models:/models:ro
  ringfence volume cp models models-2024 --read-only
`

const CLUSTER = `usage: ringfence cluster init [--database-url URL]
       ringfence cluster token [--minutes 60]
       ringfence cluster join TOKEN [--database-url URL]

Several servers on one PostgreSQL are a cluster: any of them answers requests for sandboxes of all. \`init\` creates the
cluster's key and certificate authority, once. \`token\` prints a token that lets one more machine join, once. A server is
a node when its configuration has [cluster] and its state directory the key (docs/cluster.md).

examples:
  ringfence cluster init --database-url postgres://ringfence@db/ringfence
  ringfence cluster token
  ringfence cluster join rfj_0123 --database-url postgres://ringfence@db/ringfence
`

const NODE = `usage: ringfence node ls
       ringfence node cordon|uncordon NAME…
       ringfence node drain [--wait SECS] NAME…
       ringfence node rm NAME…

Shows and changes the nodes of the cluster of the server at RINGFENCE_URL. A node that is cordoned takes no new
sandboxes; those that it has go on until they end. One that is drained also moves sandboxes that are paused, or were created
with \`restart\`, to other nodes. \`--wait\` waits until none is left, and exits with 1 if some are then. \`rm\` forgets a node that does not run any more.

examples:
  ringfence node ls
  ringfence node drain n2 --wait 600
`

const SNAPSHOT = `usage: ringfence snapshot ls
       ringfence snapshot rm ID…

Lists and removes snapshots on the server at RINGFENCE_URL. \`ringfence sandbox snapshot ID\` takes one;
\`ringfence sandbox create --template ID\` starts a sandbox from it.

examples:
  ringfence snapshot ls
  ringfence snapshot rm snp_0123
`

const TEMPLATE = `usage: ringfence template build -t NAME [-f FILE] [DIR]          from a Dockerfile
       ringfence template build -t NAME --image IMAGE | --template NAME
       ringfence template ls
       ringfence template rm NAME…

Builds templates on the server at RINGFENCE_URL: the steps run in a sandbox, with its policy, limits and audit log, and
\`ringfence sandbox create --template NAME\` starts from the result. build accepts --start and --ready (commands), --cpus,
--memory, --no-cache, and --username with --password-stdin for the registry. Prints the log while it runs, then the id.

examples:
  ringfence template build -t tools .
  ringfence template build -t python --image python:3.11
  ringfence template ls --json
  ringfence template rm tools
`

const KEY = `usage: ringfence key create [--scope create,exec,read,admin,metrics] [--tenant NAME] [--name TEXT] [--e2b]
       ringfence key ls
       ringfence key revoke ID

Works on the local state directory unless RINGFENCE_URL is set. A key is printed once and stored as a hash. The default
scopes are create, exec and read. An admin key sees every tenant and answers approvals; a metrics key reads /metrics only.

examples:
  ringfence key create
  ringfence key create --scope read --tenant build --json
  ringfence key create --e2b
  ringfence key revoke key_0123
`

const WEBHOOK = `usage: ringfence webhook create URL [--event NAME…]
       ringfence webhook ls
       ringfence webhook rm ID…

Sends records of the audit log to a URL, signed with a secret that is printed once. Without --event, all records are sent.

examples:
  ringfence webhook create https://example.com/hook --event SandboxViolation
  ringfence webhook ls
`

const LOGIN = `usage: ringfence login [URL] [--name NAME]     stores a server and its key; reads the key from standard input
       ringfence login --list
       ringfence login --use NAME
       ringfence logout [NAME]

Commands that use a server take the stored one when RINGFENCE_URL is not set. Keys are stored in the state directory, in a file that
only you can read.

examples:
  ringfence login https://ringfence.example.com --name team
  echo "$KEY" | ringfence login http://127.0.0.1:4200
  ringfence login --use team
`

const COMPLETION = `usage: ringfence completion bash|zsh|fish

Prints a script that completes commands, actions and flags.

examples:
  source <(ringfence completion bash)
  ringfence completion fish > ~/.config/fish/completions/ringfence.fish
`

const PROVE = `usage: ringfence prove [BACKEND…] [--quick|--full] [--only GUARANTEE,…] [--report FILE]
       ringfence prove --verify FILE [--key KEY]

Attacks every guarantee that the backends of this host claim, each attack with a control run without isolation, and prints which
guarantees hold. It needs no compiler and leaves nothing behind; Ctrl-C ends it after the current attack. A guarantee that was
broken is not relied on any more on this host: plans that need it are refused until a later run proves it, or it is waived by name.
--quick tries one attack for each guarantee, --full also all attacks as root of a writable root. --report writes the result
signed with the key of this host's audit log; --verify checks such a file, with --key against a key that you know.
Exit codes: 0 everything claimed was proven, 1 something was broken.

examples:
  ringfence prove
  ringfence prove bubblewrap --quick
  ringfence prove --report report.json && ringfence prove --verify report.json
`

const APPROVE = `usage: ringfence approve [ID] [--reason TEXT] [--for once|sandbox|always [--yes]]
       ringfence reject [ID] [--reason TEXT]

Approves or rejects a waiting command or connection on the server at RINGFENCE_URL. Without an id, lists the pending
approvals. A host is approved for the connections that wait (--for once, the default), for its sandbox, or always: then the
change of the policy is shown, and saved after a yes.

examples:
  ringfence approve
  ringfence approve ap_0123
  ringfence reject ap_0123 --reason 'use the mirror'
`

const RELOAD = `usage: ringfence reload

Reloads the configuration of the server at RINGFENCE_URL. An invalid configuration changes nothing.

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
  prove: PROVE,
  policy: POLICY,
  audit: AUDIT,
  skill: SKILL,
  wasm: WASM,
  eval: EVAL,
  'exec-server': EXEC_SERVER,
  mcp: MCP,
  worker: WORKER,
  hook: HOOK,
  serve: SERVE,
  sandbox: SANDBOX,
  volume: VOLUME,
  cluster: CLUSTER,
  node: NODE,
  snapshot: SNAPSHOT,
  template: TEMPLATE,
  webhook: WEBHOOK,
  login: LOGIN,
  logout: LOGIN,
  key: KEY,
  approve: APPROVE,
  reject: APPROVE,
  migrate: MIGRATE,
  backup: BACKUP,
  restore: RESTORE,
  reload: RELOAD,
  completion: COMPLETION,
}

/** The names of all commands. */
export const commandNames = (): readonly string[] => Object.keys(HELP)

/** Prints the help text of a command. */
export function printHelp(command: string): number {
  out(helpText(command))
  return 0
}

/** The help text of a command, or the overview if there is no such command. */
export const helpText = (command: string): string =>
  Object.hasOwn(HELP, command) ? (HELP[command] as string) : OVERVIEW
