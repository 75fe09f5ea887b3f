/* Path resolution in user space that never follows a name that changed after it was looked at. */
#ifndef RINGFENCE_RESOLVE_H
#define RINGFENCE_RESOLVE_H

#include "common/common.h"

/* What a path leads to: an entry of a parent directory, or an object that was reached without a name (parent is -1). */
struct resolved_path {
  int parent; /* O_PATH of the directory, or -1 */
  char name[NAME_MAX + 1];
  int fd;           /* O_PATH of the object itself, or -1 when it does not exist */
  bool must_be_dir; /* the path ended in a slash */
  struct stat stat; /* of fd */
};

/* Symbolic links that one path may lead through, as in the kernel. */
enum { MAX_SYMLINKS = 40 };

/* What to do with the last component of a path. */
enum last_component {
  FOLLOW_SYMLINK,
  NO_FOLLOW,   /* unless the path ends in a slash */
  ENTRY,       /* never follow it: what calls that create, move and remove names do */
  PARENT_ONLY, /* do not open it at all, unless the path ends in a slash */
};

/* Opens /proc and the root for the functions below. */
void resolve_setup(void);
extern int proc_fd;

/* Resolves a path for `caller`, the thread whose root, directory and /proc/self the path means. Returns 0 or -errno. */
int resolve(struct resolved_path *resolved, pid_t caller, int dirfd, const char *path, enum last_component last);
/* The same from a directory that is open already; closes it. */
int resolve_from(struct resolved_path *resolved, pid_t caller, int base, const char *path, enum last_component last);
void release_path(struct resolved_path *resolved);

/* Opens a path in which no component is a symbolic link. */
int open_no_symlinks(int root, const char *path, int flags);
bool is_procfs(int fd);
/* Whether a file in /proc describes the caller's own process. */
bool is_proc_file_of_caller(int fd, pid_t caller);
/* The path of a descriptor as the sandbox sees it; false when it has none. */
bool fd_path(int fd, char *buffer, size_t size);
/* The same for a directory, at a quarter of the cost. False also when only fd_path can tell: it was removed, or is not
 * searchable for us. */
bool directory_path(int fd, char *buffer, size_t size);

#endif
