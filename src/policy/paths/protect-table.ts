/**
 * Every name below a writable mount that later runs code outside the sandbox, or tells a program there what to run: one
 * row per name, with the reason. Each is loaded automatically by a tool of the host, when a person uses git there, opens
 * an editor, a shell or another agent, or pushes.
 *
 * Left out on purpose, because ordinary work inside the sandbox writes them and a person starts them knowingly:
 *  - builds and tests: package.json, Makefile, Cargo.toml, build.rs, setup.py, conftest.py, gradlew, .mvn, tools/bazel,
 *    Dockerfile, compose files, Vagrantfile, flake.nix, linters' and test runners' configuration, bunfig.toml;
 *  - build output: node_modules, .venv, target, dist, .pnp.cjs, .terraform;
 *  - version files that contain only a number: .nvmrc, .node-version, .python-version, .ruby-version, .sdkmanrc;
 *  - variables without code: .env (a credential name, and hidden where it exists; aider takes commands from it);
 *  - git's data: objects, refs, index, HEAD, `.gitattributes` (it chooses among drivers that only the configuration
 *    defines), `rebase-apply` (patches, no commands). A commit can contain any of the names below; checking it out is a
 *    person's decision, as with any branch that was fetched;
 *  - files that a person opens by name: `*.code-workspace`, `*.sublime-project`, notebooks.
 */
export type ProtectedRow = {
  readonly name: string
  readonly why: string
}

/** Several names with one reason; no name contains a space. */
const rows = (why: string, names: string): readonly ProtectedRow[] =>
  names.split(/\s+/).map((name) => ({ name, why }))

/** May not be created, moved or replaced anywhere: their presence alone makes a directory a repository. */
export const REPOSITORIES: readonly ProtectedRow[] = [
  ...rows('git looks for it in every directory on the way up; its configuration runs programs', '.git'),
  ...rows('jj does the same', '.jj'),
]

/** Inside an existing repository, also among dependencies; its data stays writable. */
export const IN_REPOSITORY: readonly ProtectedRow[] = [
  ...rows('git runs what lies there', '.git/hooks'),
  ...rows('names programs: fsmonitor, hooksPath, filters, aliases', '.git/config .git/config.worktree'),
  ...rows('says which directory holds the configuration', '.git/commondir .git/gitdir'),
  ...rows('repositories of submodules, with hooks and configuration', '.git/modules'),
  ...rows('repositories of other working trees', '.git/worktrees'),
  ...rows('chooses which filters run, unseen in any commit', '.git/info/attributes'),
  ...rows('objects are taken from wherever it says', '.git/objects/info/alternates'),
  ...rows('`exec` lines run at `rebase --continue`', '.git/rebase-merge'),
  ...rows('the same for cherry-pick and revert of several commits', '.git/sequencer'),
  ...rows('old style remotes: an address may name a program', '.git/remotes .git/branches'),
  ...rows('Sapling’s configuration in a git repository', '.git/sl/config'),
  ...rows('jj: names programs', '.jj/repo/config.toml .jj/workspace-config.toml'),
  ...rows('Mercurial: hooks and extensions', '.hg/hgrc'),
]

/** At any depth, except below dependency directories, where packages contain their own. */
export const ANYWHERE: readonly ProtectedRow[] = [
  ...rows('our own policy', '.ringfence ringfence.toml'),
  ...rows(
    'git’s user-level settings, when a home or a dotfile tree is the workspace',
    '.gitconfig .config/git',
  ),
  ...rows('where submodules are fetched from, and how they are updated', '.gitmodules'),
  ...rows(
    'other version control: hooks, extensions or programs in their settings',
    '.hg .hgrc .sl .pijul _darcs/prefs .repo .gclient .arcconfig',
  ),
  ...rows('where hooks are kept by custom; core.hooksPath often points there', '.githooks .git-hooks .husky'),
  ...rows(
    'hook managers: what git’s hooks start',
    `.pre-commit-config.yaml .pre-commit-config.yml prek.toml .overcommit.yml .simple-git-hooks.json
     .simple-git-hooks.cjs .lefthook .lefthook-local .huskyrc .huskyrc.json .huskyrc.yaml .huskyrc.yml
     .huskyrc.js husky.config.js captainhook.json grumphp.yml`,
  ),
  ...rows(
    'lefthook reads the first of these that it finds, and merges the local ones',
    [
      'lefthook',
      '.lefthook',
      'lefthook-local',
      '.lefthook-local',
      '.config/lefthook',
      '.config/lefthook-local',
    ]
      .flatMap((name) => ['yml', 'yaml', 'toml', 'json', 'jsonc'].map((ending) => `${name}.${ending}`))
      .join(' '),
  ),
  ...rows(
    'editors: tasks, debuggers, language servers',
    `.vscode .idea .zed .fleet .vs .nova .theia .helix .externalToolBuilders .nlsp-settings .neoconf.json
     .ycm_extra_conf.py`,
  ),
  ...rows(
    'editors load it as code',
    `.nvim.lua .nvimrc .exrc .vimrc .gvimrc .vim .lvimrc .lnvim.lua .dir-locals.el .dir-locals-2.el
     .emacs .emacs.d .config/nvim .config/helix .config/zed`,
  ),
  ...rows('run when a shell enters the directory', '.envrc .direnv .autoenv .autoenv.zsh .rvmrc'),
  ...rows(
    'the same: tools, variables and hooks of mise and asdf',
    `.mise.toml mise.toml .mise.local.toml mise.local.toml .mise mise/config.toml .config/mise .config/mise.toml .rtx.toml
     .tool-versions .config/direnv`,
  ),
  ...rows(
    'shells run it at their start or end',
    `.bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile
     .zlogin .zlogout .kshrc .cshrc .tcshrc .login .logout .config/fish .config/nushell .bash_completion
     .oh-my-zsh .inputrc`,
  ),
  ...rows(
    'sessions and services of a desktop start it',
    `.xinitrc .xprofile .xsession .xsessionrc .pam_environment .config/autostart .config/systemd
     .config/environment.d .local/share/applications Library/LaunchAgents`,
  ),
  ...rows('found on PATH before other programs by custom of distributions', '.local/bin'),
  ...rows(
    'terminals and pagers run commands from it',
    '.tmux.conf .config/tmux .screenrc .lessfilter .ripgreprc',
  ),
  ...rows('debuggers run it in the directory where they start', '.gdbinit .lldbinit .pdbrc .perldb'),
  ...rows(
    'interpreters run it in the directory where they start',
    `.Rprofile .Renviron .RData .irbrc .pryrc .ghci .ocamlinit .iex.exs .octaverc .juliarc.jl .psqlrc
     .sqliterc`,
  ),
  ...rows(
    'programs of mail and transfer start others from it',
    '.forward .procmailrc .wgetrc .curlrc .my.cnf',
  ),
  ...rows('logins: commands, keys and proxies of ssh', '.ssh'),
  ...rows(
    'programs that hand out credentials, and plug-ins',
    '.aws/config .kube/config .docker/config.json .docker/cli-plugins .config/gh',
  ),
  ...rows(
    'package managers load code from it at any command, even one that only lists',
    `.npmrc .yarnrc .yarnrc.yml .yarn/releases .yarn/plugins .pnpmfile.cjs .pnpmfile.mjs
     pnpm-workspace.yaml .cargo/config .cargo/config.toml`,
  ),
  ...rows(
    'rustup and dotnet run the compiler of the directory that it names',
    'rust-toolchain rust-toolchain.toml global.json',
  ),
  ...rows('says where packages come from, for every project of the user', '.config/pip .pip'),
  ...rows(
    'containers and cloud machines that editors open by themselves',
    '.devcontainer .devcontainer.json .gitpod.yml .idx .replit',
  ),
  ...rows(
    'coding agents: hooks, commands, tool servers, permissions',
    `.mcp.json .claude .claude.json .codex .agents .cursor .gemini .windsurf .continue .aider.conf.yml
     .roo .roomodes .kiro .opencode opencode.json opencode.jsonc .crush.json crush.json .goose .amp
     .augment .cline .clinerules .kilocode .trae .junie .qwen .factory .copilot .amazonq .github/hooks .github/extensions`,
  ),
  ...rows(
    'agents take it for their instructions',
    `CLAUDE.md CLAUDE.local.md AGENTS.md AGENTS.override.md AGENT.md GEMINI.md QWEN.md CRUSH.md WARP.md
     .cursorrules .windsurfrules .goosehints .rules .agent .github/copilot-instructions.md
     .github/instructions .github/prompts .github/agents .github/skills .github/chatmodes`,
  ),
  ...rows(
    'runs on other machines after the next push',
    `.github/workflows .github/actions .gitlab-ci.yml .circleci .travis.yml azure-pipelines.yml
     bitbucket-pipelines.yml .drone.yml .woodpecker .woodpecker.yml .woodpecker.yaml Jenkinsfile
     .buildkite .cirrus.yml .build.yml .builds .tekton .semaphore .appveyor.yml appveyor.yml .forgejo/workflows .gitea/workflows`,
  ),
]

/** Below these, the names in `ANYWHERE` are not protected: packages are full of them, and no tool opens them automatically. */
export const DEPENDENCIES: readonly string[] = ['node_modules', 'site-packages']
