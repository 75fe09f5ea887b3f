#include "common/channel.h"
#include "common/message.h"
#include "limits/limits.h"
#include "session/session.h"
#include "session/subreaper.h"
#include "session/users/sudo.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* The process between a subreaper and what `sudo` starts: passes signals on, reports the exit, and ends it with `sudo`. */

enum { KILL_AFTER_MS = 2000 };

static _Noreturn void run_request(char *request, size_t length, const int *streams, int waiting) {
  struct command_spec spec;
  pid_t pid = getpid();
  child_socket = waiting;
  const char *problem = parse_command(&spec, request, length);
  if (problem) die("%s", problem);
  if (commands_cgroup >= 0 && write(commands_cgroup, "0", 1) != 1) die("cgroup: %s", strerror(errno));
  for (int i = 0; i < 3; i++)
    if (dup2(streams[i], i) < 0) die("cannot pass the standard streams: %s", strerror(errno));
  spec.wait_for_start = true;
  spec.is_sudo = true;
  if (!send_message(waiting, MESSAGE_PID, &pid, sizeof pid, -1)) _exit(EXIT_SETUP_FAILED);
  exec_command(&spec, waiting, session->supervised, spec.columns > 0);
}

static void signal_group(pid_t child, int signal) {
  if (kill(-child, signal) && errno == ESRCH) kill(child, signal);
}

/* Returns false when `sudo` is gone. */
static bool pass_signal(int connection, pid_t child) {
  struct {
    char kind;
    char signal;
  } message;
  ssize_t got = recv(connection, &message, sizeof message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) return false;
  if (got == sizeof message && message.kind == SUDO_SIGNAL && message.signal > 0 && message.signal < 65)
    signal_group(child, message.signal);
  return true;
}

static _Noreturn void report_and_exit(int connection, int status) {
  char message[1 + sizeof status] = {SUDO_STATUS};
  memcpy(message + 1, &status, sizeof status);
  send(connection, message, sizeof message, MSG_NOSIGNAL);
  _exit(0);
}

static void end_child(pid_t child) {
  int status;
  signal_group(child, SIGHUP);
  signal_group(child, SIGTERM);
  signal_group(child, SIGCONT);
  for (int waited = 0; waited < KILL_AFTER_MS; waited += 50) {
    if (waitpid(child, &status, WNOHANG)) return;
    usleep(50 * 1000);
  }
  signal_group(child, SIGKILL);
}

_Noreturn void sudo_monitor(char *request, size_t length, const int *streams, int connection, int waiting) {
  sigset_t children;
  int status;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  sigprocmask(SIG_BLOCK, &children, NULL);
  int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  pid_t child = signals < 0 ? -1 : fork();
  if (child < 0) _exit(EXIT_SETUP_FAILED);
  if (child == 0) run_request(request, length, streams, waiting);
  close(waiting);
  for (int i = 0; i < 3; i++) close(streams[i]);
  struct pollfd watched[2] = {{connection, POLLIN, 0}, {signals, POLLIN, 0}};
  for (;;) {
    struct signalfd_siginfo info;
    if (poll(watched, 2, -1) < 0 && errno != EINTR) _exit(EXIT_SETUP_FAILED);
    while (read(signals, &info, sizeof info) > 0) continue;
    if (waitpid(child, &status, WNOHANG) == child) report_and_exit(connection, status);
    if (watched[0].revents && !pass_signal(connection, child)) {
      end_child(child);
      _exit(0);
    }
  }
}
