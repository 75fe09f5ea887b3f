#include "session/process_tree.h"
#include "supervise/resolve.h"
#include "supervise/supervise.h"

#include <ctype.h>
#include <dirent.h>

/* A snapshot of the sandbox's processes with their parents. */
struct process {
  pid_t pid, parent;
  bool marked;
};

enum { MAX_PROCESSES = 65536, MAX_ROUNDS = 64, MAX_SCANS_OF_THREADS = 16 };

/* Of /proc/<pid>/stat, between the parent and the number of threads. */
#define FIELDS_BEFORE_THREADS " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "

static struct process *snapshot;
static size_t process_count;

pid_t live_parent_of(const char *pid) {
  char path[300], text[512];
  snprintf(path, sizeof path, "%s/stat", pid);
  if (read_text_at(proc_fd, path, text, sizeof text) <= 0) return -1;
  /* The name may contain parentheses; the fields start after the last one. */
  char *after = strrchr(text, ')');
  int parent, threads;
  char state;
  if (!after || sscanf(after + 1, " %c %d" FIELDS_BEFORE_THREADS "%d", &state, &parent, &threads) != 3) return -1;
  return state == 'Z' && threads <= 1 ? -1 : parent;
}

/* Whether `shows` returned true for one of the threads; `others` becomes whether there are any beside the main thread. */
static bool scan_threads(const char *pid, bool (*shows)(const char *name, void *result), void *result, bool *others) {
  char name[600];
  snprintf(name, sizeof name, "%s/task", pid);
  int fd = openat(proc_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *threads = fd < 0 ? NULL : fdopendir(fd);
  bool shown = false;
  *others = false;
  if (!threads) {
    if (fd >= 0) close(fd);
    return false;
  }
  for (struct dirent *entry; !shown && (entry = readdir(threads));) {
    if (!isdigit((unsigned char)entry->d_name[0]) || !strcmp(entry->d_name, pid)) continue;
    *others = true;
    snprintf(name, sizeof name, "%s/task/%s", pid, entry->d_name);
    shown = shows(name, result);
  }
  closedir(threads);
  return shown;
}

bool any_thread(const char *pid, bool (*shows)(const char *name, void *result), void *result) {
  bool shown = shows(pid, result), others = true;
  /* SECURITY: a thread may start the next one and exit while we look. */
  for (int round = 0; !shown && others && round < MAX_SCANS_OF_THREADS; round++)
    shown = scan_threads(pid, shows, result, &others);
  return shown;
}

static void scan_processes(void) {
  if (!snapshot && !(snapshot = malloc(MAX_PROCESSES * sizeof *snapshot))) _exit(EXIT_SETUP_FAILED);
  process_count = 0;
  DIR *processes = opendir("/proc");
  if (!processes) return;
  for (struct dirent *entry; (entry = readdir(processes)) && process_count < MAX_PROCESSES;) {
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    pid_t pid = atoi(entry->d_name), parent = live_parent_of(entry->d_name);
    if (pid > 1 && parent >= 0) snapshot[process_count++] = (struct process){pid, parent, false};
  }
  closedir(processes);
}

static bool is_marked(pid_t pid) {
  for (size_t i = 0; i < process_count; i++)
    if (snapshot[i].pid == pid) return snapshot[i].marked;
  return false;
}

/* Marks all descendants of marked processes. */
static void mark_descendants(void) {
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < process_count; i++)
      if (!snapshot[i].marked && is_marked(snapshot[i].parent)) more = snapshot[i].marked = true;
  }
}

static size_t signal_marked(int signal, pid_t except) {
  size_t count = 0;
  for (size_t i = 0; i < process_count; i++)
    if (snapshot[i].marked && snapshot[i].pid != except && !kill(snapshot[i].pid, signal)) count++;
  return count;
}

static void mark(pid_t pid) {
  for (size_t i = 0; i < process_count; i++)
    if (snapshot[i].pid == pid) snapshot[i].marked = true;
}

/*
 * Kills everything below a subreaper, which stays and reaps. First stops all processes until no new one appears,
 * because a stopped process cannot fork; then kills them.
 */
void kill_tree(pid_t root) {
  size_t before = 0;
  for (int round = 0; round < MAX_ROUNDS; round++) {
    scan_processes();
    mark(root);
    mark_descendants();
    size_t now = signal_marked(SIGSTOP, root);
    if (now == before) break;
    before = now;
  }
  signal_marked(SIGKILL, root);
  kill(root, SIGCONT); /* a command may have stopped its reaper */
}

/*
 * SECURITY: a process that killed its subreaper to outlive its command became a child of PID 1. Only subreapers and
 * blocking workers may be.
 */
void kill_orphans(bool (*is_known)(pid_t pid)) {
  for (int round = 0; round < MAX_ROUNDS; round++) {
    scan_processes();
    size_t found = 0;
    for (size_t i = 0; i < process_count; i++)
      if (snapshot[i].parent == 1 && !is_known(snapshot[i].pid) && !is_running_worker(snapshot[i].pid))
        found += snapshot[i].marked = true;
    if (!found) return;
    mark_descendants();
    signal_marked(SIGKILL, 0);
  }
}
