#include "agent.h"

#include <ctype.h>
#include <dirent.h>

/* Processes of the sandbox with their parents, as they are now. */
struct family {
  pid_t pid, parent;
  bool marked;
};

enum { MAX_FAMILY = 65536, ROUNDS = 64 };

static struct family *family;
static size_t members;

pid_t parent_of(const char *pid) {
  char path[300], text[512];
  snprintf(path, sizeof path, "%s/stat", pid);
  int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
  ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (length <= 0) return -1;
  text[length] = 0;
  /* The name may hold anything, also brackets: what counts comes after the last one. */
  char *after = strrchr(text, ')');
  int parent;
  char state;
  if (!after || sscanf(after + 1, " %c %d", &state, &parent) != 2 || state == 'Z') return -1;
  return parent;
}

static void look(void) {
  if (!family && !(family = malloc(MAX_FAMILY * sizeof *family))) _exit(125);
  members = 0;
  DIR *processes = opendir("/proc");
  if (!processes) return;
  for (struct dirent *entry; (entry = readdir(processes)) && members < MAX_FAMILY;) {
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    pid_t pid = atoi(entry->d_name), parent = parent_of(entry->d_name);
    if (pid > 1 && parent >= 0) family[members++] = (struct family){pid, parent, false};
  }
  closedir(processes);
}

static bool is_marked(pid_t pid) {
  for (size_t i = 0; i < members; i++)
    if (family[i].pid == pid) return family[i].marked;
  return false;
}

/* Marks every descendant of a marked one. */
static void spread(void) {
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < members; i++)
      if (!family[i].marked && is_marked(family[i].parent)) more = family[i].marked = true;
  }
}

static size_t signal_marked(int signal, pid_t but) {
  size_t count = 0;
  for (size_t i = 0; i < members; i++)
    if (family[i].marked && family[i].pid != but && !kill(family[i].pid, signal)) count++;
  return count;
}

static void mark(pid_t pid) {
  for (size_t i = 0; i < members; i++)
    if (family[i].pid == pid) family[i].marked = true;
}

/*
 * Ends everything below a keeper, which stays and reaps. First all are stopped, until nobody new turns up: what is
 * stopped cannot start another; then they are killed.
 */
void kill_tree(pid_t root) {
  size_t before = 0;
  for (int round = 0; round < ROUNDS; round++) {
    look();
    mark(root);
    spread();
    size_t now = signal_marked(SIGSTOP, root);
    if (now == before) break;
    before = now;
  }
  signal_marked(SIGKILL, root);
}

/* SECURITY: whoever ended its keeper to outlive its command became our child; only keepers may be that. */
void kill_strays(bool (*is_known)(pid_t pid)) {
  for (int round = 0; round < ROUNDS; round++) {
    look();
    size_t found = 0;
    for (size_t i = 0; i < members; i++)
      if (family[i].parent == 1 && !is_known(family[i].pid) && !is_waiter(family[i].pid)) found += family[i].marked = true;
    if (!found) return;
    spread();
    signal_marked(SIGKILL, 0);
  }
}
