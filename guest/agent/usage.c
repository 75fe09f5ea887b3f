#include "agent.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/vfs.h>

struct ceilings ceilings = {.tick = 100};

/* Every file that was opened for writing is charged for what it has grown since; each new entry for a block. */
enum { FILES = 16384, ENTRY_COST = 4096 };

static struct written {
  dev_t dev;
  ino_t ino;
  int fd;
  int64_t base; /* bytes on disk before the sandbox wrote */
  bool gone, held; /* without a name; by somebody besides us, when we last looked */
} files[FILES];

static int file_count, oldest;
static int64_t settled; /* growth of files that are no longer watched */
static int64_t entries; /* that were made and not removed again */
static bool full;       /* since a command was stopped for it, and until there is room again */

static int64_t size_on_disk(const struct stat *stat) { return (int64_t)stat->st_blocks * 512; }

static int64_t growth_of(const struct written *file) {
  struct stat stat;
  if (fstat(file->fd, &stat)) return 0;
  /* Blocks are given at write-back; until then the length tells more. */
  int64_t now = stat.st_size > size_on_disk(&stat) ? stat.st_size : size_on_disk(&stat);
  return now > file->base ? now - file->base : 0;
}

static struct written *slot_for(const struct stat *stat) {
  for (int i = file_count - 1; i >= 0; i--)
    if (files[i].ino == stat->st_ino && files[i].dev == stat->st_dev) return NULL;
  if (file_count < FILES) return &files[file_count++];
  struct written *file = &files[oldest];
  oldest = (oldest + 1) % FILES;
  settled += growth_of(file);
  close(file->fd);
  return file;
}

void usage_note_write(int fd, const struct stat *stat, bool created) {
  if (!ceilings.disk_bytes || !S_ISREG(stat->st_mode)) return;
  struct written *file = slot_for(stat);
  if (!file) return;
  char link[64];
  snprintf(link, sizeof link, "self/fd/%d", fd);
  *file = (struct written){stat->st_dev, stat->st_ino, openat(proc_fd, link, O_PATH | O_CLOEXEC), 0, false, false};
  if (!created) file->base = stat->st_size > size_on_disk(stat) ? stat->st_size : size_on_disk(stat);
}

void usage_note_entry(void) { entries++; }

void usage_note_removal(void) {
  if (entries) entries--;
}

/* Returns how many have no name any more. */
static int find_gone(void) {
  int found = 0;
  struct stat stat;
  for (int i = 0; i < file_count; i++) {
    files[i].held = false;
    found += files[i].gone = fstat(files[i].fd, &stat) || !stat.st_nlink;
  }
  return found;
}

static void mark_held(ino_t ino) {
  for (int i = 0; i < file_count; i++)
    if (files[i].gone && files[i].ino == ino) files[i].held = true;
}

/* `…-… rw-s … fe:00 1234   /path (deleted)`. Returns whether it could be read. */
static bool mark_mapped(int process) {
  int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC);
  FILE *maps = fd < 0 ? NULL : fdopen(fd, "r");
  if (!maps) {
    if (fd >= 0) close(fd);
    return false;
  }
  char line[512];
  unsigned long inode;
  while (fgets(line, sizeof line, maps))
    if (sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1 && inode) mark_held(inode);
  fclose(maps);
  return true;
}

static bool mark_opened(int process) {
  int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *opened = fd < 0 ? NULL : fdopendir(fd);
  if (!opened) {
    if (fd >= 0) close(fd);
    return false;
  }
  struct stat stat;
  for (struct dirent *entry; (entry = readdir(opened));)
    if (isdigit((unsigned char)entry->d_name[0]) && !fstatat(dirfd(opened), entry->d_name, &stat, 0)) mark_held(stat.st_ino);
  closedir(opened);
  return true;
}

/* A process whose first thread has ended shows nothing and may go on in others. */
static bool has_threads(int process) {
  struct stat stat;
  return !fstatat(process, "task", &stat, 0) && stat.st_nlink > 3;
}

/* Returns whether we could see what it holds. Keepers are ours and hold nothing; they are PID 1's only children. */
static bool mark_of(int processes, const char *pid) {
  pid_t parent = parent_of(pid);
  if (parent == 1 && keepers()) return true;
  int process = openat(processes, pid, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (process < 0) return true; /* it has ended meanwhile */
  bool seen = parent < 0 ? !has_threads(process) : mark_opened(process) && mark_mapped(process);
  close(process);
  return seen;
}

/* A file without a name counts while somebody has it. After that only we do, and what it took is given back. */
void usage_release(void) {
  DIR *processes = find_gone() ? opendir("/proc") : NULL;
  bool seen = processes;
  for (struct dirent *entry; seen && (entry = readdir(processes));)
    if (isdigit((unsigned char)entry->d_name[0]) && strcmp(entry->d_name, "1")) seen = mark_of(dirfd(processes), entry->d_name);
  if (processes) closedir(processes);
  /* SECURITY: who does not let us look may hold any of them. */
  for (int i = file_count - 1; seen && i >= 0; i--) {
    if (!files[i].gone || files[i].held) continue;
    close(files[i].fd);
    files[i] = files[--file_count];
  }
}

static uint64_t disk_used(void) {
  usage_release();
  int64_t total = settled + entries * ENTRY_COST;
  for (int i = 0; i < file_count; i++) total += growth_of(&files[i]);
  return total > 0 ? (uint64_t)total : 0;
}

bool usage_is_full(void) {
  full = full && disk_used() > ceilings.disk_bytes;
  return full;
}

/* Once it is full nobody can write more, so nobody is stopped for what others left. */
static bool fills_up(void) {
  if (!ceilings.disk_bytes || usage_is_full()) return false;
  full = disk_used() > ceilings.disk_bytes;
  return full;
}

static uint64_t tmpfs_used(const char *path) {
  struct statfs fs;
  return statfs(path, &fs) ? 0 : (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
}

/* Private resident pages and number of all processes but us. */
struct load {
  uint64_t pages, processes;
};

static struct load processes_load(void) {
  struct load load = {0};
  DIR *processes = opendir("/proc");
  if (!processes) return (struct load){UINT32_MAX, UINT32_MAX};
  for (struct dirent *entry; (entry = readdir(processes));) {
    if (!isdigit((unsigned char)entry->d_name[0]) || !strcmp(entry->d_name, "1")) continue;
    load.processes++;
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/statm", entry->d_name);
    FILE *file = ceilings.memory_bytes ? fopen(path, "re") : NULL;
    unsigned long size, resident, shared;
    if (file && fscanf(file, "%lu %lu %lu", &size, &resident, &shared) == 3 && resident > shared) load.pages += resident - shared;
    if (file) fclose(file);
  }
  closedir(processes);
  return load;
}

static uint64_t memory_used(const struct load *load) {
  return load->pages * (uint64_t)sysconf(_SC_PAGESIZE) + tmpfs_used("/dev/shm") +
         (ceilings.shared_tmp ? 0 : tmpfs_used("/tmp"));
}

int work_group = -1, memory_events = -1, pids_events = -1;

/* `name 12` on a line of its own. */
static uint64_t event_count(int fd, const char *name) {
  char text[512], *line;
  ssize_t length = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
  if (length <= 0) return 0;
  text[length] = 0;
  size_t width = strlen(name);
  for (line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
    if (!strncmp(line, name, width) && line[width] == ' ') return strtoull(line + width, NULL, 10);
  return 0;
}

uint64_t usage_killed(void) {
  static uint64_t seen;
  uint64_t now = event_count(memory_events, "oom_kill"), more = now - seen;
  seen = now;
  return more;
}

uint64_t usage_refused(void) {
  static uint64_t seen;
  uint64_t now = event_count(pids_events, "max"), more = now - seen;
  seen = now;
  return more;
}

const char *usage_exceeded(void) {
  if (fills_up()) return "disk";
  if (!ceilings.memory_bytes && !ceilings.processes) return NULL;
  struct load load = processes_load();
  if (ceilings.processes && load.processes > ceilings.processes + keepers()) return "pids";
  if (ceilings.memory_bytes && memory_used(&load) > ceilings.memory_bytes) return "memory";
  return NULL;
}
