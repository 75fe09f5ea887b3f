#include "common/message.h"
#include "launch/launch.h"
#include "launch/writable_root.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>

/*
 * `container-root PID DIRECTORY` runs on the host, beside a container that an engine has started with our agent as PID 1.
 *
 *   engine         ─▶ PID 1, which waits for its configuration
 *   container-root ─▶ assembles the root as for bubblewrap, with the container's own /proc and /dev, and listens
 *   PID 1          ─▶ connects, receives the two namespaces and the lock of the ids, enters them, drops the rest
 *
 * SECURITY: the container itself never has a capability or a device for this; all mounts are made from outside.
 */

#define TREE_CLONE 1
#define TREE_RECURSIVE 0x8000

enum { HANDOVER_SECONDS = 30 };

static int open_namespace(const char *pid, const char *name) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%s/ns/%s", pid, name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) die("%s: %s", path, strerror(errno));
  return fd;
}

/* SECURITY: the engine said which process it is. Another one than PID 1 of a container must never be entered. */
static void check_is_container(const char *pid) {
  char path[64], status[4096];
  snprintf(path, sizeof path, "/proc/%s/status", pid);
  if (read_text_at(AT_FDCWD, path, status, sizeof status) <= 0) die("the container is gone");
  const char *line = strstr(status, "\nNSpid:"), *end = line ? strchr(line + 1, '\n') : NULL;
  if (!end || end - line < 3 || strncmp(end - 2, "\t1", 2)) die("process %s is not the first of a container", pid);
}

static int copy_tree(const char *path) {
  int tree = (int)syscall(SYS_open_tree, AT_FDCWD, path, TREE_CLONE | TREE_RECURSIVE | O_CLOEXEC);
  if (tree < 0) die("cannot copy %s of the container: %s", path, strerror(errno));
  return tree;
}

/* PLATFORM: only who is in a mount namespace can copy its mounts. */
static void take_system_mounts(const char *pid) {
  int own = open_namespace("self", "mnt"), other = open_namespace(pid, "mnt");
  if (setns(other, CLONE_NEWNS)) die("cannot enter the container: %s", strerror(errno));
  root_add_tree(copy_tree("/proc"), "/proc");
  root_add_tree(copy_tree("/dev"), "/dev");
  if (setns(own, CLONE_NEWNS)) die("cannot leave the container: %s", strerror(errno));
  close(own);
  close(other);
}

static int listen_in(const char *directory) {
  struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = HANDOVER_NAME};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0 || chdir(directory) || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1))
    die("cannot listen in %s: %s", directory, strerror(errno));
  return fd;
}

/* SECURITY: only PID 1 of the container gets the namespaces. */
static int accept_container(int listener, const char *pid) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length)) die("handover: %s", strerror(errno));
  if (peer.pid != atoi(pid)) die("handover: process %d is not the container's first", peer.pid);
  return fd;
}

_Noreturn void container_root_main(const char *pid, const char *directory) {
  pid_t parent = getppid();
  die_with_parent(parent);
  check_is_container(pid);
  read_launch_operations();
  if (!root_is_wanted()) die("launch vector: no root");
  int listener = listen_in(directory);
  take_system_mounts(pid);
  root_assemble();
  die_with_parent(parent); /* becoming another user clears the parent-death signal */
  int users = open_namespace("self", "user"), mounts = open_namespace("self", "mnt");
  if (chdir(STAGE "/root") || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH))
    die("cannot enter the root: %s", strerror(errno));
  alarm(HANDOVER_SECONDS);
  if (write(1, "ready\n", 6) != 6) die("the server is gone");
  int connection = accept_container(listener, pid);
  if (!send_message(connection, MESSAGE_USERS, "", 0, users) ||
      !send_message(connection, MESSAGE_MOUNTS, "", 0, mounts) ||
      !send_message(connection, MESSAGE_RANGE, "", 0, root_lock()))
    die("handover: %s", strerror(errno));
  exit(0);
}
