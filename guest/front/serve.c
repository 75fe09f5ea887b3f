#include "front.h"

#include <arpa/inet.h>
#include <limits.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

/* As in src/cli/hook.ts and src/cli/terminal/output.ts. */
enum { HOOK_SECONDS = 20, AFTER_CLOSED_MS = 2000, EXIT_SIGPIPE = 141 };
/* Longer than the broker needs to end a command after a first and after a second signal; one that hangs is not waited for. */
enum { AFTER_SIGNAL_MS = 15000, AFTER_SECOND_MS = 5000 };
/* After a signal a reader has this long to take more output, as in src/cli/terminal/output.ts. */
enum { UNREAD_MS = 500 };

static struct {
  int connection;
  enum command command;
  int signals;
  struct child child;
  struct buffer output[2]; /* of a judgement, which is printed as a whole or not at all */
  int64_t deadline;        /* 0: none */
  int closed_exit;         /* the exit code after the reader of stdout has gone */
  bool is_input_done;
  bool is_signaled;  /* a signal that ends has been passed on */
  bool is_unread[3]; /* after such a signal, nobody read this output */
} front;

static void take_signal(void);
static void check_deadline(void);
static int time_left(void);

static void kill_child(int signal) {
  if (front.child.pid > 0) kill(-front.child.pid, signal);
}

_Noreturn static void leave(int code) {
  kill_child(SIGKILL);
  _exit(front.closed_exit ? front.closed_exit : code);
}

/* SECURITY: the broker ended without a result. What it began is ended too; a hook that cannot tell blocks. */
_Noreturn static void broker_lost(void) {
  static const char TEXT[] = "ringfence: internal: the broker ended before the result\n"
                             "hint: run the command again; RINGFENCE_BROKER=0 does without the broker\n";
  kill_child(SIGKILL);
  write_all(2, TEXT, sizeof TEXT - 1);
  leave(front.command == COMMAND_HOOK ? EXIT_BLOCKED : EXIT_FAILED);
}

/* SECURITY: a verdict that the agent cannot read must not pass for "no objection". */
_Noreturn static void output_failed(void) {
  static const char TEXT[] = "ringfence: cannot write to standard output\n";
  write_all(2, TEXT, sizeof TEXT - 1);
  leave(front.command == COMMAND_HOOK ? EXIT_BLOCKED : EXIT_OUTPUT_FAILED);
}

static int smaller(int time, int other) { return time < 0 || time > other ? other : time; }

/* Waits until an output takes more, and passes signals on meanwhile. False: after a signal, nobody reads it. */
static bool can_write(int fd) {
  for (;;) {
    int time = front.is_signaled ? smaller(time_left(), front.is_unread[fd] ? 0 : UNREAD_MS) : time_left();
    struct pollfd polled[] = {{.fd = fd, .events = POLLOUT}, {.fd = front.signals, .events = POLLIN}};
    int ready = poll(polled, LENGTH(polled), time);
    if (ready < 0 && errno != EINTR) return true; /* the write says what is wrong */
    check_deadline();
    if (ready > 0 && polled[0].revents) return true;
    if (ready > 0 && polled[1].revents) take_signal();
    else if (ready == 0 && front.is_signaled) return front.is_unread[fd] = true, false;
  }
}

/*
 * A signal must be seen although nobody reads our output. What poll calls writable takes PIPE_BUF bytes without waiting;
 * the descriptor belongs to others too, so it cannot be made one that never waits.
 */
static bool write_watching(int fd, const char *bytes, size_t length) {
  for (size_t done = 0; done < length;) {
    if (!can_write(fd)) return true;
    size_t part = length - done < PIPE_BUF ? length - done : PIPE_BUF;
    ssize_t written = write(fd, bytes + done, part);
    if (written >= 0) done += (size_t)written;
    else if (errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

static void print(int fd, const char *bytes, size_t length) {
  if (write_watching(fd, bytes, length) || fd != 1 || front.closed_exit) return;
  if (errno != EPIPE || front.command == COMMAND_HOOK) output_failed();
  front.closed_exit = EXIT_SIGPIPE;
  front.deadline = monotonic_ms() + AFTER_CLOSED_MS;
}

static void take_output(int fd, const char *bytes, size_t length) {
  if (front.command == COMMAND_RUN) print(fd, bytes, length);
  else buffer_add(&front.output[fd - 1], bytes, length);
}

_Noreturn static void finish(int code) {
  for (int fd = 1; fd < 3; fd++) print(fd, front.output[fd - 1].bytes, front.output[fd - 1].length);
  leave(code);
}

static void launch(char *payload, size_t length) {
  int error = front.child.pid ? EBUSY : launch_child(&front.child, payload, length);
  bool is_sent = error ? send_front_number(front.connection, BROKER_FAILED, (uint32_t)error)
                       : send_front_number(front.connection, BROKER_STARTED, (uint32_t)front.child.pid);
  if (!is_sent) broker_lost();
}

static void take_frame(void) {
  char type, *payload;
  size_t length;
  uint32_t number = 0;
  if (!receive_front_frame(front.connection, &type, &payload, &length)) broker_lost();
  if (length == sizeof number) memcpy(&number, payload, sizeof number);
  switch (type) {
    case BROKER_STDOUT: take_output(1, payload, length); break;
    case BROKER_STDERR: take_output(2, payload, length); break;
    case BROKER_LAUNCH: launch(payload, length); break;
    case BROKER_KILL: kill_child((int)ntohl(number)); break;
    case BROKER_RESULT: finish((int)ntohl(number) & 255);
    default: broker_lost();
  }
  free(payload);
}

static void reap_child(void) {
  int status;
  if (front.child.pid <= 0 || waitpid(front.child.pid, &status, WNOHANG) != front.child.pid) return;
  front.child.pid = -1;
  if (!send_front_number(front.connection, BROKER_EXITED, (uint32_t)status)) broker_lost();
}

/* What the signal was meant to end must end, also when the broker does not answer. */
static void limit_ending(void) {
  int64_t until = monotonic_ms() + (front.is_signaled ? AFTER_SECOND_MS : AFTER_SIGNAL_MS);
  if (!front.deadline || until < front.deadline) front.deadline = until;
  front.is_signaled = true;
}

static void take_signal(void) {
  struct signalfd_siginfo info;
  if (read(front.signals, &info, sizeof info) != sizeof info) return;
  if (info.ssi_signo == SIGCHLD) reap_child();
  else if (!send_front_number(front.connection, BROKER_SIGNAL, info.ssi_signo)) broker_lost();
  if (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM || info.ssi_signo == SIGHUP || info.ssi_signo == SIGQUIT)
    limit_ending();
}

static void take_input(void) {
  static char bytes[65536];
  ssize_t got = read(0, bytes, sizeof bytes);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  front.is_input_done = got <= 0;
  /* A broker that needs no more has sent its result, which is read next; one that is gone is noticed there too. */
  if (!send_front_frame(front.connection, BROKER_INPUT, bytes, got > 0 ? (size_t)got : 0)) front.is_input_done = true;
}

/* A judgement has no process to forward signals to: they end the front as they would end Node. */
static int watch_signals(void) {
  sigset_t set;
  sigemptyset(&set);
  static const int PASSED[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
  for (size_t i = 0; i < LENGTH(PASSED); i++) sigaddset(&set, PASSED[i]);
  sigprocmask(SIG_SETMASK, &set, NULL);
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int time_left(void) {
  if (!front.deadline) return -1;
  int64_t left = front.deadline - monotonic_ms();
  return left > 0 ? (int)left : 0;
}

static void check_deadline(void) {
  if (!front.deadline || monotonic_ms() < front.deadline) return;
  if (front.closed_exit) leave(front.closed_exit);
  broker_lost();
}

static void block_late_hook(int signal) {
  static const char TEXT[] = "ringfence: the policy check took too long\n";
  struct pollfd error = {.fd = 2, .events = POLLOUT};
  (void)signal;
  if (poll(&error, 1, 0) == 1 && write(2, TEXT, sizeof TEXT - 1) < 0) _exit(EXIT_BLOCKED);
  _exit(EXIT_BLOCKED);
}

/*
 * SECURITY: agents let a tool call pass when its hook takes too long. The kernel keeps this time, because the front may
 * be waiting for a broker that takes no input or for an agent that reads no output.
 */
static void limit_hook(void) {
  signal(SIGALRM, block_late_hook);
  alarm(HOOK_SECONDS);
}

_Noreturn void serve_request(int connection, const struct invocation *invocation) {
  front.connection = connection;
  front.command = invocation->command;
  default_signals();
  signal(SIGPIPE, SIG_IGN); /* as Node does with these two */
  signal(SIGXFSZ, SIG_IGN);
  bool is_hook = invocation->command == COMMAND_HOOK;
  if (is_hook) limit_hook();
  front.signals = invocation->command == COMMAND_RUN ? watch_signals() : -1;
  for (;;) {
    bool wants_input = is_hook && !front.is_input_done;
    struct pollfd polled[] = {{.fd = connection, .events = POLLIN},
                              {.fd = front.signals, .events = POLLIN},
                              {.fd = wants_input ? 0 : -1, .events = POLLIN}};
    if (poll(polled, LENGTH(polled), time_left()) < 0 && errno != EINTR) broker_lost();
    check_deadline();
    if (polled[1].revents) take_signal();
    if (polled[2].revents) take_input();
    if (polled[0].revents) take_frame();
  }
}
