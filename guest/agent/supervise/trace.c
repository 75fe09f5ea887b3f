#include "common/channel.h"
#include "supervise/supervise.h"

/* Reports what a command opens and executes, to derive a policy from it. It allows and denies nothing. */
bool tracing;

/* Hashes of what was reported already. A collision only loses a report. */
enum { SEEN_SLOTS = 1 << 16 };
static uint64_t seen[SEEN_SLOTS];

static bool is_first(char kind, const char *path) {
  uint64_t hash = 14695981039346656037ULL ^ (unsigned char)kind;
  for (; *path; path++) hash = (hash ^ (unsigned char)*path) * 1099511628211ULL;
  uint64_t *slot = &seen[hash % SEEN_SLOTS];
  if (*slot == hash) return false;
  *slot = hash;
  return true;
}

/* Makes a relative path absolute with the caller's directory. */
static bool full_path(const struct supervised_call *call, int dirfd, const char *path, char *full, size_t size) {
  char link[64], base[PATH_MAX];
  if (path[0] == '/') return (size_t)snprintf(full, size, "%s", path) < size;
  if (dirfd == AT_FDCWD) snprintf(link, sizeof link, "%d/cwd", call->caller);
  else snprintf(link, sizeof link, "%d/fd/%d", call->caller, dirfd);
  ssize_t length = readlinkat(proc_fd, link, base, sizeof base - 1);
  if (length <= 0) return false;
  base[length] = 0;
  return (size_t)snprintf(full, size, "%s/%s", base, path) < size;
}

/* Whether the path is accessible is for the host to find out. */
void trace_access(const struct supervised_call *call, char kind, int dirfd, uint64_t address) {
  char path[PATH_MAX], text[PATH_MAX * 2];
  text[0] = kind;
  if (read_caller_path(call, address, path) || !path[0]) return;
  if (!full_path(call, dirfd, path, text + 1, sizeof text - 1) || !is_first(kind, text + 1)) return;
  size_t length = strlen(text);
  if (length <= MAX_TEXT) send_frame(FRAME_USE, 0, text, length);
}
