#include "common/channel.h"
#include "common/message.h"
#include "init/init.h"
#include "limits/limits.h"
#include "session/session.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

/*
 * A Pod can outlive the server that it was created by. When the server is gone, or nobody renewed the lease, PID 1 ends every
 * process and starts itself again, with nothing but its files, its user and the layers that confine it already. Another server
 * configures it like a new one.
 *
 * SECURITY: what was sent on the old connection may end in the middle of a frame, so the new PID 1 has a new one. Its other end
 * goes to the container beside us over the old one, which no command ever had.
 */

enum { CHANNEL_FD = 3, WAIT_US = 1000 };

/* Until nothing is left: a process that forks meanwhile is found by the next call. */
static void end_every_process(void) {
  while (!kill(-1, SIGKILL)) {
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    usleep(WAIT_US);
  }
}

void pod_start_again(void) {
  char used[32];
  int sockets[2];
  if (getpid() != 1) return;
  end_every_process();
  snprintf(used, sizeof used, "%llu", (unsigned long long)disk_usage());
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) return;
  fcntl(control_fd, F_SETFL, fcntl(control_fd, F_GETFL) & ~O_NONBLOCK);
  if (!send_message(control_fd, CHANNEL_REPLACED, "", 0, sockets[1])) return;
  if (sockets[0] == CHANNEL_FD) fcntl(CHANNEL_FD, F_SETFD, 0);
  else if (dup2(sockets[0], CHANNEL_FD) < 0) return;
  if (syscall(SYS_close_range, CHANNEL_FD + 1, ~0U, 0)) return;
  restore_nofile_limit();
  execl("/proc/self/exe", "ringfence-agent", "pod-again", used, NULL);
}

_Noreturn void pod_again_main(const char *disk_used) {
  control_fd = fcntl(CHANNEL_FD, F_DUPFD_CLOEXEC, 100);
  if (getpid() != 1 || control_fd < 0) _exit(EXIT_SETUP_FAILED);
  close(CHANNEL_FD);
  /* What the files take already counts for the limit. */
  disk_add_bytes(strtoull(disk_used, NULL, 10));
  serve_pod();
}
