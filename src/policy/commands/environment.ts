/** Variables that change what a later program runs, loads or trusts. */

/** The value is a command line and is judged as one. */
export const COMMAND_VARIABLES: ReadonlySet<string> = new Set(
  `PAGER MANPAGER GIT_PAGER LESSOPEN LESSCLOSE EDITOR VISUAL GIT_EDITOR GIT_SEQUENCE_EDITOR FCEDIT SUDO_EDITOR
  SVN_EDITOR HGEDITOR BROWSER GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_PROXY_COMMAND GIT_ASKPASS SSH_ASKPASS
  SUDO_ASKPASS PROMPT_COMMAND RSYNC_RSH CVS_RSH SVN_SSH TAR_OPTIONS PS0 PS1 PS4 RUSTC_WRAPPER
  RUSTC_WORKSPACE_WRAPPER RUSTC CC CXX AR LD MAKESHELL CONFIG_SHELL MANROFFOPT MANOPT MAILER TEXEDIT MORE AWSPAGER AWS_PAGER
  SYSTEMD_PAGER DELTA_PAGER BAT_PAGER GH_PAGER GH_EDITOR GH_BROWSER KUBE_EDITOR PSQL_EDITOR PSQL_PAGER
  MYSQL_EDITOR FZF_DEFAULT_COMMAND SHELL GREP_COMMAND XARGS_COMMAND MAKE CMAKE_C_COMPILER_LAUNCHER
  CMAKE_CXX_COMPILER_LAUNCHER CHOKIDAR_COMMAND LESSEDIT`.split(/\s+/),
)

/** Names or prefixes (ending in `*`) of variables that load code or redirect trust. The minimum action is `ask`. */
export const POISONED: readonly { readonly names: readonly string[]; readonly why: string }[] = [
  {
    names: ['LD_PRELOAD', 'LD_AUDIT', 'LD_*', 'DYLD_*', 'GLIBC_TUNABLES'],
    why: 'makes programs load other libraries',
  },
  { names: ['BASH_ENV', 'ENV', 'ZDOTDIR', 'FPATH', 'INPUTRC'], why: 'sets a file that the next shell runs' },
  {
    names: ['BASH_FUNC_*', 'SHELLOPTS', 'BASHOPTS', 'BASH_XTRACEFD'],
    why: 'changes how the next shell behaves',
  },
  { names: ['GIT_*'], why: 'changes which programs and settings git uses' },
  {
    names: ['NODE_OPTIONS', 'NODE_PATH', 'NODE_REPL_EXTERNAL_MODULE', 'NODE_EXTRA_CA_CERTS'],
    why: 'makes node load other code',
  },
  {
    names: ['NODE_TLS_REJECT_UNAUTHORIZED', 'GIT_SSL_NO_VERIFY', 'PYTHONHTTPSVERIFY'],
    why: 'disables certificate checks',
  },
  {
    names: [
      'PERL5DB',
      'PERL5SHELL',
      'PYTHONSTARTUP',
      'PYTHONINSPECT',
      'PYTHONBREAKPOINT',
      'PYTHONHOME',
      'PYTHONWARNINGS',
      'PYTHONUSERBASE',
    ],
    why: 'makes the interpreter run other code',
  },
  {
    names: [
      'JAVA_TOOL_OPTIONS',
      '_JAVA_OPTIONS',
      'JDK_JAVA_OPTIONS',
      'MAVEN_OPTS',
      'GRADLE_OPTS',
      'CLASSPATH',
    ],
    why: 'makes java load other code',
  },
  {
    names: [
      'GCONV_PATH',
      'OPENSSL_CONF',
      'OPENSSL_MODULES',
      'OPENSSL_ENGINES',
      'LOCPATH',
      'NLSPATH',
      'HOSTALIASES',
      'RES_OPTIONS',
      'TERMINFO',
      'TERMINFO_DIRS',
    ],
    why: 'makes programs load other files',
  },
  { names: ['GREP_OPTIONS', 'JQ_LIBRARY_PATH', 'LESSCHARDEF'], why: 'adds options to a program' },
  { names: ['MAKEFLAGS', 'GNUMAKEFLAGS', 'MAKEFILES', 'MAKEFILE_LIST'], why: 'makes make read other rules' },
  {
    names: [
      'http_proxy',
      'https_proxy',
      'HTTP_PROXY',
      'HTTPS_PROXY',
      'ALL_PROXY',
      'all_proxy',
      'ftp_proxy',
      'no_proxy',
      'NO_PROXY',
    ],
    why: 'sends traffic through another host',
  },
  {
    names: [
      'SSL_CERT_FILE',
      'SSL_CERT_DIR',
      'CURL_CA_BUNDLE',
      'REQUESTS_CA_BUNDLE',
      'CURL_HOME',
      'WGETRC',
      'SSLKEYLOGFILE',
    ],
    why: 'changes trusted certificates',
  },
  {
    names: [
      'HOME',
      'XDG_*',
      'USERPROFILE',
      'CDPATH',
      'CARGO_HOME',
      'RUSTUP_HOME',
      'HISTFILE',
      'HISTCONTROL',
      'HISTIGNORE',
      'HISTSIZE',
      'HISTFILESIZE',
      'TMOUT',
    ],
    why: 'changes where programs look for settings or store records',
  },
  {
    names: [
      'DOCKER_HOST',
      'DOCKER_CONFIG',
      'KUBECONFIG',
      'SSH_AUTH_SOCK',
      'DBUS_SESSION_BUS_ADDRESS',
      'CONTAINER_HOST',
      'AWS_ENDPOINT_URL',
    ],
    why: 'points a client at another service',
  },
  {
    names: [
      'PIP_INDEX_URL',
      'PIP_EXTRA_INDEX_URL',
      'UV_INDEX_URL',
      'UV_DEFAULT_INDEX',
      'GOPROXY',
      'GONOSUMDB',
      'GOFLAGS',
      'GONOSUMCHECK',
      'GOSUMDB',
      'GOINSECURE',
      'CARGO_REGISTRIES_*',
      'YARN_REGISTRY',
      'COREPACK_NPM_REGISTRY',
      'BUNDLE_MIRROR*',
    ],
    why: 'uses another package source',
  },
  {
    names: [
      'LESS',
      'LESSSECURE',
      'LESSKEY',
      'LESSKEY_SYSTEM',
      'LESSKEYIN',
      'RIPGREP_CONFIG_PATH',
      'ACKRC',
      'VIMINIT',
      'EXINIT',
      'GVIMINIT',
      'MYVIMRC',
      'SCREENRC',
      'TMUX_TMPDIR',
      'MOST_INITFILE',
    ],
    why: 'changes settings that can run programs',
  },
  {
    names: [
      'ANSIBLE_*',
      'TF_CLI_ARGS*',
      'TF_CLI_CONFIG_FILE',
      'RUSTFLAGS',
      'CARGO_BUILD_RUSTC*',
      'CARGO_TARGET_*',
      'PKG_CONFIG*',
      'CFLAGS',
      'LDFLAGS',
      'M2_HOME',
      'ELECTRON_RUN_AS_NODE',
      'DENO_*',
      'BUN_*',
    ],
    why: 'changes what a build runs',
  },
]

/** Variables that load workspace code into a program that runs workspace code anyway. */
export const BOXED_VARIABLES: readonly string[] = [
  'LD_LIBRARY_PATH',
  'PYTHONPATH',
  'PERL5LIB',
  'PERL5OPT',
  'PERLLIB',
  'RUBYLIB',
  'RUBYOPT',
  'NODE_PATH',
  'LUA_PATH',
  'LUA_CPATH',
  'LUA_INIT',
  'PHPRC',
  'PHP_INI_SCAN_DIR',
  'GEM_HOME',
  'GEM_PATH',
  'BUNDLE_GEMFILE',
  'npm_config_*',
  'NPM_CONFIG_*',
  'CFLAGS',
  'LDFLAGS',
  'RUSTFLAGS',
  'CC',
  'CXX',
  'GOFLAGS',
  'CLASSPATH',
  'MAVEN_OPTS',
  'GRADLE_OPTS',
  'PKG_CONFIG_PATH',
  'GIT_AUTHOR_*',
  'GIT_COMMITTER_*',
  'GIT_TERMINAL_PROMPT',
  'GIT_OPTIONAL_LOCKS',
  'GIT_TRACE*',
  'GIT_MERGE_AUTOEDIT',
  'XDG_CACHE_HOME',
  'NO_PROXY',
  'no_proxy',
  'BUN_ENV',
  'DENO_DIR',
  'LESS',
  'SHELL',
  'PYTHONWARNINGS',
  'MANPATH',
  'INFOPATH',
]

/** Names of variables that contain credentials. */
export const SECRET_VARIABLE =
  /(^|_)(API_?KEYS?|KEY|SECRET\w*|TOKENS?|[A-Z0-9]*PASSWORD|[A-Z0-9]*PASSWD|(SSH)?PASS|PASSPHRASE|CREDENTIALS?|CREDS|BEARER|JWT|COOKIE|PRIVATE\w*|AUTH|PAT|DSN|CERT|CONNECTION_STRING|SERVICE_ACCOUNT)(_|$)|_PWD$|^(AWS|OPENAI|ANTHROPIC|AZURE|GROK|STRIPE|TWILIO|SENDGRID|SLACK|SUPABASE|JWT)_|^(DATABASE|REDIS|MONGO|MONGODB|POSTGRES|MYSQL|AMQP)_(URL|URI)$/i
