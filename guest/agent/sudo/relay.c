#include "session/users/sudo.h"
#include "sudo/sudo.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <termios.h>

/*
 * Passes signals to the command, and, when it has a terminal of its own, what is typed and printed. Ours is raw meanwhile:
 * Ctrl-C is a byte that the command's terminal turns into a signal.
 */

static struct termios saved;
static bool is_raw;

static void restore_terminal(void) {
  if (is_raw) tcsetattr(0, TCSADRAIN, &saved);
  is_raw = false;
}

static void make_raw(void) {
  struct termios raw;
  if (tcgetpgrp(0) != getpgrp() || tcgetattr(0, &saved)) return;
  raw = saved;
  cfmakeraw(&raw);
  is_raw = !tcsetattr(0, TCSADRAIN, &raw);
}

static bool write_all(int fd, const char *data, size_t length) {
  while (length > 0) {
    ssize_t written = write(fd, data, length);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) return false;
    data += written;
    length -= (size_t)written;
  }
  return true;
}

/* Returns false at the end of `from`. */
static bool copy_some(int from, int to) {
  char data[16384];
  ssize_t got = read(from, data, sizeof data);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  return got > 0 && write_all(to, data, (size_t)got);
}

static void copy_size(int master) {
  struct winsize size;
  if (!ioctl(0, TIOCGWINSZ, &size)) ioctl(master, TIOCSWINSZ, &size);
}

static int open_signals(void) {
  static const int PASSED[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM, SIGCONT};
  sigset_t set;
  sigemptyset(&set);
  for (size_t i = 0; i < LENGTH(PASSED); i++) sigaddset(&set, PASSED[i]);
  sigprocmask(SIG_BLOCK, &set, NULL);
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void pass_signals(int signals, int connection, int master) {
  struct signalfd_siginfo info;
  while (read(signals, &info, sizeof info) == sizeof info) {
    char message[2] = {SUDO_SIGNAL, (char)info.ssi_signo};
    if (info.ssi_signo == SIGWINCH && master >= 0) copy_size(master);
    else send(connection, message, sizeof message, MSG_NOSIGNAL);
  }
}

/* Returns whether the status has come; -1 in it means that there will be none. */
static bool read_status(int connection, int *status) {
  char message[1 + sizeof *status];
  ssize_t got = recv(connection, message, sizeof message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  *status = -1;
  if (got == sizeof message && message[0] == SUDO_STATUS) memcpy(status, message + 1, sizeof *status);
  return true;
}

/* What the command printed before it ended. */
static void drain(int master) {
  struct pollfd waiting = {master, POLLIN, 0};
  while (master >= 0 && poll(&waiting, 1, 20) == 1 && (waiting.revents & POLLIN) && copy_some(master, 1)) continue;
}

int relay(int connection, int master) {
  int status = -1, signals = open_signals();
  if (master >= 0) make_raw();
  struct pollfd watched[4] = {{connection, POLLIN, 0},
                              {signals, POLLIN, 0},
                              {master, POLLIN, 0},
                              {is_raw ? 0 : -1, POLLIN, 0}};
  for (;;) {
    if (poll(watched, 4, -1) < 0 && errno != EINTR) break;
    if (watched[1].revents) pass_signals(signals, connection, master);
    if (watched[3].revents && !copy_some(0, master)) watched[3].fd = -1;
    if (watched[2].revents && !copy_some(master, 1)) watched[2].fd = -1;
    if (watched[0].revents && read_status(connection, &status)) break;
  }
  drain(watched[2].fd);
  restore_terminal();
  return status;
}
