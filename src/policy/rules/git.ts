import { type BuiltInRule, words } from './rule.ts'

/** Git: reading is allowed, changes to the work tree run in a sandbox, publishing needs approval. */
export const GIT_RULES: readonly BuiltInRule[] = [
  {
    id: 'git/look',
    prefix: [
      'git',
      words(
        'status log diff show rev-parse rev-list ls-files ls-tree blame annotate describe shortlog grep cat-file name-rev merge-base for-each-ref show-ref diff-tree diff-index diff-files count-objects check-ignore check-attr var version help whatchanged cherry range-diff show-branch verify-commit verify-tag fsck',
      ),
    ],
    action: 'allow',
    why: 'shows the repository',
    match: ['git status --short', 'git log --oneline -5'],
    notMatch: ['git push'],
  },
  {
    id: 'git/look-or-change',
    prefix: ['git', words('branch tag remote config reflog clean worktree symbolic-ref')],
    action: 'allow',
    why: 'shows the repository',
    match: ['git branch -a', 'git clean -n'],
  },
  {
    id: 'git/stash-look',
    prefix: ['git', 'stash', words('list show')],
    action: 'allow',
    why: 'shows stashed work',
    match: ['git stash list'],
    notMatch: ['git stash pop'],
  },
  {
    id: 'git/publish',
    prefix: ['git', words('push send-email request-pull')],
    action: 'ask',
    why: 'publishes work',
    match: ['git push origin main'],
    notMatch: ['git pull', 'echo git push'],
  },
  {
    id: 'git/network',
    prefix: ['git', words('fetch pull clone ls-remote')],
    action: 'ask',
    why: 'connects to another machine',
    match: ['git pull --rebase', 'git fetch --prune'],
  },
]
