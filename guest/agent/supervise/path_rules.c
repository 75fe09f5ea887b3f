#include "common/channel.h"
#include "limits/limits.h"
#include "supervise/protected_paths.h"
#include "supervise/supervise.h"

/* Whether a resolved path may be changed: by the names in it, and by whether its directories are git repositories. */

enum path_state { HAS_PATH, NO_PATH, UNKNOWN_PATH };

/* A pipe or a socket has no path. A path is unknown when it is too long for the kernel or outside of our root. */
static enum path_state read_fd_path(int fd, char *path, size_t size) {
  char link[32];
  snprintf(link, sizeof link, "self/fd/%d", fd);
  ssize_t length = readlinkat(proc_fd, link, path, size - 1);
  if (length <= 0 || (size_t)length == size - 1) return UNKNOWN_PATH;
  path[length] = 0;
  if (path[0] == '/') return HAS_PATH;
  return path[0] == '(' ? UNKNOWN_PATH : NO_PATH;
}

static enum path_state read_resolved_path(const struct resolved_path *resolved, char *path, size_t size) {
  if (resolved->parent < 0) return read_fd_path(resolved->fd, path, size);
  if (!directory_path(resolved->parent, path, size)) {
    enum path_state state = read_fd_path(resolved->parent, path, size);
    if (state != HAS_PATH) return state;
  }
  size_t length = strlen(path);
  if (length == 1) length = 0; /* the root itself */
  return (size_t)snprintf(path + length, size - length, "/%s", resolved->name) < size - length ? HAS_PATH
                                                                                               : UNKNOWN_PATH;
}

bool resolved_path_text(const struct resolved_path *resolved, char *path, size_t size) {
  return read_resolved_path(resolved, path, size) == HAS_PATH;
}

static bool has_protected_names(void) {
  return protection.roots.count || protection.inner.count || protection.names.count || protection.pinned.count;
}

int check_path(const struct resolved_path *resolved, bool (*denies)(const char *), const char *what) {
  char path[PATH_MAX * 2];
  enum path_state state = read_resolved_path(resolved, path, sizeof path);
  if (state == NO_PATH || (state == HAS_PATH && !denies(path)) || !has_protected_names()) return 0;
  if (state == HAS_PATH) return report_violation("fs.protect", "%s %s", what, path), -EROFS;
  /*
   * SECURITY: a path that cannot be checked is refused. After a move upwards the same entry would have a short path.
   */
  report_violation("fs.protect", "%s %s, whose path cannot be checked", what,
                   resolved->parent < 0 ? "a file" : resolved->name);
  return -ENAMETOOLONG;
}

/*
 * git takes any directory for a repository that has a HEAD and either objects and refs or a commondir that names their
 * location. It executes programs that the configuration there names.
 */
enum { HEAD = 1, OBJECTS = 2, REFS = 4, COMMONDIR = 8, UNKNOWN_PARTS = -1 };
static const char *const GIT_PARTS[] = {"HEAD", "objects", "refs", "commondir"};

static bool is_repository(int parts) {
  return (parts & HEAD) && ((parts & COMMONDIR) || ((parts & OBJECTS) && (parts & REFS)));
}

/*
 * Which parts the directory `path[0..length)` has. A dangling symbolic link counts, because its target can be created
 * later. SECURITY: the caller may make this unknowable (a directory above that nobody may search, a path that gets too
 * long), and still reach the directory itself.
 */
static int git_parts_in(const char *path, size_t length) {
  char part[PATH_MAX * 2 + 16];
  struct stat stat;
  int parts = 0;
  for (size_t i = 0; i < LENGTH(GIT_PARTS); i++) {
    snprintf(part, sizeof part, "%.*s/%s", (int)length, path, GIT_PARTS[i]);
    if (!fstatat(AT_FDCWD, part, &stat, AT_SYMLINK_NOFOLLOW)) parts |= 1 << i;
    else if (errno != ENOENT && errno != ENOTDIR) return UNKNOWN_PARTS;
  }
  return parts;
}

bool is_git_directory(const char *path, size_t length) {
  int parts = git_parts_in(path, length);
  return parts == UNKNOWN_PARTS || is_repository(parts);
}

/* The part that a name stands for, or 0. */
static int git_part(const char *name) {
  for (size_t i = 0; i < LENGTH(GIT_PARTS); i++)
    if (!strcasecmp(name, GIT_PARTS[i])) return 1 << i;
  return 0;
}

/* Whether creating this name would turn its directory into a repository. */
static bool completes_repository(const char *path) {
  const char *name = strrchr(path, '/');
  int part = name ? git_part(name + 1) : 0;
  if (!part || !is_in_supervised_mount(path)) return false;
  size_t length = (size_t)(name - path);
  /* A `.git` existed before the sandbox, and the files in it that name programs are protected already. */
  if (length >= 5 && !strncasecmp(path + length - 5, "/.git", 5)) return false;
  int parts = git_parts_in(path, length);
  return parts == UNKNOWN_PARTS || (!is_repository(parts) && is_repository(parts | part));
}

/* Whether removing this name would turn a repository into a plain directory, in which nothing is protected. */
static bool breaks_repository(const char *path) {
  const char *name = strrchr(path, '/');
  int part = name ? git_part(name + 1) : 0;
  return part && is_in_supervised_mount(path) && is_git_directory(path, (size_t)(name - path));
}

bool denies_write(const char *path) { return is_protected(path); }
bool denies_create(const char *path) { return is_protected(path) || completes_repository(path); }
bool denies_remove(const char *path) { return is_protected(path) || breaks_repository(path); }

/* A directory or a link that is moved in brings its content or target with it. */
bool denies_move_in(const char *path) { return denies_create(path) || may_contain_protected(path); }
bool denies_move_out(const char *path) { return denies_remove(path) || may_contain_protected(path); }

static int report_readonly(const struct resolved_path *resolved, int error, const char *what) {
  char path[PATH_MAX * 2];
  if (error == EROFS && resolved_path_text(resolved, path, sizeof path))
    report_violation("fs.write", "%s %s", what, path);
  return -error;
}

/* SECURITY: a full disk accepts no more data. Reading and deleting still work, and the sandbox continues. */
bool is_disk_full(const struct resolved_path *resolved) {
  char path[PATH_MAX * 2];
  bool grows = resolved->fd < 0 || S_ISREG(resolved->stat.st_mode) || S_ISDIR(resolved->stat.st_mode);
  if (!grows || !disk_is_full()) return false;
  if (resolved_path_text(resolved, path, sizeof path)) report_violation("limit.disk", "write %s", path);
  return true;
}

int call_result(int failed, const struct resolved_path *resolved, const char *what) {
  return failed ? report_readonly(resolved, errno, what) : 0;
}

int check_new_entry(const struct resolved_path *resolved, bool (*denies)(const char *)) {
  int error = check_path(resolved, denies, "create");
  if (error) return error;
  return is_disk_full(resolved) ? -ENOSPC : 0;
}
