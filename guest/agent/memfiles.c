#include "agent.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/mman.h>

/*
 * Files that are only memory (memfd), where no cgroup counts them. We make each one in the caller's stead and keep a
 * descriptor, so that its pages count wherever its other descriptors go.
 */

#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_GROW 4
#endif

enum { MEMORY_FILES = 1024, LOOK_MS = 500, LOOKS = 3 };

static struct memory_file {
  int fd;
  ino_t ino;
  int unseen; /* how often in a row nobody was seen to have it */
  bool seen;
} memory_files[MEMORY_FILES];
static size_t memory_file_count;
static int64_t looked_at;

int memory_file_new(const char *name, unsigned flags) {
  struct stat stat;
  if (memory_file_count == MEMORY_FILES) return -ENFILE;
  int fd = (int)syscall(SYS_memfd_create, name, flags | MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -errno;
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0 || fstat(own, &stat)) return close(fd), -ENFILE;
  memory_files[memory_file_count++] = (struct memory_file){own, stat.st_ino, 0, true};
  return fd;
}

uint64_t memory_files_used(void) {
  uint64_t total = 0;
  struct stat stat;
  for (size_t i = 0; i < memory_file_count; i++)
    if (!fstat(memory_files[i].fd, &stat)) total += (uint64_t)stat.st_blocks * 512;
  return total;
}

static void mark_seen(ino_t ino) {
  for (size_t i = 0; i < memory_file_count; i++)
    if (memory_files[i].ino == ino) memory_files[i].seen = true;
}

static void mark_all_seen(void) {
  for (size_t i = 0; i < memory_file_count; i++) memory_files[i].seen = true;
}

/* Whether descriptors wait in the queue of this socket; which ones nobody tells. */
static bool holds_descriptors(int process, const char *fd) {
  char path[300], text[1024];
  snprintf(path, sizeof path, "fdinfo/%s", fd);
  int info = openat(process, path, O_RDONLY | O_CLOEXEC);
  ssize_t length = info < 0 ? -1 : read(info, text, sizeof text - 1);
  if (info >= 0) close(info);
  text[length > 0 ? length : 0] = 0;
  const char *line = strstr(text, "scm_fds:");
  return line && strtoul(line + 8, NULL, 10) > 0;
}

static void look_at_descriptors(int process) {
  int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *opened = fd < 0 ? NULL : fdopendir(fd);
  struct stat stat;
  if (!opened) {
    if (fd >= 0) close(fd);
    return mark_all_seen();
  }
  for (struct dirent *entry; (entry = readdir(opened));) {
    if (!isdigit((unsigned char)entry->d_name[0]) || fstatat(dirfd(opened), entry->d_name, &stat, 0)) continue;
    mark_seen(stat.st_ino);
    if (S_ISSOCK(stat.st_mode) && holds_descriptors(process, entry->d_name)) mark_all_seen();
  }
  closedir(opened);
}

static void look_at_mappings(int process) {
  int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC);
  FILE *maps = fd < 0 ? NULL : fdopen(fd, "r");
  char line[512];
  unsigned long inode;
  if (!maps) {
    if (fd >= 0) close(fd);
    return mark_all_seen();
  }
  while (fgets(line, sizeof line, maps))
    if (sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1 && inode) mark_seen(inode);
  fclose(maps);
}

static void look_at_all(void) {
  DIR *processes = opendir("/proc");
  if (!processes) return mark_all_seen();
  for (struct dirent *entry; (entry = readdir(processes));) {
    const char *pid = entry->d_name;
    if (!isdigit((unsigned char)pid[0]) || !strcmp(pid, "1")) continue;
    pid_t parent = parent_of(pid);
    /* Zombies hold no memory; keepers are part of the agent. */
    int process = parent < 0 || (parent == 1 && keepers()) ? -1 : openat(dirfd(processes), pid, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (process < 0) continue;
    look_at_descriptors(process);
    look_at_mappings(process);
    close(process);
  }
  closedir(processes);
}

/*
 * SECURITY: somebody may still have it and pass it on from one that we have not looked at to one that we have. So it is
 * emptied and sealed before it no longer counts: it never grows again.
 */
static bool is_spent(const struct memory_file *file) {
  return !ftruncate(file->fd, 0) && !fcntl(file->fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL);
}

void memory_files_clear(void) {
  for (; memory_file_count > 0; memory_file_count--) {
    is_spent(&memory_files[memory_file_count - 1]);
    close(memory_files[memory_file_count - 1].fd);
  }
}

void memory_files_release(void) {
  int64_t now = milliseconds();
  if (!memory_file_count || now - looked_at < LOOK_MS) return;
  looked_at = now;
  for (size_t i = 0; i < memory_file_count; i++) memory_files[i].seen = false;
  look_at_all();
  for (size_t i = memory_file_count; i-- > 0;) {
    struct memory_file *file = &memory_files[i];
    file->unseen = file->seen ? 0 : file->unseen + 1;
    if (file->unseen < LOOKS || !is_spent(file)) continue;
    close(file->fd);
    *file = memory_files[--memory_file_count];
  }
}
