#include "limits/limits.h"

int commands_cgroup = -1, memory_events = -1, pids_events = -1;

/* The value of a line `name 12`; 0 when there is none. */
static uint64_t cgroup_event_count(int fd, const char *name) {
  char text[512], *line;
  ssize_t length = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
  if (length <= 0) return 0;
  text[length] = 0;
  size_t width = strlen(name);
  for (line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
    if (!strncmp(line, name, width) && line[width] == ' ') return strtoull(line + width, NULL, 10);
  return 0;
}

uint64_t new_oom_kills(void) {
  static uint64_t seen;
  uint64_t now = cgroup_event_count(memory_events, "oom_kill"), more = now - seen;
  seen = now;
  return more;
}

uint64_t new_refused_forks(void) {
  static uint64_t seen;
  uint64_t now = cgroup_event_count(pids_events, "max"), more = now - seen;
  seen = now;
  return more;
}
