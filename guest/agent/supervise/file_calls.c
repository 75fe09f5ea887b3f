#include "limits/limits.h"
#include "supervise/protected_paths.h"
#include "supervise/supervise.h"

int emulate_create(const struct supervised_call *call, int dirfd, uint64_t address, mode_t mode, dev_t dev,
                   bool directory) {
  struct resolved_path resolved;
  int result = resolve_argument(call, &resolved, dirfd, address, ENTRY);
  if (result) return result;
  mode &= ~caller_umask(call->caller);
  if (resolved.fd >= 0) result = -EEXIST;
  else if (resolved.must_be_dir && !directory) result = -ENOENT;
  else result = check_new_entry(&resolved, directory ? denies_create : denies_move_in);
  if (!result) {
    int failed =
        directory ? mkdirat(resolved.parent, resolved.name, mode) : mknodat(resolved.parent, resolved.name, mode, dev);
    result = created_result(failed, &resolved, "create");
  }
  if (!result) disk_add_entry();
  release_path(&resolved);
  return result;
}

/* The entry does not have to be opened when its name alone says that it may be removed. */
static bool may_remove(const struct resolved_path *resolved) {
  char path[PATH_MAX * 2];
  return resolved->parent >= 0 && resolved->fd < 0 && !resolved->must_be_dir && !is_procfs(resolved->parent) &&
         resolved_path_text(resolved, path, sizeof path) && !is_denied(resolved, path, denies_remove);
}

int emulate_unlink(const struct supervised_call *call, int dirfd, uint64_t address, int flags) {
  char path[PATH_MAX];
  struct resolved_path resolved;
  int result = read_caller_path(call, address, path);
  if (!result) result = resolve(&resolved, call->caller, dirfd, path, PARENT_ONLY);
  if (result) return result;
  bool checked = may_remove(&resolved);
  if (!checked) {
    release_path(&resolved);
    if ((result = resolve(&resolved, call->caller, dirfd, path, ENTRY))) return result;
  }
  bool directory = flags & AT_REMOVEDIR;
  if (resolved.parent < 0) result = directory ? -EINVAL : -EISDIR;
  else if (resolved.fd >= 0) result = check_path(&resolved, denies_remove, "remove");
  else if (!checked) result = -ENOENT; /* it may exist by now */
  if (!result && resolved.must_be_dir && !directory && resolved.fd >= 0)
    result = S_ISDIR(resolved.stat.st_mode) ? -EISDIR : -ENOTDIR;
  if (!result) result = call_result(unlinkat(resolved.parent, resolved.name, flags), &resolved, "remove");
  if (!result) disk_remove_entry();
  release_path(&resolved);
  return result;
}

/* Whether a symlink leads to a dependency directory; one that cannot be read might. */
static bool links_dependency_directory(const struct resolved_path *link) {
  char target[PATH_MAX];
  ssize_t length = readlinkat(link->fd, "", target, sizeof target - 1);
  if (length < 0) return true;
  target[length] = 0;
  return names_dependency_directory(target);
}

/*
 * Moving a directory out of a dependency directory would bring names out that are only allowed inside, and so would a
 * symlink to one. EXDEV makes the caller copy it instead.
 */
static bool leaves_dependency_directory(const struct resolved_path *from, const struct resolved_path *to) {
  char old[PATH_MAX * 2], new[PATH_MAX * 2];
  bool brings_names = S_ISDIR(from->stat.st_mode) || (S_ISLNK(from->stat.st_mode) && links_dependency_directory(from));
  if (!brings_names) return false;
  if (!resolved_path_text(from, old, sizeof old) || !resolved_path_text(to, new, sizeof new)) return true;
  return is_in_dependency_directory(old) && !is_in_dependency_directory(new);
}

/*
 * Checks both names for everything that the moved object may bring: the content of a directory, the target of a link.
 */
static int check_rename(const struct resolved_path *from, const struct resolved_path *to, bool exchange) {
  if (from->parent < 0 || to->parent < 0) return -EBUSY;
  if (from->fd < 0 || (exchange && to->fd < 0)) return -ENOENT;
  int error = check_path(from, denies_move_out, "move");
  if (!error) error = check_path(to, denies_move_in, "replace");
  if (!error && exchange) error = check_path(to, denies_move_out, "move");
  if (!error && exchange) error = check_path(from, denies_move_in, "replace");
  if (error) return error;
  if (leaves_dependency_directory(from, to) || (exchange && leaves_dependency_directory(to, from))) return -EXDEV;
  bool directories = S_ISDIR(from->stat.st_mode) && (!exchange || S_ISDIR(to->stat.st_mode));
  return (from->must_be_dir || to->must_be_dir) && !directories ? -ENOTDIR : 0;
}

int emulate_rename(const struct supervised_call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path,
                   unsigned flags) {
  struct resolved_path from, to;
  int result = resolve_argument(call, &from, from_dir, from_path, ENTRY);
  if (result) return result;
  if ((result = resolve_argument(call, &to, to_dir, to_path, ENTRY))) return release_path(&from), result;
  bool exchange = flags & 2 /* RENAME_EXCHANGE */;
  result = check_rename(&from, &to, exchange);
  if (!result) {
    int failed = (int)syscall(SYS_renameat2, from.parent, from.name, to.parent, to.name, flags);
    result = to.fd < 0 ? created_result(failed, &to, "move") : call_result(failed, &to, "move");
    bool same = from.stat.st_ino == to.stat.st_ino && from.stat.st_dev == to.stat.st_dev;
    if (!result && to.fd >= 0 && !exchange && !same) disk_remove_entry();
  }
  release_path(&from);
  release_path(&to);
  return result;
}

static int check_link(const struct resolved_path *from, const struct resolved_path *to) {
  if (to->parent < 0 || to->fd >= 0) return -EEXIST;
  if (from->fd < 0 || to->must_be_dir) return -ENOENT;
  /* SECURITY: a second name for a protected file would be a way to write it. */
  int error = check_path(from, denies_write, "link");
  if (!error) error = check_path(to, denies_move_in, "create");
  return !error && leaves_dependency_directory(from, to) ? -EXDEV : error;
}

int emulate_link(const struct supervised_call *call, int from_dir, uint64_t from_path, int to_dir, uint64_t to_path,
                 int flags) {
  struct resolved_path from, to;
  char path[PATH_MAX], link[64];
  int result = read_caller_path(call, from_path, path);
  if (!result && !path[0] && (flags & AT_EMPTY_PATH)) {
    snprintf(path, sizeof path, "/proc/%d/fd/%d", call->caller, from_dir);
    flags |= AT_SYMLINK_FOLLOW;
  }
  if (!result)
    result = resolve(&from, call->caller, from_dir, path, flags & AT_SYMLINK_FOLLOW ? FOLLOW_SYMLINK : NO_FOLLOW);
  if (result) return result;
  if ((result = resolve_argument(call, &to, to_dir, to_path, ENTRY))) return release_path(&from), result;
  result = check_link(&from, &to);
  if (!result) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", from.fd);
    int failed = from.parent < 0 ? linkat(AT_FDCWD, link, to.parent, to.name, AT_SYMLINK_FOLLOW)
                                 : linkat(from.parent, from.name, to.parent, to.name, 0);
    result = created_result(failed, &to, "link");
  }
  if (!result) disk_add_entry();
  release_path(&from);
  release_path(&to);
  return result;
}

/*
 * SECURITY: behind a symlink to a dependency directory, names would be free that are protected where the link is.
 */
static bool denies_shortcut(const char *path) { return denies_move_in(path) || !is_in_dependency_directory(path); }

int emulate_symlink(const struct supervised_call *call, uint64_t target_address, int dirfd, uint64_t address) {
  char target[PATH_MAX];
  struct resolved_path resolved;
  int result = read_caller_path(call, target_address, target);
  if (!result) result = resolve_argument(call, &resolved, dirfd, address, ENTRY);
  if (result) return result;
  if (resolved.parent < 0 || resolved.fd >= 0) result = -EEXIST;
  else if (resolved.must_be_dir) result = -ENOENT;
  else result = check_new_entry(&resolved, names_dependency_directory(target) ? denies_shortcut : denies_move_in);
  if (!result) result = created_result(symlinkat(target, resolved.parent, resolved.name), &resolved, "create");
  if (!result) disk_add_entry();
  release_path(&resolved);
  return result;
}

static int check_truncate(const struct resolved_path *resolved, off_t length) {
  if (resolved->fd < 0) return -ENOENT;
  int error = check_path(resolved, denies_write, "write");
  if (error) return error;
  if (!S_ISREG(resolved->stat.st_mode)) return S_ISDIR(resolved->stat.st_mode) ? -EISDIR : -EINVAL;
  return length > resolved->stat.st_size && is_disk_full(resolved) ? -ENOSPC : 0;
}

static int truncate_object(const struct resolved_path *resolved, off_t length) {
  char link[32];
  snprintf(link, sizeof link, "self/fd/%d", resolved->fd);
  int fd = openat(proc_fd, link, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
  bool counted = fd < 0 || disk_track_file(fd, &resolved->stat, false);
  int result = counted ? call_result(fd < 0 || ftruncate(fd, length), resolved, "write") : -ENOSPC;
  if (fd >= 0) close(fd);
  return result;
}

int emulate_truncate(const struct supervised_call *call, uint64_t address, off_t length) {
  struct resolved_path resolved;
  int result = resolve_argument(call, &resolved, AT_FDCWD, address, FOLLOW_SYMLINK);
  if (result) return result;
  result = check_truncate(&resolved, length);
  if (!result) result = truncate_object(&resolved, length);
  release_path(&resolved);
  return result;
}
