#include "supervise/resolve.h"

#include <linux/openat2.h>
#include <sys/vfs.h>

#define PROC_MAGIC 0x9fa0

int proc_fd = -1;
static int root_fd = -1;

void resolve_setup(void) {
  proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
  root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (proc_fd < 0 || root_fd < 0) die("/proc: %s", strerror(errno));
}

int open_no_symlinks(int root, const char *path, int flags) {
  struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = RESOLVE_NO_SYMLINKS};
  return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

bool fd_path(int fd, char *buffer, size_t size) {
  char link[32];
  snprintf(link, sizeof link, "self/fd/%d", fd);
  ssize_t length = readlinkat(proc_fd, link, buffer, size - 1);
  if (length <= 0 || buffer[0] != '/') return false;
  buffer[length] = 0;
  return true;
}

bool directory_path(int fd, char *buffer, size_t size) {
  if (fchdir(fd)) return false;
  bool known = syscall(SYS_getcwd, buffer, size) > 0 && buffer[0] == '/';
  if (fchdir(root_fd)) _exit(EXIT_SETUP_FAILED);
  return known;
}

static int open_base(pid_t caller, int dirfd, const char *path) {
  char name[64];
  if (path[0] == '/') return fcntl(root_fd, F_DUPFD_CLOEXEC, 3);
  if (dirfd == AT_FDCWD) snprintf(name, sizeof name, "%d/cwd", caller);
  else snprintf(name, sizeof name, "%d/fd/%d", caller, dirfd);
  return openat(proc_fd, name, O_PATH | O_CLOEXEC);
}

struct walk {
  pid_t caller;
  enum last_component mode;
  int links;
  int at; /* the directory reached so far */
  char rest[PATH_MAX * 2];
};

static void enter_directory(struct walk *walk, int fd) {
  close(walk->at);
  walk->at = fd;
}

/* Removes the next component from the rest. Returns whether it is the last. */
static bool next_component(struct walk *walk, char *name, bool *slash) {
  char *start = walk->rest + strspn(walk->rest, "/");
  size_t length = strcspn(start, "/");
  char *after = start + length;
  *slash = *after == '/';
  after += strspn(after, "/");
  memcpy(name, start, length);
  name[length] = 0;
  memmove(walk->rest, after, strlen(after) + 1);
  return walk->rest[0] == 0;
}

/* Puts the target of a link in front of the rest. */
static int prepend_target(struct walk *walk, const char *target, bool slash) {
  char joined[sizeof walk->rest];
  if (++walk->links > MAX_SYMLINKS) return -ELOOP;
  const char *between = walk->rest[0] || slash ? "/" : "";
  if (snprintf(joined, sizeof joined, "%s%s%s", target, between, walk->rest) >= (int)sizeof joined)
    return -ENAMETOOLONG;
  strcpy(walk->rest, joined);
  if (target[0] == '/') enter_directory(walk, fcntl(root_fd, F_DUPFD_CLOEXEC, 3));
  return 0;
}

bool is_procfs(int fd) {
  struct statfs fs;
  return fstatfs(fd, &fs) || fs.f_type == PROC_MAGIC;
}

bool is_proc_file_of_caller(int fd, pid_t caller) {
  char path[PATH_MAX], task[64];
  struct stat found, ours, thread;
  int pid, length = 0;
  if (fstat(fd, &found) || fstat(proc_fd, &ours) || found.st_dev != ours.st_dev) return false;
  if (!fd_path(fd, path, sizeof path) || sscanf(path, "/proc/%d/%n", &pid, &length) != 1 || !length) return false;
  snprintf(task, sizeof task, "%d/task/%d", caller, pid);
  return pid == caller || !fstatat(proc_fd, task, &thread, 0);
}

/* Whether a directory in /proc describes PID 1. One without a known path might. */
static bool is_own_proc_directory(int dir) {
  char path[PATH_MAX], own[32];
  size_t length = (size_t)snprintf(own, sizeof own, "/proc/%d", getpid());
  return !fd_path(dir, path, sizeof path) || (!strncmp(path, own, length) && (path[length] == '/' || !path[length]));
}

/* A link in /proc: `self` means the caller and not us; all except four are magic links to objects without a path. */
static int follow_proc_link(struct walk *walk, const char *name, bool slash, int *magic_target) {
  char target[64];
  if (!strcmp(name, "self")) snprintf(target, sizeof target, "%d", walk->caller);
  else if (!strcmp(name, "thread-self")) snprintf(target, sizeof target, "%d/task/%d", walk->caller, walk->caller);
  else if (!strcmp(name, "mounts") || !strcmp(name, "net"))
    snprintf(target, sizeof target, "%d/%s", walk->caller, name);
  else {
    /* SECURITY: PID 1 may open its own descriptors, such as the channel; the caller must not. */
    if (is_own_proc_directory(walk->at)) return -EACCES;
    *magic_target = openat(walk->at, name, O_PATH | O_CLOEXEC);
    return *magic_target < 0 ? -errno : 0;
  }
  return prepend_target(walk, target, slash);
}

static int follow_link(struct walk *walk, int link, const char *name, bool slash, int *magic_target) {
  if (is_procfs(link)) return follow_proc_link(walk, name, slash, magic_target);
  char target[PATH_MAX];
  ssize_t length = readlinkat(link, "", target, sizeof target - 1);
  if (length < 0) return -errno;
  target[length] = 0;
  return prepend_target(walk, target, slash);
}

static int finish_object(struct resolved_path *resolved, int fd) {
  resolved->parent = -1;
  resolved->fd = fd;
  return fstat(fd, &resolved->stat) ? -errno : 0;
}

static int finish_entry(struct walk *walk, struct resolved_path *resolved, const char *name, int found) {
  resolved->parent = walk->at;
  walk->at = -1;
  strcpy(resolved->name, name);
  resolved->fd = found;
  return 1;
}

/* Resolves one component. Returns 1 at the end of the path, 0 to continue, or -errno. */
static int step(struct walk *walk, struct resolved_path *resolved) {
  char name[PATH_MAX * 2];
  bool slash, last = next_component(walk, name, &slash);
  if (strlen(name) > NAME_MAX) return -ENAMETOOLONG;
  if (!name[0] || !strcmp(name, ".") || !strcmp(name, "..")) {
    int fd = openat(walk->at, name[0] ? name : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -errno;
    enter_directory(walk, fd);
    if (!last) return 0;
    int error = finish_object(resolved, walk->at);
    walk->at = -1;
    return error ? error : 1;
  }
  if (last && !slash && walk->mode == PARENT_ONLY) return finish_entry(walk, resolved, name, -1);
  int fd = openat(walk->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && (errno != ENOENT || !last)) return -errno;
  struct stat stat = {0};
  if (fd >= 0) fstat(fd, &stat);
  bool follow = !last || walk->mode == FOLLOW_SYMLINK || (slash && walk->mode != ENTRY);
  if (fd >= 0 && S_ISLNK(stat.st_mode) && follow) {
    int magic_target = -1, error = follow_link(walk, fd, name, slash, &magic_target);
    close(fd);
    if (error || magic_target < 0) return error;
    if (!last) return enter_directory(walk, magic_target), 0;
    return (error = finish_object(resolved, magic_target)) ? error : 1;
  }
  if (!last) return enter_directory(walk, fd), 0;
  if (slash && fd >= 0 && !S_ISDIR(stat.st_mode) && walk->mode != ENTRY) return close(fd), -ENOTDIR;
  resolved->stat = stat;
  resolved->must_be_dir = slash;
  return finish_entry(walk, resolved, name, fd);
}

/* Most paths have no symbolic link in their directories: then one system call replaces one for each component. */
static void resolve_parent_at_once(struct walk *walk) {
  char *cut = strrchr(walk->rest, '/');
  if (!cut || cut == walk->rest || !cut[1]) return;
  *cut = 0;
  int fd = open_no_symlinks(walk->at, walk->rest, O_PATH | O_DIRECTORY);
  *cut = '/';
  if (fd < 0) return;
  enter_directory(walk, fd);
  memmove(walk->rest, cut + 1, strlen(cut + 1) + 1);
}

int resolve(struct resolved_path *resolved, pid_t caller, int dirfd, const char *path, enum last_component last) {
  *resolved = (struct resolved_path){.parent = -1, .fd = -1};
  if (!path[0]) return -ENOENT;
  int base = open_base(caller, dirfd, path);
  if (base < 0) return errno == EACCES ? -EACCES : -EBADF;
  return resolve_from(resolved, caller, base, path, last);
}

int resolve_from(struct resolved_path *resolved, pid_t caller, int base, const char *path, enum last_component last) {
  struct walk walk = {.caller = caller, .mode = last, .at = base};
  *resolved = (struct resolved_path){.parent = -1, .fd = -1};
  if (snprintf(walk.rest, sizeof walk.rest, "%s", path) >= PATH_MAX) return close(base), -ENAMETOOLONG;
  resolve_parent_at_once(&walk);
  int result;
  while ((result = step(&walk, resolved)) == 0) continue;
  if (walk.at >= 0) close(walk.at);
  if (result < 0) release_path(resolved);
  return result < 0 ? result : 0;
}

void release_path(struct resolved_path *resolved) {
  if (resolved->parent >= 0) close(resolved->parent);
  if (resolved->fd >= 0) close(resolved->fd);
  resolved->parent = resolved->fd = -1;
}
