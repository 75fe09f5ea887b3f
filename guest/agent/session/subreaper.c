#include "session/subreaper.h"
#include "common/channel.h"
#include "common/message.h"
#include "limits/limits.h"
#include "session/session.h"
#include "session/users/sudo.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

/* SECURITY: a subreaper must not have the host's channel or descriptors of other commands. */
void close_all_except(int fd) {
  if (fd > 0) syscall(SYS_close_range, 0, fd - 1, 0);
  syscall(SYS_close_range, fd + 1, INT_MAX, 0); /* PLATFORM: gVisor reads the end of a range as a signed number */
}

static void reap(pid_t child, int socket, int flags) {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, flags));) {
    if (pid == child && !send_message(socket, MESSAGE_STATUS, &status, sizeof status, -1)) _exit(EXIT_SETUP_FAILED);
    if (pid < 0 && errno == ECHILD) _exit(0);
  }
}

/* The same, while it also starts what `sudo` asks for. */
static _Noreturn void reap_and_serve(pid_t child, int socket, int requests) {
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  sigprocmask(SIG_BLOCK, &children, NULL);
  int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) _exit(EXIT_SETUP_FAILED);
  struct pollfd watched[2] = {{signals, POLLIN, 0}, {requests, POLLIN, 0}};
  for (;;) {
    struct signalfd_siginfo info;
    reap(child, socket, WNOHANG);
    if (poll(watched, 2, -1) < 0 && errno != EINTR) _exit(EXIT_SETUP_FAILED);
    while (read(signals, &info, sizeof info) > 0) continue;
    if (watched[1].revents & POLLIN) sudo_take_request(requests);
    else if (watched[1].revents) watched[1].fd = -1;
  }
}

static int compare(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

/* What `sudo` starts enters the same cgroup as its command, so its descriptor stays. */
static void close_all_except_those_of_sudo(int socket, int requests) {
  int kept[] = {socket, requests, commands_cgroup}, next = 0;
  qsort(kept, LENGTH(kept), sizeof *kept, compare);
  for (size_t i = 0; i < LENGTH(kept); i++) {
    if (kept[i] > next) syscall(SYS_close_range, next, kept[i] - 1, 0);
    if (kept[i] >= next) next = kept[i] + 1;
  }
  syscall(SYS_close_range, next, INT_MAX, 0);
}

static _Noreturn void reap_until_empty(pid_t child, const struct stdio_pipes *pipes, bool terminal) {
  int socket = pipes->messages[1], requests = pipes->requests[1];
  if (requests >= 0) close_all_except_those_of_sudo(socket, requests);
  else close_all_except(socket);
  /* The host may send a signal to the process group as soon as it knows the pid. */
  if (!terminal) setpgid(child, child);
  send_message(socket, MESSAGE_PID, &child, sizeof child, -1);
  if (requests >= 0) reap_and_serve(child, socket, requests);
  for (;;) reap(child, socket, 0);
}

/* PLATFORM: gVisor can only open it by name. */
static int open_pty_slave(int master) {
  int slave = ioctl(master, 0x5441 /* TIOCGPTPEER */, O_RDWR | O_NOCTTY);
  unsigned number;
  if (slave >= 0 || errno != ENOTTY || ioctl(master, TIOCGPTN, &number)) return slave;
  char path[32];
  snprintf(path, sizeof path, "/dev/pts/%u", number);
  return open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

static bool open_terminal(const struct command_spec *spec, struct stdio_pipes *pipes) {
  struct winsize size = {.ws_col = spec->columns, .ws_row = spec->rows};
  int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || unlockpt(master) || ioctl(master, TIOCSWINSZ, &size)) return false;
  int slave = open_pty_slave(master);
  if (slave < 0) return false;
  pipes->in[0] = pipes->out[1] = pipes->errors[1] = slave;
  pipes->out[0] = master;
  pipes->in[1] = fcntl(master, F_DUPFD_CLOEXEC, 3);
  pipes->errors[0] = -1;
  return pipes->in[1] >= 0;
}

/* A file operation then needs fewer switches between its process and PID 1. Not for commands: a user's pipes share one limit. */
static void widen(int pipe) { fcntl(pipe, F_SETPIPE_SZ, INPUT_WINDOW); }

static bool open_pipes(const struct command_spec *spec, struct stdio_pipes *pipes) {
  if (spec->input) {
    if (pipe2(pipes->in, O_CLOEXEC)) return false;
  } else {
    pipes->in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pipes->in[1] = -1;
  }
  if (pipes->in[0] < 0 || pipe2(pipes->out, O_CLOEXEC) || pipe2(pipes->errors, O_CLOEXEC)) return false;
  if (spec->builtin) widen(spec->input ? pipes->in[0] : pipes->out[0]);
  return true;
}

bool open_stdio(const struct command_spec *spec, struct stdio_pipes *pipes) {
  return spec->columns ? open_terminal(spec, pipes) : open_pipes(spec, pipes);
}

/*
 * A preforked subreaper has nothing to do until the command executes, so the two can share memory until then (vfork).
 * A command that does not exec, waits for the host or is supervised needs memory of its own.
 */
_Noreturn void run_as_subreaper(struct command_spec *spec, struct stdio_pipes *pipes, bool preforked) {
  control_fd = -1;
  child_socket = pipes->messages[1];
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  pid_t child = preforked && !spec->builtin && !spec->wait_for_start && !session->supervised ? vfork() : fork();
  if (child < 0) die("cannot start a process: %s", strerror(errno));
  if (child > 0) reap_until_empty(child, pipes, spec->columns > 0);
  if (commands_cgroup >= 0 && write(commands_cgroup, "0", 1) != 1) die("cgroup: %s", strerror(errno));
  dup2(pipes->in[0], 0);
  dup2(pipes->out[1], 1);
  dup2(pipes->errors[1], 2);
  exec_command(spec, pipes->messages[1], session->supervised, spec->columns > 0);
}
