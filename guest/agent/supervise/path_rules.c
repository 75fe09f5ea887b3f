#include "common/channel.h"
#include "limits/limits.h"
#include "supervise/protected_paths.h"
#include "supervise/supervise.h"

#include <inttypes.h>
#include <sys/random.h>

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

/* The directory of the entry that is being checked, or -1. */
static int checked_parent = -1;

bool is_denied(const struct resolved_path *resolved, const char *path, bool (*denies)(const char *)) {
  checked_parent = resolved->parent;
  bool denied = denies(path);
  checked_parent = -1;
  return denied;
}

int check_path(const struct resolved_path *resolved, bool (*denies)(const char *), const char *what) {
  char path[PATH_MAX * 2];
  enum path_state state = read_resolved_path(resolved, path, sizeof path);
  if (state == NO_PATH || (state == HAS_PATH && !is_denied(resolved, path, denies)) || !has_protected_names()) return 0;
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
 * Which parts a directory has. A dangling symbolic link counts, because its target can be created later. SECURITY: the
 * caller may make this unknowable (a directory above that nobody may search, a path that gets too long), and still reach
 * the directory itself.
 */
static int git_parts_in(int base, const char *path) {
  char part[PATH_MAX * 2 + 16];
  struct stat stat;
  int parts = 0;
  for (size_t i = 0; i < LENGTH(GIT_PARTS); i++) {
    snprintf(part, sizeof part, "%s/%s", path, GIT_PARTS[i]);
    if (!fstatat(base, part, &stat, AT_SYMLINK_NOFOLLOW)) parts |= 1 << i;
    else if (errno != ENOENT && errno != ENOTDIR) return UNKNOWN_PARTS;
  }
  return parts;
}

/* From the checked entry upwards: the names on its path may change while they are looked up, its directory does not. */
static int git_parts_above(const char *path, size_t length, int between) {
  char above[PATH_MAX * 2] = ".";
  if (checked_parent < 0)
    return snprintf(above, sizeof above, "%.*s", (int)length, path), git_parts_in(AT_FDCWD, above);
  for (size_t at = 1; between > 0 && at + 4 < sizeof above; at += 3, between--) strcpy(above + at, "/..");
  return git_parts_in(checked_parent, above);
}

bool is_git_directory(const char *path, size_t length, int between) {
  int parts = git_parts_above(path, length, between);
  return parts == UNKNOWN_PARTS || is_repository(parts);
}

/* The part that a name stands for, or 0. */
static int git_part(const char *name) {
  for (size_t i = 0; i < LENGTH(GIT_PARTS); i++)
    if (!strcasecmp(name, GIT_PARTS[i])) return 1 << i;
  return 0;
}

bool names_git_part(const char *name) { return git_part(name) != 0; }

/* The part of a repository that this path would be, or 0 where no repository can come about. */
static int new_git_part(const char *path, size_t *length) {
  const char *name = strrchr(path, '/');
  int part = name ? git_part(name + 1) : 0;
  if (!part || !is_in_supervised_mount(path)) return 0;
  *length = (size_t)(name - path);
  /* A `.git` existed before the sandbox, and the files in it that name programs are protected already. */
  return *length >= 5 && !strncasecmp(path + *length - 5, "/.git", 5) ? 0 : part;
}

/* Whether creating this name would turn its directory into a repository. */
static bool completes_repository(const char *path) {
  size_t length;
  int part = new_git_part(path, &length);
  if (!part) return false;
  int parts = git_parts_above(path, length, 0);
  return parts == UNKNOWN_PARTS || (!is_repository(parts) && is_repository(parts | part));
}

/* Whether removing this name would turn a repository into a plain directory, in which nothing is protected. */
static bool breaks_repository(const char *path) {
  const char *name = strrchr(path, '/');
  int part = name ? git_part(name + 1) : 0;
  return part && is_in_supervised_mount(path) && is_git_directory(path, (size_t)(name - path), 0);
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

/*
 * SECURITY: another PID 1 (of an isolated command, of another sandbox with the same workspace) may have created another
 * part of a repository since check_path looked. The last one to look sees all parts, and takes its own away.
 */
static int confirm_entry(const struct resolved_path *resolved) {
  char path[PATH_MAX * 2], refused[32];
  uint64_t random;
  size_t length;
  if (!names_git_part(resolved->name) || !has_protected_names()) return 0;
  if (!resolved_path_text(resolved, path, sizeof path)) strcpy(path, resolved->name);
  int part = path[0] == '/' ? new_git_part(path, &length) : git_part(resolved->name);
  int parts = git_parts_in(resolved->parent, ".");
  if (!part || (parts != UNKNOWN_PARTS && (!is_repository(parts) || is_repository(parts & ~part)))) return 0;
  /* A directory may have been filled meanwhile, so it is renamed instead of removed. */
  if (getrandom(&random, sizeof random, 0) != sizeof random) die("getrandom: %s", strerror(errno));
  snprintf(refused, sizeof refused, ".refused-%016" PRIx64, random);
  if (renameat(resolved->parent, resolved->name, resolved->parent, refused) &&
      unlinkat(resolved->parent, resolved->name, 0) && errno != ENOENT)
    die("%s: %s", path, strerror(errno));
  return report_violation("fs.protect", "create %s", path), -EROFS;
}

int created_result(int failed, const struct resolved_path *resolved, const char *what) {
  return failed ? call_result(failed, resolved, what) : confirm_entry(resolved);
}
