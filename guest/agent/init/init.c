#include "init/init.h"
#include "common/channel.h"
#include "common/event_loop.h"
#include "common/message.h"
#include "init/config.h"
#include "init/confine.h"
#include "isolate/isolate.h"
#include "limits/limits.h"
#include "session/session.h"
#include "session/tcp/streams.h"
#include "session/users/users.h"
#include "supervise/protected_paths.h"
#include "supervise/resolve.h"
#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

void cover_kernel_files(void) {
  for (size_t i = 0; i < options.hidden.count; i++) hide_path(options.hidden.items[i]);
  for (size_t i = 0; i < options.readonly.count; i++) mount_readonly(options.readonly.items[i]);
}

static void finish_mounts(void) {
  for (size_t i = 0; i + 2 < options.overlays.count; i += 3)
    mount_overlay(options.overlays.items[i], options.overlays.items[i + 1], options.overlays.items[i + 2]);
  for (size_t i = 0; i + 2 < options.nested.count; i += 3)
    move_mount_to(options.nested.items[i], options.nested.items[i + 1], options.nested.items[i + 2]);
  for (size_t i = 0; i + 2 < options.masks.count; i += 3)
    mask_path(options.masks.items[i], options.masks.items[i + 1], options.masks.items[i + 2]);
  cover_kernel_files();
  if (has_root_user) give_terminals_to_tty();
}

/* SECURITY: rules apply to the paths that the kernel reports, so a supervised mount must be at the expected path. */
static void check_supervised_mounts(void) {
  char path[PATH_MAX];
  for (size_t i = 0; i < protection.mounts.count; i++) {
    const char *root = protection.mounts.items[i][0] ? protection.mounts.items[i] : "/";
    int fd = open(root, O_PATH | O_CLOEXEC);
    if (fd < 0 || !fd_path(fd, path, sizeof path) || strcmp(path, root))
      die("%s is at another path in the sandbox", root);
    close(fd);
  }
}

/* SECURITY: the command must not start before the host has allowed it and recorded that. */
static void wait_for_go(void) {
  struct frame_header header;
  free(read_setup_frame(&header, channel_read_blocking));
  if (header.type != FRAME_GO) _exit(EXIT_SETUP_FAILED);
}

/*
 * The single command of a sandbox that is not persistent. It has our standard streams, and its exit ends the sandbox.
 */
static pid_t only_command;
static struct watch listener, messages;

static void listener_ready(struct watch *watch, uint32_t events) {
  if (events & READABLE) supervision_handle(watch->fd);
  else watch_close(watch); /* no supervised process is left */
}

static void message_ready(struct watch *watch, uint32_t events) {
  (void)events;
  char kind, text[1024];
  int fd, length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length < 0) return watch_close(watch);
  if (kind == MESSAGE_LISTENER && fd >= 0) watch_start(&listener, fd, READABLE, listener_ready, NULL);
  if (kind == MESSAGE_FAILED) die("%s", text);
}

static void start_only_command(bool supervised) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) die("socketpair: %s", strerror(errno));
  only_command = fork();
  if (only_command < 0) die("cannot start a process: %s", strerror(errno));
  if (only_command == 0) {
    control_fd = -1;
    exec_command(&options.command, sockets[1], supervised, false);
  }
  close(sockets[1]);
  watch_start(&messages, sockets[0], READABLE, message_ready, NULL);
}

static _Noreturn void report_exit_and_quit(int status) {
  bool signaled = WIFSIGNALED(status);
  unsigned char payload[2] = {signaled, (unsigned char)(signaled ? WTERMSIG(status) : WEXITSTATUS(status))};
  /* A message that says why the command could not start may still be in the queue. */
  struct pollfd waiting = {messages.fd, POLLIN, 0};
  while (messages.fd >= 0 && poll(&waiting, 1, 0) == 1) {
    message_ready(&messages, READABLE);
    waiting.fd = messages.fd;
  }
  if (control_fd >= 0) fcntl(control_fd, F_SETFL, fcntl(control_fd, F_GETFL) & ~O_NONBLOCK);
  send_frame(FRAME_EXIT, 0, payload, sizeof payload);
  /* When PID 1 exits the kernel kills every process of the sandbox. */
  _exit(signaled ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static void reap(struct watch *watch, uint32_t events) {
  (void)events;
  struct signalfd_siginfo info;
  int status, last = 0;
  bool ended = false;
  while (read(watch->fd, &info, sizeof info) > 0) continue;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    if (pid == only_command) ended = true, last = status;
  if (ended) report_exit_and_quit(last);
}

static void handle_frame(enum frame_type type, uint32_t id, char *payload, size_t length) {
  if (stream_handle_frame(type, id, payload, length)) return;
  if (type == FRAME_SIGNAL && length == 4 && (unsigned char)payload[0] < 65)
    kill(-only_command, (unsigned char)payload[0]);
}

static void check_limits(void) {
  const char *limit = exceeded_limit();
  if (!limit) return;
  send_frame(FRAME_LIMIT, 0, limit, strlen(limit));
  kill(-1, SIGKILL);
}

static void open_tunnel(void) {
  if (!options.proxy_port || options.isolate) return; /* an isolated command has a listener of its own */
  if (options.handover_fd >= 0) stream_pass_listener(options.proxy_port, options.handover_fd);
  else stream_listen(options.proxy_port);
}

static _Noreturn void serve_one_command(bool supervised, int signals) {
  static struct watch children;
  if (options.wait_for_start) wait_for_go();
  raise_nofile_limit(&options.command.rlimits);
  open_tunnel();
  start_only_command(supervised);
  watch_start(&children, signals, READABLE, reap, NULL);
  if (control_fd >= 0) channel_open(handle_frame, streams_resume);
  event_loop_run(has_limits() ? limits.interval_ms : -1, check_limits);
}

static int block_sigchld(void) {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, NULL);
  int signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) die("signalfd: %s", strerror(errno));
  if (control_fd >= 0) fcntl(control_fd, F_SETFD, FD_CLOEXEC);
  return signals;
}

#ifdef RINGFENCE_TEST
/* For tests only: a session without confinement, because sanitizers need what it forbids. */
_Noreturn void serve_unconfined(int config) {
  /* The session kills unknown children of PID 1; outside of a PID namespace those would be other processes. */
  if (getpid() != 1) die("not PID 1");
  parse_config_file(config);
  umask(0);
  resolve_setup();
  int signals = block_sigchld();
  bool supervised = protection.mounts.count > 0;
  report_ready(0, supervised);
  open_tunnel();
  serve_session(&(struct session){&options.command, supervised, signals, options.prefork});
}
#endif

/* The last steps of confinement, then the session or the single command. */
static _Noreturn void confine_and_serve(int filter) {
  int landlock = landlock_restrict(&options.writable, !options.whole_file_system, has_root_user,
                                   isolator_socket >= 0 ? LANDLOCK_UNSCOPED : LANDLOCK_SCOPED);
  if ((count_shared_memory || limits.socket_bytes) && !options.shared_network) socket_usage_setup();
  signal(SIGIO, SIG_IGN); /* from a broken file lease (limits/disk_usage.c) */
  seccomp_load(filter);
  int signals = block_sigchld();
  bool supervised = protection.mounts.count > 0;
  report_ready(landlock, supervised);
  supervised |= network_guarantee != NULL || tracing || count_shared_memory || supervises_sockets();
  if (options.persistent) {
    open_tunnel();
    serve_session(&(struct session){&options.command, supervised, signals, options.prefork});
  }
  serve_one_command(supervised, signals);
}

_Noreturn void init_main(int config, int filter) {
  parse_config_file(config);
  umask(0);
  resolve_setup();
  limit_user_namespaces(options.uid);
  finish_mounts();
  check_supervised_mounts();
  if (options.handover_fd >= 0) stream_raise_loopback_gso();
  /* Bubblewrap makes the mounts as user 0 of its namespace; a nested one gives the user its own uid back. */
  if (options.isolate) {
    landlock_set_scope();
    struct isolated_user user = {.is_elsewhere = options.uid != NULL, .on_linux = true};
    if (options.uid) user.uid = (unsigned)atoi(options.uid), user.gid = (unsigned)atoi(options.gid);
    isolator_start(filter, user);
  }
  if (options.uid) map_user(options.uid, options.gid, 0);
  if (options.isolate) isolator_enter_users();
  if (options.range_lock >= 0) fcntl(options.range_lock, F_SETFD, FD_CLOEXEC);
  if (has_root_user) keep_root_capabilities();
  else drop_privileges(true);
  confine_and_serve(filter);
}

_Noreturn void serve_in_container(int filter) {
  check_supervised_mounts();
  confine_and_serve(filter);
}
