/** Paths that contain secrets, start programs, or belong to the system. Segments; `*` in a segment matches any text. */

const lines = (text: string): readonly string[] =>
  text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')

/** Credentials in any directory: a sequence of segments anywhere in a path. */
export const SECRETS: readonly string[] = lines(`
  .ssh
  .gnupg
  .aws
  .azure
  .kube
  .docker/config.json
  .config/gcloud
  .config/gh
  .config/hub
  .config/op
  .config/doctl
  .config/rclone
  .config/git/credentials
  .config/containers/auth.json
  .netrc
  _netrc
  .npmrc
  .pypirc
  .git-credentials
  .pgpass
  .my.cnf
  .mylogin.cnf
  .vault-token
  .terraform.d/credentials.tfrc.json
  .cargo/credentials
  .cargo/credentials.toml
  .gem/credentials
  .m2/settings.xml
  .gradle/gradle.properties
  .composer/auth.json
  .s3cfg
  .boto
  .password-store
  .local/share/keyrings
  .mozilla
  .config/google-chrome
  .config/chromium
  .config/BraveSoftware
  Library/Keychains
  Library/Cookies
  .bash_history
  .zsh_history
  .python_history
  .node_repl_history
  .psql_history
  .mysql_history
  .claude/.credentials.json
  .codex/auth.json
  .gemini/oauth_creds.json
  .ringfence
  .age
  .sops
  id_rsa
  id_dsa
  id_ecdsa
  id_ed25519
  id_ed25519_sk
  id_ecdsa_sk
  .electrum
  .bitcoin
  .ethereum/keystore
  wallet.dat
`)

/** Credentials of the system, as absolute paths. */
export const SYSTEM_SECRETS: readonly string[] = lines(`
  /etc/shadow
  /etc/shadow-
  /etc/gshadow
  /etc/gshadow-
  /etc/sudoers
  /etc/sudoers.d
  /etc/master.passwd
  /etc/security/opasswd
  /etc/ssh/ssh_host_*
  /etc/ssl/private
  /etc/krb5.keytab
  /etc/kubernetes
  /etc/rancher
  /etc/wireguard
  /etc/openvpn
  /etc/NetworkManager/system-connections
  /etc/docker/key.json
  /var/lib/kubelet
  /var/lib/docker
  /var/lib/sss
  /var/lib/samba/private
  /run/secrets
  /var/run/secrets
  /private/etc/master.passwd
  /private/var/db/dslocal
  /proc/kcore
  /proc/1/environ
  /proc/kmem
  /proc/kallsyms
  /proc/*/mem
  /proc/*/root
  /proc/*/maps
  /dev/mem
  /dev/kmem
  /dev/port
  /dev/sd*
  /dev/hd*
  /dev/vd*
  /dev/xvd*
  /dev/nvme*
  /dev/mmcblk*
  /dev/disk*
  /dev/rdisk*
  /dev/dm-*
  /dev/mapper
  /dev/md*
  /dev/loop*
  /dev/input
  /dev/uinput
  /dev/kvm
  /dev/fuse
  /dev/snd
  /dev/video*
  /root
  /var/run/docker.sock
  /run/docker.sock
  /run/containerd
  /var/run/containerd
  /run/podman
  /var/run/podman
  /run/crio
  /var/run/crio
  /run/user
  /var/run/dbus
  /run/dbus
  /run/systemd/private
  /var/spool/cron
  /var/mail
  /var/spool/mail
`)

/** Files that describe the machine in detail; reading them needs approval. */
export const ASK_TO_READ: readonly string[] = lines(`
  /etc/passwd
  /etc/group
  /etc/crontab
  /etc/cron.d
  /etc/fstab
  /etc/exports
  /proc/*/environ
  /proc/*/cmdline
  /proc/*/fd
  /proc/self/mountinfo
  /proc/net
  /var/log
  /dev/tty*
`)

/** Secrets of a project: segments anywhere. Reading them needs approval. */
export const PROJECT_SECRETS: readonly string[] = lines(`
  .env
  .env.local
  .env.production
  .env.staging
  .env.development
  .env.prod
  .env.*.local
  secrets
  .secrets
  credentials
  credentials.json
  service-account*.json
  secrets.json
  secrets.yml
  secrets.yaml
  secrets.toml
  secrets.env
  secrets.ini
  secrets.txt
  *.pem
  *.p12
  *.pfx
  *.keystore
  *.jks
  *.kdbx
  *.key
  *.env
  .flaskenv
  .dev.vars
  .pgpass
  .htpasswd
`)

/** Files in a home directory that run code later. Matched below the home, or by suffix below an unknown directory. */
export const STARTUP: readonly string[] = lines(`
  .config/autostart
  .config/systemd
  .config/fish
  .config/git
  .config/nvim
  .config/environment.d
  .config/pip
  .config/direnv
  .config/ranger
  .config/mpv/scripts
  .local/bin
  .local/share/applications
  .local/share/systemd
  .local/lib
  .local/share/bash-completion
  .bash_completion
  .pam_environment
  .xinitrc
  .xsession
  .xsessionrc
  .xprofile
  .Xresources
  .forward
  .procmailrc
  .pythonrc
  .pythonstartup
  .irbrc
  .pryrc
  .Rprofile
  .Renviron
  .perltidyrc
  .wgetrc
  .curlrc
  .psqlrc
  .sqliterc
  .lesskey
  .lessfilter
  .gitignore_global
  .githooks
  .git-templates
  .vim
  .emacs
  .emacs.d
  .spacemacs
  .atom
  .oh-my-zsh
  .zsh
  .zlogin
  .npm-global
  .yarnrc
  .yarnrc.yml
  .cargo/config
  .cargo/config.toml
  .cargo/bin
  .m2
  .gradle/init.gradle
  .gradle/init.d
  .jupyter
  .ipython
  .mozilla
  .asdfrc
  .tool-versions
  bin
  go/bin
  Library/LaunchAgents
  Library/LaunchDaemons
`)

/** Names that start code in any directory. */
export const STARTUP_NAMES: readonly string[] = [
  'sitecustomize.py',
  'usercustomize.py',
  'site-packages/*.pth',
  'dist-packages/*.pth',
  'authorized_keys',
]

/** CI and automation configuration; changes need approval. */
export const AUTOMATION: readonly string[] = lines(`
  .github/workflows
  .github/actions
  .gitlab-ci.yml
  .circleci
  .travis.yml
  .drone.yml
  .woodpecker.yml
  .buildkite
  azure-pipelines.yml
  bitbucket-pipelines.yml
  Jenkinsfile
  .gitea/workflows
  .forgejo/workflows
`)

/** Protected names whose change can be legitimate; changes need approval. */
export const SOFT_PROTECTED: ReadonlySet<string> = new Set([
  '.vscode',
  '.idea',
  '.zed',
  '.fleet',
  '.husky',
  '.pre-commit-config.yaml',
  '.pre-commit-config.yml',
  'prek.toml',
  '.lefthook.yml',
  'lefthook.yml',
  'lefthook.yaml',
  'lefthook-local.yml',
  'pnpm-workspace.yaml',
  'rust-toolchain',
  'rust-toolchain.toml',
  '.gitmodules',
  '.devcontainer',
  '.mise.toml',
  '.tool-versions',
  '.aider.conf.yml',
  // Automation: runs on other machines, and only after a push.
  '.github/workflows',
  '.github/actions',
  '.gitlab-ci.yml',
  '.circleci',
  '.travis.yml',
  'azure-pipelines.yml',
  'bitbucket-pipelines.yml',
  '.drone.yml',
  '.woodpecker',
  '.woodpecker.yml',
  '.woodpecker.yaml',
  '.build.yml',
  '.builds',
  '.tekton',
  '.semaphore',
  'jenkinsfile',
  '.buildkite',
  '.cirrus.yml',
  '.appveyor.yml',
  'appveyor.yml',
  '.forgejo/workflows',
  '.gitea/workflows',
])

/** Records and settings of Ringfence and of similar tools. */
export const OWN_FILES =
  /(^|\/)(audit(\.\w+)?\.(jsonl?|log|db)|trail(\.\w+)?\.jsonl?|ringfence\.toml|sandbox[-_]?policy[\w.-]*)$|(^|\/)(\.ringfence|\.sandbox|\.sandforge)(\/|$)|(^|\/)(\.config|\.local\/(state|share))\/(ringfence|sandbox\w*|sandforge)(\/|$)|^\/(etc|var\/log|var\/lib|run|var\/run|opt)\/(ringfence|sandbox\w*|sandforge|audit)(\/|$)/

/** System directories, as absolute paths; nothing below them may be changed. */
export const SYSTEM: readonly string[] = lines(`
  /bin
  /boot
  /dev
  /etc
  /lib
  /lib32
  /lib64
  /libx32
  /opt
  /proc
  /root
  /run
  /sbin
  /srv
  /sys
  /usr
  /var
  /snap
  /nix
  /System
  /Library
  /Applications
  /private
  /cores
`)

/** World-writable directories below a system directory. */
export const SHARED: readonly string[] = lines(`
  /tmp
  /var/tmp
  /private/tmp
  /private/var/tmp
  /private/var/folders
  /var/folders
  /dev/shm
`)

/** Devices that any command may read or write. */
export const PLAIN_DEVICES =
  /^\/dev\/(null|zero|full|random|urandom|tty|stdin|stdout|stderr|fd(\/\d+)?|ptmx|pts\/\d+)$|^\/proc\/(self|thread-self)\/fd\/\d+$/

/** They answer for ever, or wait for somebody. */
export const ENDLESS_DEVICES = /\/(zero|full|random|urandom|tty|ptmx|pts\/\d+)$/

/** Kernel files have no size, and some no end; only those that are known to be short are read on the host. */
export const KERNEL_FILES =
  /^\/(dev|sys)\/|^\/proc\/(?!(cpuinfo|meminfo|version|loadavg|uptime|stat|filesystems|mounts|swaps|partitions|(self|\d+)\/(status|stat|comm|limits|cgroup))$)/
