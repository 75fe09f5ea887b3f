/* Which paths may not be changed. The same rules as src/policy/paths/protect.ts; tests compare the two. */
#ifndef RINGFENCE_PROTECTED_PATHS_H
#define RINGFENCE_PROTECTED_PATHS_H

#include "common/common.h"

struct protection {
  struct strings mounts;         /* writable mounts; the rules apply below them */
  struct strings private_mounts; /* mounts that nobody outside the sandbox opens: no rule applies below them */
  struct strings roots;          /* names that are protected as the last component */
  struct strings inner;          /* patterns like `.git/hooks` that are protected everywhere */
  struct strings names;          /* patterns that are protected outside of dependency directories */
  struct strings except;         /* names of dependency directories, like node_modules */
  struct strings pinned;         /* full paths, such as the directory of a linked git repository */
};

extern struct protection protection;
/* Builds the index of patterns. To be called once, when the configuration is complete. */
void protection_index(void);

/* Each takes a full path. A path outside of the supervised mounts is never protected. */
bool is_in_supervised_mount(const char *path);
bool is_protected(const char *path);
/* Whether something moved or linked to this path could bring protected names with it. */
bool may_contain_protected(const char *path);
bool is_in_dependency_directory(const char *path);
/* Whether a path, such as the target of a symlink, has the name of a dependency directory in it. */
bool names_dependency_directory(const char *path);

/*
 * path_rules.c: whether git would take the directory `path[0..length)` for a repository. It contains the checked entry,
 * with `between` directories in between.
 */
bool is_git_directory(const char *path, size_t length, int between);

#endif
