#include "common/channel.h"
#include "common/message.h"
#include "init/config.h"
#include "isolate/isolate.h"
#include "limits/limits.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/*
 * The isolator creates namespaces, which PID 1 may not do any more. It accepts one byte, and answers with a process that
 * is PID 1's own child (CLONE_PARENT).
 *
 * SECURITY: it holds capabilities over the sandbox's user namespace. It reads nothing that a command wrote, no command
 * shares a PID namespace with it, and it is not dumpable.
 */

pid_t isolator_pid;
int isolator_socket = -1;
struct isolated_user isolated_user;

/* Where its descriptors are moved to; everything else is closed. */
enum { SOCKET_FD = 3, FILTER_FD, USERS_FD, CGROUP_FD, FIRST_FREE_FD };

static void keep_descriptors(int socket, int filter) {
  int kept[FIRST_FREE_FD] = {
      [SOCKET_FD] = socket, [FILTER_FD] = filter, [USERS_FD] = -1, [CGROUP_FD] = commands_cgroup};
  for (int fd = SOCKET_FD; fd < FIRST_FREE_FD; fd++)
    if (kept[fd] >= 0 && (kept[fd] = fcntl(kept[fd], F_DUPFD_CLOEXEC, FIRST_FREE_FD + 10)) < 0)
      _exit(EXIT_SETUP_FAILED);
  for (int fd = 0; fd < FIRST_FREE_FD; fd++) close(fd);
  for (int fd = SOCKET_FD; fd < FIRST_FREE_FD; fd++)
    if (kept[fd] >= 0 && dup3(kept[fd], fd, O_CLOEXEC) < 0) _exit(EXIT_SETUP_FAILED);
  if (commands_cgroup >= 0) commands_cgroup = CGROUP_FD;
  syscall(SYS_close_range, FIRST_FREE_FD, INT_MAX, 0);
  /* Standard streams of a command are put in their place. */
  for (int fd = 0; fd < 3; fd++)
    if (open("/dev/null", O_RDWR) != fd) _exit(EXIT_SETUP_FAILED);
}

static void receive_users(void) {
  char kind, text[16];
  int fd;
  if (receive_message(SOCKET_FD, &kind, text, sizeof text, &fd) < 0) _exit(0);
  if (fd >= 0 && fd != USERS_FD) dup3(fd, USERS_FD, O_CLOEXEC), close(fd);
}

static pid_t clone_namespaces(void) {
  unsigned long flags = CLONE_PARENT | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET;
  return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
}

/*
 * SECURITY: PID 1 hears of a namespace init that is confined, and not before: until then it may have another user, whom
 * PID 1 could neither stop nor kill.
 */
static bool is_confined(int socket, char *why, size_t size) {
  char kind;
  int fd;
  if (receive_message(socket, &kind, why, size, &fd) >= 0) return kind == MESSAGE_PREPARED;
  snprintf(why, size, "the namespaces of the command could not be created");
  return false;
}

static void create_init(void) {
  int sockets[2] = {-1, -1};
  char why[1024];
  pid_t pid = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) ? -1 : clone_namespaces();
  if (pid == 0) {
    close(SOCKET_FD);
    close(sockets[0]);
    isolated_main(&(struct isolated_parts){sockets[1], FILTER_FD, isolated_user.is_elsewhere ? USERS_FD : -1});
  }
  if (pid < 0) snprintf(why, sizeof why, "the namespaces of the command could not be created: %s", strerror(errno));
  if (sockets[1] >= 0) close(sockets[1]);
  if (pid > 0 && is_confined(sockets[0], why, sizeof why))
    send_message(SOCKET_FD, MESSAGE_PREPARED, &pid, sizeof pid, sockets[0]);
  else send_message(SOCKET_FD, MESSAGE_FAILED, why, strlen(why), -1);
  if (sockets[0] >= 0) close(sockets[0]);
}

static _Noreturn void serve(void) {
  char kind, text[16];
  int fd;
  if (isolated_user.is_elsewhere) receive_users();
  while (receive_message(SOCKET_FD, &kind, text, sizeof text, &fd) >= 0) create_init();
  _exit(0);
}

void isolator_start(int filter, struct isolated_user user) {
  int sockets[2];
  isolated_user = user;
  disk_share();
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) die("socketpair: %s", strerror(errno));
  isolator_pid = fork();
  if (isolator_pid < 0) die("cannot start the isolator: %s", strerror(errno));
  if (isolator_pid == 0) {
    control_fd = control_out = -1;
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) _exit(EXIT_SETUP_FAILED);
    keep_descriptors(sockets[1], filter);
    serve();
  }
  close(sockets[1]);
  isolator_socket = sockets[0];
}

void isolator_enter_users(void) {
  if (!isolated_user.is_elsewhere) return;
  int users = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
  if (users < 0 || !send_message(isolator_socket, MESSAGE_USERS, "", 0, users))
    die("cannot pass the user namespace: %s", strerror(errno));
  close(users);
}
