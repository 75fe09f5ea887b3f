#include "launch/id_mapping.h"
#include "supervise/resolve.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define TREE_CLONE 1
#define TREE_CLOEXEC O_CLOEXEC
#define TREE_RECURSIVE 0x8000
#define MOVE_FROM_EMPTY 0x4
#define MOVE_TO_EMPTY 0x40
#define MOUNT_NOSUID 0x2
#define MOUNT_NODEV 0x4
#define MOUNT_IDMAP 0x100000

static void write_map(pid_t pid, const char *file, const char *text) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
  write_text(path, text);
}

int make_mapped_namespace(const char *users, const char *groups) {
  char path[64];
  pid_t parent = getpid();
  pid_t child = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, 0);
  if (child < 0) die("user namespace: %s", strerror(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* A parent that is gone already sends no signal, and we would keep its lock and its streams for ever. */
    if (getppid() != parent) _exit(1);
    for (;;) pause();
  }
  write_map(child, "uid_map", users);
  write_map(child, "gid_map", groups);
  snprintf(path, sizeof path, "/proc/%d/ns/user", child);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) die("user namespace: %s", strerror(errno));
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  return fd;
}

int make_user_namespace(unsigned inside, unsigned outside) {
  char text[64];
  snprintf(text, sizeof text, "%u %u %u", inside, outside, (unsigned)ID_COUNT);
  return make_mapped_namespace(text, text);
}

int mapped_tree(int source, uint64_t attributes, int user_namespace) {
  unsigned recursive = user_namespace < 0 ? TREE_RECURSIVE : 0;
  struct {
    uint64_t set, clear, propagation, userns_fd;
  } wanted = {.set = attributes | MOUNT_NODEV | MOUNT_NOSUID | (recursive ? 0 : MOUNT_IDMAP),
              .userns_fd = recursive ? 0 : (uint64_t)user_namespace};
  char path[PATH_MAX] = "a layer";
  int tree = (int)syscall(SYS_open_tree, source, "", AT_EMPTY_PATH | TREE_CLONE | TREE_CLOEXEC | recursive);
  if (tree < 0) die("cannot copy a mount: %s", strerror(errno));
  if (!syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | recursive, &wanted, sizeof wanted))
    return close(source), tree;
  int error = errno;
  fd_path(source, path, sizeof path);
  die("the file system of %s cannot translate ids (id-mapped mounts): %s", path, strerror(error));
}

void attach(int tree, int target, const char *path) {
  if (syscall(SYS_move_mount, tree, "", target, "", MOVE_FROM_EMPTY | MOVE_TO_EMPTY))
    die("cannot mount on %s: %s", path, strerror(errno));
  close(tree);
}
