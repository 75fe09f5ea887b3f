#include "common/channel.h"
#include "common/event_loop.h"
#include "common/message.h"
#include "init/config.h"
#include "init/confine.h"
#include "isolate/isolate.h"
#include "limits/limits.h"
#include "session/session.h"
#include "session/tcp/streams.h"
#include "session/users/sudo.h"
#include "session/users/users.h"
#include "supervise/protected_paths.h"
#include "supervise/resolve.h"
#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>

/*
 * PID 1 of one command's namespaces. It is confined like PID 1 of the sandbox, starts the command, supervises its system
 * calls and ends with it, and the kernel then kills everything that the command left behind.
 */

static int to_parent = -1;
static pid_t child;
static struct watch from_child, from_parent, listener, children;

static void relay_frame(enum frame_type type, const void *payload, size_t length) {
  char text[MAX_TEXT + 1];
  if (length > sizeof text - 1) length = sizeof text - 1;
  text[0] = (char)type;
  memcpy(text + 1, payload, length);
  send_message(to_parent, MESSAGE_FRAME, text, length + 1, -1);
}

static bool pass_file(int fd, int64_t base) { return send_message(to_parent, MESSAGE_FILE, &base, sizeof base, fd); }

/* SECURITY: the same steps as in PID 1 of the sandbox; a failure ends the process before any command runs in it. */
static void confine(const struct isolated_parts *parts) {
  const struct isolated_user *user = &isolated_user;
  if (parts->users >= 0 && (setns(parts->users, CLONE_NEWUSER) || setresgid(user->gid, user->gid, user->gid) ||
                            setresuid(user->uid, user->uid, user->uid)))
    die("user namespace: %s", strerror(errno));
  if (has_root_user) keep_root_capabilities();
  else drop_privileges(user->on_linux);
  landlock_restrict(&options.writable, !options.whole_file_system, has_root_user, LANDLOCK_SCOPED);
  if (count_shared_memory || limits.socket_bytes) socket_usage_setup();
  signal(SIGIO, SIG_IGN);
  seccomp_load(parts->filter);
}

static void report_usage(void) {
  static struct isolated_usage last;
  struct isolated_usage usage = {shared_memory_usage(), disk_usage(), limits.socket_bytes ? socket_usage() : 0};
  if (!memcmp(&usage, &last, sizeof usage)) return;
  last = usage;
  send_message(to_parent, MESSAGE_USAGE, &usage, sizeof usage, -1);
}

/* Names in the private directories go with them. */
static void forget_private_entries(void) {
  struct statfs fs;
  if (statfs("/tmp", &fs)) return;
  for (uint64_t left = fs.f_files - fs.f_ffree; left > 1; left--) disk_remove_entry();
}

enum { END_TRIES = 500, END_PAUSE_US = 1000 };

/* SECURITY: what a process writes after the last measurement would be counted by nobody. */
static void end_other_processes(void) {
  if (!isolated_user.on_linux) return;
  for (int tries = 0; tries < END_TRIES && !kill(-1, SIGKILL); tries++) {
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    usleep(END_PAUSE_US);
  }
}

static _Noreturn void end_with(int status) {
  end_other_processes();
  forget_private_entries();
  if (has_limits()) report_usage();
  send_message(to_parent, MESSAGE_STATUS, &status, sizeof status, -1);
  _exit(0);
}

static void child_message(struct watch *watch, uint32_t events) {
  (void)events;
  char kind, text[1024];
  int fd, length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length < 0) return watch_close(watch);
  if (kind == MESSAGE_FAILED) send_message(to_parent, MESSAGE_FAILED, text, (size_t)length, -1);
}

/* The listener comes as the first message, or the reason why there is none. */
static void listener_ready(struct watch *watch, uint32_t events) {
  if (events & READABLE) supervision_handle(watch->fd);
  else watch_close(watch);
}

static void child_ready(struct watch *watch, uint32_t events) {
  char kind, text[1024];
  int fd, length;
  if (listener.fd >= 0) return child_message(watch, events);
  length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length < 0) return watch_close(watch);
  if (kind == MESSAGE_FAILED) send_message(to_parent, MESSAGE_FAILED, text, (size_t)length, -1);
  if (kind == MESSAGE_LISTENER && fd >= 0) watch_start(&listener, fd, READABLE, listener_ready, NULL);
}

static void pass_socket(const char *text) {
  struct socket_request request;
  memcpy(&request, text, sizeof request);
  int fd = open_stream_socket(request.ipv6);
  send_message(to_parent, MESSAGE_SOCKET, &request, sizeof request, fd);
  if (fd >= 0) close(fd);
}

static void parent_ready(struct watch *watch, uint32_t events) {
  (void)events;
  char kind, text[64];
  int fd, length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length < 0) _exit(0);
  if (kind == MESSAGE_START) send_message(from_child.fd, MESSAGE_START, "", 0, -1);
  if (kind == MESSAGE_END) end_with(SIGKILL);
  if (kind == MESSAGE_VERDICT) sudo_handle_verdict(text, (size_t)length);
  if (kind == MESSAGE_SOCKET && length == sizeof(struct socket_request)) pass_socket(text);
}

static void reap(struct watch *watch, uint32_t events) {
  (void)events;
  struct signalfd_siginfo info;
  int status;
  while (read(watch->fd, &info, sizeof info) > 0) continue;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    worker_exited(pid);
    if (pid != child) continue;
    /* What the child sent before it ended. */
    while (from_child.fd >= 0) {
      char kind, text[1024];
      int fd, length = receive_message(from_child.fd, &kind, text, sizeof text, &fd);
      if (length < 0) watch_close(&from_child);
      else if (kind == MESSAGE_FAILED) send_message(to_parent, MESSAGE_FAILED, text, (size_t)length, -1);
    }
    end_with(status);
  }
}

static char *receive_assignment(struct isolated_assignment *assignment) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(ASSIGNED_FDS * sizeof(int))];
  } control;
  struct iovec data = {assignment, sizeof *assignment};
  struct msghdr message = {.msg_iov = &data,
                           .msg_iovlen = 1,
                           .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  int fds[ASSIGNED_FDS];
  ssize_t got;
  do got = recvmsg(to_parent, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  struct cmsghdr *header = got == sizeof *assignment ? CMSG_FIRSTHDR(&message) : NULL;
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof fds)) _exit(EXIT_SETUP_FAILED);
  memcpy(fds, CMSG_DATA(header), sizeof fds);
  char *request = malloc(assignment->request_length + 1);
  if (!request || pread(fds[3], request, assignment->request_length, 0) != (ssize_t)assignment->request_length)
    die("the request cannot be read");
  for (int i = 0; i < 3; i++)
    if (dup2(fds[i], i) < 0) die("dup2: %s", strerror(errno));
  for (int i = 0; i < ASSIGNED_FDS; i++) close(fds[i]);
  return request;
}

static int block_sigchld(void) {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, NULL);
  int signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) die("signalfd: %s", strerror(errno));
  return signals;
}

static void start_child(struct command_spec *spec) {
  int sockets[2], signals = block_sigchld();
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) die("socketpair: %s", strerror(errno));
  child = fork();
  if (child < 0) die("cannot start a process: %s", strerror(errno));
  if (child == 0) {
    close(to_parent);
    if (commands_cgroup >= 0 && write(commands_cgroup, "0", 1) != 1) die("cgroup: %s", strerror(errno));
    exec_command(spec, sockets[1], session->supervised, spec->columns > 0);
  }
  close(sockets[1]);
  /* Only the command has its standard streams from now on, so their readers see the end. */
  for (int fd = 0; fd < 3; fd++) close(fd);
  if (!spec->columns) setpgid(child, child);
  send_message(to_parent, MESSAGE_PID, &child, sizeof child, -1);
  listener.fd = -1;
  watch_start(&from_child, sockets[0], READABLE, child_ready, NULL);
  watch_start(&children, signals, READABLE, reap, NULL);
  watch_start(&from_parent, to_parent, READABLE, parent_ready, NULL);
}

/* The command's own way to the proxy: connections to this socket carry the command's id to the host. */
static void pass_proxy_listener(const struct command_spec *spec) {
  if (!options.proxy_port || spec->offline) return;
  int fd = listen_on_loopback(options.proxy_port);
  if (!send_message(to_parent, MESSAGE_PROXY, "", 0, fd)) _exit(EXIT_SETUP_FAILED);
  close(fd);
}

static void ignore_private_disk(void) {
  static const char *const PRIVATE[] = {"/tmp", "/dev/shm"};
  struct stat stat;
  for (size_t i = 0; i < LENGTH(PRIVATE); i++)
    if (!fstatat(AT_FDCWD, PRIVATE[i], &stat, 0)) disk_ignore_device(stat.st_dev);
}

_Noreturn void isolated_main(const struct isolated_parts *parts) {
  static struct session own;
  struct isolated_assignment assignment;
  struct command_spec spec;
  to_parent = child_socket = parts->messages;
  /* The command that runs meanwhile goes first. */
  if (isolated_user.yields) setpriority(PRIO_PROCESS, 0, 19);
  prepare_namespaces();
  resolve_setup();
  ignore_private_disk();
  if (isolated_user.yields && setpriority(PRIO_PROCESS, 0, 0)) die("priority: %s", strerror(errno));
  confine(parts);
  if (parts->users >= 0) close(parts->users);
  bool supervised = protection.mounts.count > 0 || network_guarantee != NULL || tracing || count_shared_memory ||
                    supervises_sockets();
  own = (struct session){&options.command, supervised, -1, false};
  session = &own;
  raise_nofile_limit(&session->defaults->rlimits);
  if (has_root_user) sudo_listen_for_one();
  if (!send_message(to_parent, MESSAGE_PREPARED, "", 0, -1)) _exit(EXIT_SETUP_FAILED);
  char *request = receive_assignment(&assignment);
  frame_relay = relay_frame;
  disk_pass_files(pass_file);
  set_agent_processes(assignment.agent_processes);
  const char *problem = parse_command(&spec, request, assignment.request_length);
  if (problem) die("%s", problem);
  pass_proxy_listener(&spec);
  start_child(&spec);
  event_loop_run(has_limits() ? limits.interval_ms : -1, report_usage);
}
