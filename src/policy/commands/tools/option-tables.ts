/**
 * Every option of the programs that may run on the host, from the programs' own help (GNU coreutils 9, diffutils, grep,
 * findutils, util-linux, procps, ripgrep, fd, tree). Short options first, as in getopt: a letter is a flag, `x:` takes a
 * value, `x::` an optional attached value, `#` stands for `-NUM`. Long options follow, with the same marks.
 * `npm run fuzz:options` compares the tables with the installed programs. An option that is in no table is never `allow`.
 *
 * SECURITY: a flag that is listed as taking a value hides the file after it; leave an option out rather than guess.
 */
const HELP = 'help version'
const CHECKSUM = `-bctwz binary check tag text zero ignore-missing quiet status strict warn ${HELP}`
const LS = `-1aAbBcCdDfFgGhHiI:klLmnNopqQrRsStT:uUvw:xXZ all almost-all author escape block-size: ignore-backups color::
  directory dired classify:: file-type format: full-time group-directories-first no-group human-readable si
  dereference-command-line dereference-command-line-symlink-to-dir hide: hyperlink:: indicator-style: inode ignore:
  kibibytes dereference numeric-uid-gid literal hide-control-chars show-control-chars quote-name quoting-style: reverse
  recursive size sort: time: time-style: tabsize: width: context zero ${HELP}`

/** Programs that read their file arguments. */
export const READER_TABLES: Readonly<Record<string, string>> = {
  cat: `-AbeEnstTuv show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting ${HELP}`,
  tac: `-brs: before regex separator: ${HELP}`,
  rev: '-hV help version',
  nl: `-b:d:f:h:i:l:n:ps:v:w: body-numbering: section-delimiter: footer-numbering: header-numbering: line-increment:
    join-blank-lines: number-format: no-renumber number-separator: starting-line-number: number-width: ${HELP}`,
  expand: `-#it: initial tabs: ${HELP}`,
  unexpand: `-#at: all first-only tabs: ${HELP}`,
  fold: `-#bsw: bytes spaces width: ${HELP}`,
  fmt: `-#cp:stuw:g: crown-margin prefix: split-only tagged-paragraph uniform-spacing width: goal: ${HELP}`,
  head: `-#c:n:qvz bytes: lines: quiet silent verbose zero-terminated ${HELP}`,
  tail: `-#c:fFn:qs:vz bytes: follow:: lines: max-unchanged-stats: pid: quiet silent retry sleep-interval: verbose
    zero-terminated ${HELP}`,
  wc: `-cmlLw bytes chars lines files0-from: max-line-length words ${HELP}`,
  ls: LS,
  dir: LS,
  stat: `-Lfc:t dereference file-system cached: format: printf: terse ${HELP}`,
  readlink: `-femnqsvz canonicalize canonicalize-existing canonicalize-missing no-newline quiet silent verbose zero ${HELP}`,
  realpath: `-emLPqsz canonicalize-existing canonicalize-missing logical physical quiet relative-to: relative-base: strip
    no-symlinks zero ${HELP}`,
  file: `-m:bce:f:F:ikLhnN0P:r brief checking-printout exclude: exclude-quiet: files-from: separator: mime apple extension
    mime-type mime-encoding keep-going dereference no-dereference no-buffer no-pad print0 parameter: raw magic-file: help version`,
  du: `-0aB:bcDd:HhkLlmPSst:X:x null all apparent-size block-size: bytes total dereference-args max-depth: files0-from:
    human-readable inodes dereference count-links no-dereference separate-dirs si summarize threshold: time:: time-style:
    exclude-from: exclude: one-file-system ${HELP}`,
  df: `-aB:hHiklPt:Tx:v all block-size: human-readable si inodes local no-sync output:: portability sync total type:
    print-type exclude-type: ${HELP}`,
  less: `-#aABcdeEfFgGiIJKLmMnNqQrRsSuUVwWXx:y:z:b:j:p:P:~ chop-long-lines quit-at-eof quit-if-one-screen ignore-case
    IGNORE-CASE line-numbers LINE-NUMBERS raw-control-chars RAW-CONTROL-CHARS squeeze-blank-lines no-init no-lessopen`,
  more: '-#dflcpesun:hV silent logical no-pause print-over clean-print exit-on-eof squeeze plain lines: help version',
  md5sum: CHECKSUM,
  sha1sum: CHECKSUM,
  sha224sum: CHECKSUM,
  sha256sum: CHECKSUM,
  sha384sum: CHECKSUM,
  sha512sum: CHECKSUM,
  b2sum: `-bcl:twz binary check length: tag text zero ignore-missing quiet status strict warn ${HELP}`,
  cksum: `-a:cl:wz algorithm: check length: tag untagged zero ignore-missing quiet status strict warn debug ${HELP}`,
  sum: `-rs sysv ${HELP}`,
  base64: `-diw: decode ignore-garbage wrap: ${HELP}`,
  base32: `-diw: decode ignore-garbage wrap: ${HELP}`,
  basenc: `-diw: base64 base64url base32 base32hex base16 base2msbf base2lsbf decode ignore-garbage wrap: z85 ${HELP}`,
  od: `-A:j:N:S:t:vw::abcdfilosx address-radix: endian: skip-bytes: read-bytes: strings:: format: output-duplicates width::
    traditional ${HELP}`,
  hexdump:
    '-bcCdoxL::e:f:n:s:vhV one-byte-octal one-byte-char canonical two-bytes-decimal two-bytes-octal two-bytes-hex',
  hd: '-bcCdoxL::e:f:n:s:vhV',
  strings:
    '-adfn:t:woT:e:U:s:hvV all data print-file-name bytes: radix: include-all-whitespace encoding: help version',
  cmp: '-bi:ln:sv print-bytes ignore-initial: verbose bytes: quiet silent help version',
  comm: `-123z check-order nocheck-order output-delimiter: total zero-terminated ${HELP}`,
  join: `-a:e:ij:o:t:v:1:2:z ignore-case check-order nocheck-order header zero-terminated ${HELP}`,
  diff: `-#qscC:uU:enyW:pF:tTrNx:X:S:iEZbwBI:aD:dHlvL: normal brief report-identical-files context:: unified:: ed rcs side-by-side
    width: left-column suppress-common-lines show-c-function show-function-line: label: expand-tabs initial-tab tabsize:
    suppress-blank-empty paginate recursive no-dereference new-file unidirectional-new-file ignore-file-name-case
    no-ignore-file-name-case exclude: exclude-from: starting-file: from-file: to-file: ignore-case ignore-tab-expansion
    ignore-trailing-space ignore-space-change ignore-all-space ignore-blank-lines ignore-matching-lines: text
    strip-trailing-cr ifdef: minimal horizon-lines: speed-large-files color:: palette: ${HELP}`,
  look: '-adft:hV alternative alphanum ignore-case terminate: help version',
  column: `-tn:O:N:l:E:deH:R:T:W:LJr:i:p:c:o:s:xhV table table-name: table-order: table-columns: table-columns-limit:
    table-noextreme: table-noheadings table-header-repeat table-hide: table-right: table-truncate: table-wrap:
    keep-empty-lines json tree: tree-id: tree-parent: output-width: output-separator: separator: fillrows help version`,
  tree: '-adlfxL:P:I:qNQpugshDFvtcUriASnCJX',
  iconv: '-f:t:lco:sV from-code: to-code: list output: silent verbose help version',
}

/** Programs that filter text or search for files and text. */
export const TEXT_TABLES: Readonly<Record<string, string>> = {
  sort: `-bcCdfghiMmnRrsuVzk:o:S:t:T: ignore-leading-blanks dictionary-order ignore-case general-numeric-sort
    ignore-nonprinting month-sort human-numeric-sort numeric-sort random-sort random-source: reverse sort: version-sort
    batch-size: check:: compress-program: debug files0-from: key: merge output: stable buffer-size: field-separator:
    temporary-directory: parallel: unique zero-terminated ${HELP}`,
  uniq: `-#cdDf:is:uzw: count repeated all-repeated:: skip-fields: group:: ignore-case skip-chars: unique zero-terminated
    check-chars: ${HELP}`,
  cut: `-b:c:d:f:nsz bytes: characters: delimiter: fields: complement only-delimited output-delimiter: zero-terminated ${HELP}`,
  paste: `-d:sz delimiters: serial zero-terminated ${HELP}`,
  tr: `-cCdst complement delete squeeze-repeats truncate-set1 ${HELP}`,
  shuf: `-ei:n:o:rz echo input-range: head-count: output: random-source: repeat zero-terminated ${HELP}`,
  tee: `-aip append ignore-interrupts output-error:: ${HELP}`,
  sed: `-ne:f:i::l:EursSz quiet silent debug expression: file: follow-symlinks in-place:: line-length: posix regexp-extended
    separate sandbox unbuffered null-data zero-terminated ${HELP}`,
  awk: `-F:v:f:e:E:i:l:o::p::d::D:: assign: field-separator: file: source: exec: include: load: pretty-print:: profile::
    dump-variables:: debug::`,
  grep: `-#EFGPe:f:iywxzsvVm:bnHhoqaId:D:rRLlcTZB:A:C:U extended-regexp fixed-strings basic-regexp perl-regexp regexp: file:
    ignore-case no-ignore-case word-regexp line-regexp null-data no-messages invert-match max-count: byte-offset line-number
    line-buffered with-filename no-filename label: only-matching quiet silent binary-files: text directories: devices:
    recursive dereference-recursive include: exclude: exclude-from: exclude-dir: files-without-match files-with-matches
    count initial-tab null before-context: after-context: context: group-separator: no-group-separator color:: colour::
    binary ${HELP}`,
  rg: `-A:B:bsC:cE:e:f:FLg:h.ivnxM:m:UIN0oPpqr:zSaj:t:uT:VHw after-context: before-context: byte-offset case-sensitive color:
    column context: count count-matches crlf encoding: regexp: file: files files-with-matches files-without-match
    fixed-strings follow glob: glob-case-insensitive heading hidden iglob: ignore-case ignore-file: invert-match json
    line-number line-regexp max-columns: max-columns-preview max-count: max-depth: max-filesize: multiline
    multiline-dotall no-config no-filename no-heading no-ignore no-ignore-dot no-ignore-exclude no-ignore-files
    no-ignore-global no-ignore-messages no-ignore-parent no-ignore-vcs no-line-number no-messages no-require-git null
    null-data one-file-system only-matching passthru pcre2 pretty quiet replace: search-zip smart-case sort: sortr: stats
    text threads: trim type: type-list type-not: unrestricted vimgrep with-filename word-regexp pre: hostname-bin: help
    version`,
  fd: `-HIusigFalLp0d:E:t:e:S:o:c:j:1qhV hidden no-ignore no-ignore-vcs no-ignore-parent unrestricted case-sensitive
    ignore-case glob regex fixed-strings and: absolute-path list-details follow full-path print0 max-depth: min-depth:
    exact-depth: exclude: prune type: extension: size: changed-within: changed-before: owner: ignore-file: color: threads:
    max-results: quiet show-errors base-directory: path-separator: search-path: strip-cwd-prefix one-file-system help
    version`,
  jq: `-cnesrRCMSajf:L:hV compact-output null-input exit-status slurp raw-output join-output ascii-output raw-input
    color-output monochrome-output sort-keys tab indent: from-file: help version`,
}

/** Programs that show information about the machine; they read none of the user's files. */
export const MACHINE_TABLES: Readonly<Record<string, string>> = {
  pwd: '-LP',
  whoami: HELP,
  logname: HELP,
  tty: '-s silent quiet',
  arch: HELP,
  groups: HELP,
  id: `-aZgGnruz context group groups name real user zero ${HELP}`,
  nproc: `all ignore: ${HELP}`,
  uname: `-asnrvmpio all kernel-name nodename kernel-release kernel-version machine processor hardware-platform
    operating-system ${HELP}`,
  uptime: '-phsV pretty help since version',
  free: '-bkmghltvwV bytes kilo mega giga tera kibi mebi gibi human si lohi total committed wide help version',
  lscpu:
    '-abBC::cJe::p::xyhV all online bytes caches:: offline json extended:: parse:: hex physical output-all help version',
  locale: '-ackvV all-locales category-name keyword-name verbose',
  getconf: '-av:',
  cal: '-13ymsjwY',
  date: `-d:f:I::Rr:s:u date: debug file: iso-8601:: rfc-email rfc-3339: reference: set: utc universal ${HELP}`,
  basename: `-as:z multiple suffix: zero ${HELP}`,
  dirname: `-z zero ${HELP}`,
  pathchk: `-pP portability ${HELP}`,
  which: '-as',
  whereis: '-bmsulhV',
  hostname: '-sI short all-ip-addresses',
  pgrep:
    '-d:lavwcfg:G:inoP:s:t:u:U:xr:AhV delimiter: list-name list-full inverse count full exact newest oldest parent:',
  pidof: '-scqx',
}

/** Tests and actions of find that take a value. */
export const FIND_VALUES: ReadonlySet<string> = new Set(
  `-regextype -files0-from -maxdepth -mindepth -amin -anewer -atime -cmin -cnewer -context -ctime -fstype -gid -group
  -ilname -iname -inum -iwholename -iregex -ipath -links -lname -mmin -mtime -name -newer -path -perm -regex -samefile
  -size -type -uid -used -user -xtype -printf -fprint -fprint0 -fls -wholename -newermt -newerct -newerat`.split(
    /\s+/,
  ),
)
/** All tests and actions of find but those that start programs. */
export const FIND_TESTS: ReadonlySet<string> = new Set([
  ...FIND_VALUES,
  ...`-daystart -follow -nowarn -warn -depth -d -mount -noleaf -xdev -ignore_readdir_race -noignore_readdir_race -empty
  -false -nouser -nogroup -readable -writable -executable -true -delete -print0 -print -ls -prune -quit -a -and -o -or
  -not -fprintf`.split(/\s+/),
])
