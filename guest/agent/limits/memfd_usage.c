#include "limits/limits.h"
#include "session/process_tree.h"
#include "supervise/resolve.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/mman.h>

/*
 * Memory in memfds, where no cgroup counts it. PID 1 creates every memfd for the caller and keeps a descriptor, so
 * that the pages are counted wherever the other descriptors go.
 */

#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_GROW 4
#endif

enum { MAX_MEMFDS = 1024, SCAN_INTERVAL_MS = 500, SCANS_BEFORE_RELEASE = 3 };

static struct memfd {
  int fd;
  ino_t ino;
  int unseen; /* consecutive scans in which no process had it */
  bool seen;
} memfds[MAX_MEMFDS];
static size_t memfd_count;
static int64_t last_scan;

int counted_memfd_create(const char *name, unsigned flags) {
  struct stat stat;
  if (memfd_count == MAX_MEMFDS) return -ENFILE;
  int fd = (int)syscall(SYS_memfd_create, name, flags | MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -errno;
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0 || fstat(own, &stat)) return close(fd), -ENFILE;
  memfds[memfd_count++] = (struct memfd){own, stat.st_ino, 0, true};
  return fd;
}

uint64_t memfd_usage(void) {
  uint64_t total = 0;
  struct stat stat;
  for (size_t i = 0; i < memfd_count; i++)
    if (!fstat(memfds[i].fd, &stat)) total += (uint64_t)stat.st_blocks * 512;
  return total;
}

static void mark_seen(ino_t ino) {
  for (size_t i = 0; i < memfd_count; i++)
    if (memfds[i].ino == ino) memfds[i].seen = true;
}

static void mark_all_seen(void) {
  for (size_t i = 0; i < memfd_count; i++) memfds[i].seen = true;
}

/* Whether descriptors are queued in this socket. The kernel does not tell which ones. */
static bool holds_descriptors(int process, const char *fd) {
  char path[300], text[1024];
  snprintf(path, sizeof path, "fdinfo/%s", fd);
  read_text_at(process, path, text, sizeof text);
  const char *line = strstr(text, "scm_fds:");
  return line && strtoul(line + 8, NULL, 10) > 0;
}

static bool scan_descriptors(int process) {
  int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *opened = fd < 0 ? NULL : fdopendir(fd);
  struct stat stat;
  if (!opened) {
    if (fd >= 0) close(fd);
    return false;
  }
  for (struct dirent *entry; (entry = readdir(opened));) {
    if (!isdigit((unsigned char)entry->d_name[0]) || fstatat(dirfd(opened), entry->d_name, &stat, 0)) continue;
    mark_seen(stat.st_ino);
    if (S_ISSOCK(stat.st_mode) && holds_descriptors(process, entry->d_name)) mark_all_seen();
  }
  closedir(opened);
  return true;
}

/* Whether it shows any: a thread that is exiting does not. */
static bool scan_mappings(int process) {
  int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC);
  FILE *maps = fd < 0 ? NULL : fdopen(fd, "r");
  char line[512];
  unsigned long inode;
  bool any = false;
  if (!maps) {
    if (fd >= 0) close(fd);
    return false;
  }
  for (; fgets(line, sizeof line, maps); any = true)
    if (sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1 && inode) mark_seen(inode);
  fclose(maps);
  return any;
}

static bool shows_files(const char *name, void *result) {
  (void)result;
  int process = openat(proc_fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (process < 0) return false;
  bool listed = scan_descriptors(process), shown = scan_mappings(process);
  if (shown && !listed) mark_all_seen();
  close(process);
  return shown;
}

static void scan_processes(void) {
  DIR *processes = opendir("/proc");
  if (!processes) return mark_all_seen();
  for (struct dirent *entry; (entry = readdir(processes));) {
    const char *pid = entry->d_name;
    if (!isdigit((unsigned char)pid[0]) || !strcmp(pid, "1")) continue;
    pid_t parent = live_parent_of(pid);
    /* Zombies hold no memory; subreapers belong to the agent. */
    if (parent < 0 || (parent == 1 && agent_processes())) continue;
    if (!any_thread(pid, shows_files, NULL) && live_parent_of(pid) >= 0) mark_all_seen();
  }
  closedir(processes);
}

/*
 * SECURITY: a process may still hold it and pass it from one that was not scanned yet to one that was. It is truncated
 * and sealed before it stops counting, so it can never grow again.
 */
static bool seal_empty(const struct memfd *file) {
  return !ftruncate(file->fd, 0) && !fcntl(file->fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL);
}

void memfd_release_all(void) {
  for (; memfd_count > 0; memfd_count--) {
    seal_empty(&memfds[memfd_count - 1]);
    close(memfds[memfd_count - 1].fd);
  }
}

void memfd_release_unused(void) {
  int64_t now = monotonic_ms();
  if (!memfd_count || now - last_scan < SCAN_INTERVAL_MS) return;
  last_scan = now;
  for (size_t i = 0; i < memfd_count; i++) memfds[i].seen = false;
  scan_processes();
  for (size_t i = memfd_count; i-- > 0;) {
    struct memfd *file = &memfds[i];
    file->unseen = file->seen ? 0 : file->unseen + 1;
    if (file->unseen < SCANS_BEFORE_RELEASE || !seal_empty(file)) continue;
    close(file->fd);
    *file = memfds[--memfd_count];
  }
}
