#include "front.h"

/*
 * SECURITY: the broker does for a caller what the caller could do itself, never more and never elsewhere. Everything
 * that decides what a process sees and may do must be equal; what only the command inherits (priority, session, keys)
 * is not compared, because the front starts the command.
 */

static bool is_same_link(const char *pid, const char *name) {
  char path[96], ours[PATH_MAX], theirs[PATH_MAX];
  snprintf(path, sizeof path, "/proc/self/%s", name);
  ssize_t our_length = readlink(path, ours, sizeof ours);
  int our_error = errno;
  snprintf(path, sizeof path, "/proc/%s/%s", pid, name);
  ssize_t their_length = readlink(path, theirs, sizeof theirs);
  /* PLATFORM: old kernels lack some namespaces. */
  if (our_length < 0 && their_length < 0) return our_error == ENOENT && errno == ENOENT;
  return our_length == their_length && !memcmp(ours, theirs, (size_t)our_length);
}

static bool is_same_root(const char *pid) {
  char path[64];
  struct stat ours, theirs;
  snprintf(path, sizeof path, "/proc/%s/root", pid);
  return !stat("/", &ours) && !stat(path, &theirs) && ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino &&
         is_same_link(pid, "root");
}

static ssize_t read_both(const char *pid, const char *name, char *ours, char *theirs, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/%s", name);
  ssize_t length = read_text_at(AT_FDCWD, path, ours, size);
  snprintf(path, sizeof path, "/proc/%s/%s", pid, name);
  ssize_t theirs_length = read_text_at(AT_FDCWD, path, theirs, size);
  return length < 0 && theirs_length < 0 ? -1 : length == theirs_length ? length : -2;
}

static bool is_same_text(const char *pid, const char *name) {
  char ours[8192], theirs[8192];
  ssize_t length = read_both(pid, name, ours, theirs, sizeof ours);
  return length == -1 || (length >= 0 && !memcmp(ours, theirs, (size_t)length));
}

/* The line of a text that begins with this word; its length in `length`. */
static const char *line_of(const char *text, const char *word, size_t *length) {
  for (const char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
    if (!strncmp(at, word, strlen(word))) {
      *length = strcspn(at, "\n");
      return at;
    }
  *length = 0;
  return "";
}

static bool is_same_status(const char *pid) {
  static const char *const LINES[] = {"Umask:",  "Uid:",    "Gid:",    "Groups:",  "CapInh:",     "CapPrm:",
                                      "CapEff:", "CapBnd:", "CapAmb:", "Seccomp:", "NoNewPrivs:", "Seccomp_filters:"};
  char ours[8192], theirs[8192], path[64];
  snprintf(path, sizeof path, "/proc/%s/status", pid);
  if (read_text_at(AT_FDCWD, "/proc/self/status", ours, sizeof ours) <= 0 ||
      read_text_at(AT_FDCWD, path, theirs, sizeof theirs) <= 0)
    return false;
  for (size_t i = 0; i < LENGTH(LINES); i++) {
    size_t our_length, their_length;
    const char *our_line = line_of(ours, LINES[i], &our_length), *their_line = line_of(theirs, LINES[i], &their_length);
    if (our_length != their_length || memcmp(our_line, their_line, our_length)) return false;
  }
  return true;
}

/* Node raises its soft limit of open files; the hard one must be equal like every other limit. */
static void hide_open_files(char *limits) {
  size_t length;
  char *line = (char *)line_of(limits, "Max open files", &length), *at = line + sizeof "Max open files" - 1;
  if (!length) return;
  at += strspn(at, " ");
  memset(at, ' ', strcspn(at, " "));
}

static bool is_same_limits(const char *pid) {
  char ours[8192], theirs[8192];
  if (read_both(pid, "limits", ours, theirs, sizeof ours) < 0) return false;
  hide_open_files(ours);
  hide_open_files(theirs);
  return !strcmp(ours, theirs);
}

bool is_equal_process(pid_t pid, bool *same_cgroup) {
  static const char *const NAMESPACES[] = {"ns/user", "ns/mnt",    "ns/pid",  "ns/pid_for_children", "ns/net", "ns/ipc",
                                           "ns/uts",  "ns/cgroup", "ns/time", "ns/time_for_children"};
  char name[16];
  snprintf(name, sizeof name, "%d", pid);
  for (size_t i = 0; i < LENGTH(NAMESPACES); i++)
    if (!is_same_link(name, NAMESPACES[i])) return false;
  *same_cgroup = is_same_text(name, "cgroup");
  return is_same_root(name) && is_same_status(name) && is_same_limits(name) && is_same_text(name, "attr/current");
}
