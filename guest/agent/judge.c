#include "calls.h"

/* Whether a place may be changed: by the names on its path, and by what the directories on it are. */

enum whereabouts { NAMED, UNNAMED, UNKNOWN };

/* A pipe or a socket has no path. A path may also be too long for the kernel to tell, or lie outside of our root. */
static enum whereabouts where_is(int fd, char *path, size_t size) {
  char link[32];
  snprintf(link, sizeof link, "self/fd/%d", fd);
  ssize_t length = readlinkat(proc_fd, link, path, size - 1);
  if (length <= 0 || (size_t)length == size - 1) return UNKNOWN;
  path[length] = 0;
  if (path[0] == '/') return NAMED;
  return path[0] == '(' ? UNKNOWN : UNNAMED;
}

static enum whereabouts whereabouts_of(const struct place *place, char *path, size_t size) {
  if (place->parent < 0) return where_is(place->found, path, size);
  enum whereabouts where = where_is(place->parent, path, size);
  if (where != NAMED) return where;
  size_t length = strlen(path);
  if (length == 1) length = 0; /* the root itself */
  return (size_t)snprintf(path + length, size - length, "/%s", place->name) < size - length ? NAMED : UNKNOWN;
}

bool place_path(const struct place *place, char *path, size_t size) { return whereabouts_of(place, path, size) == NAMED; }

static bool protects_names(void) {
  return protection.roots.count || protection.inner.count || protection.names.count || protection.pinned.count;
}

/* 0, or the error that the caller gets. */
int judge(const struct place *place, bool (*refuses)(const char *), const char *what) {
  char path[PATH_MAX * 2];
  enum whereabouts where = whereabouts_of(place, path, sizeof path);
  if (where == UNNAMED || (where == NAMED && !refuses(path)) || !protects_names()) return 0;
  if (where == NAMED) return report_violation("fs.protect", "%s %s", what, path), -EROFS;
  /* SECURITY: a path that cannot be judged is refused. Moved up later, what lies there would have a short one. */
  report_violation("fs.protect", "%s %s, whose path cannot be judged", what, place->parent < 0 ? "a file" : place->name);
  return -ENAMETOOLONG;
}

/*
 * git takes a directory for a repository, whatever it is called, that has a HEAD and either objects and refs or a
 * commondir that says where those are. It runs what the configuration there names.
 */
enum { HEAD = 1, OBJECTS = 2, REFS = 4, COMMONDIR = 8 };
static const char *const GIT_PARTS[] = {"HEAD", "objects", "refs", "commondir"};
enum { GIT_PART_COUNT = 4 };

static bool is_whole(int parts) {
  return (parts & HEAD) && ((parts & COMMONDIR) || ((parts & OBJECTS) && (parts & REFS)));
}

/* Which of them the directory `path[0..length)` holds. A dangling link counts: its target can be made later. */
static int git_parts_in(const char *path, size_t length) {
  char part[PATH_MAX * 2 + 16];
  struct stat stat;
  int parts = 0;
  for (int i = 0; i < GIT_PART_COUNT; i++) {
    snprintf(part, sizeof part, "%.*s/%s", (int)length, path, GIT_PARTS[i]);
    if (!fstatat(AT_FDCWD, part, &stat, AT_SYMLINK_NOFOLLOW)) parts |= 1 << i;
  }
  return parts;
}

bool is_git_directory(const char *path, size_t length) { return is_whole(git_parts_in(path, length)); }

/* The part that a name is; 0 when it is none. */
static int git_part(const char *name) {
  for (int i = 0; i < GIT_PART_COUNT; i++)
    if (!strcasecmp(name, GIT_PARTS[i])) return 1 << i;
  return 0;
}

/* Whether a new name would make its directory a repository that was none. */
static bool completes_repository(const char *path) {
  const char *name = strrchr(path, '/');
  int part = name ? git_part(name + 1) : 0;
  if (!part || !is_guarded(path)) return false;
  size_t length = (size_t)(name - path);
  /* A `.git` was here before us, and what names programs in it is protected already. */
  if (length >= 5 && !strncasecmp(path + length - 5, "/.git", 5)) return false;
  int parts = git_parts_in(path, length);
  return !is_whole(parts) && is_whole(parts | part);
}

/* Whether the repository would be none without this name: then what is protected in it could be written. */
static bool breaks_repository(const char *path) {
  const char *name = strrchr(path, '/');
  int part = name ? git_part(name + 1) : 0;
  return part && is_guarded(path) && is_git_directory(path, (size_t)(name - path));
}

bool refuses_write(const char *path) { return is_protected(path); }
bool refuses_creation(const char *path) { return is_protected(path) || completes_repository(path); }
bool refuses_removal(const char *path) { return is_protected(path) || breaks_repository(path); }

/* What arrives whole, or leads elsewhere, brings its own inside along. */
bool refuses_arrival(const char *path) { return refuses_creation(path) || leads_to_protected(path); }
bool refuses_departure(const char *path) { return refuses_removal(path) || leads_to_protected(path); }
