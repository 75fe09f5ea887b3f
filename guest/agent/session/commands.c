#include "session/commands.h"
#include "common/channel.h"
#include "common/message.h"
#include "limits/limits.h"
#include "session/process_tree.h"
#include "session/tcp/streams.h"
#include "session/users/sudo.h"
#include "session/users/users.h"
#include "supervise/supervise.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>

/*
 * The commands that run. Each has a subreaper: a copy of the agent that adopts what the command leaves behind, so that
 * all of it can be found and killed however often it forked.
 *
 *   PID 1 ─ subreaper ─ command ─ …
 */

enum { MAX_COMMANDS = 1024 };

static struct command *commands;
static int command_count;
static bool frozen; /* every process is stopped, also the preforked subreaper; a new command forks its own */

size_t agent_processes(void) { return (size_t)command_count + (prefork_pid() > 0) + isolation_processes(); }
void set_agent_processes(size_t count) { command_count = (int)count; }

struct command *command_find(uint32_t id) {
  for (struct command *command = commands; command; command = command->next)
    if (command->id == id && !command->exit_reported) return command;
  return NULL;
}

bool commands_is_subreaper(pid_t pid) {
  for (struct command *command = commands; command; command = command->next)
    if (command->subreaper == pid) return true;
  return pid == prefork_pid() || isolation_is_known(pid);
}

struct command *command_of_subreaper(pid_t pid) {
  struct command *command = commands;
  while (command && command->subreaper != pid) command = command->next;
  return command;
}

bool command_ask_for_socket(const struct command *command, uint32_t stream, bool ipv6) {
  struct socket_request request = {stream, ipv6};
  return command->isolated && command->messages.fd >= 0 &&
         send_message_now(command->messages.fd, MESSAGE_SOCKET, &request, sizeof request);
}

void command_pass_verdict(const struct command *command, const char *payload, size_t length) {
  if (!command || !command->isolated) return sudo_handle_verdict(payload, length);
  /* Without its verdict, what `sudo` asked for does not start. */
  if (command->messages.fd >= 0) send_message_now(command->messages.fd, MESSAGE_VERDICT, payload, length);
}

static void free_command(struct command *command) {
  streams_forget_command(command->id);
  sudo_forget(command);
  isolation_forget(command);
  disk_add_bytes(command->usage.disk);
  if (command->requests >= 0) close(command->requests);
  for (struct command **at = &commands; *at; at = &(*at)->next)
    if (*at == command) {
      *at = command->next;
      break;
    }
  watch_close(&command->messages);
  watch_close(&command->listener);
  watch_close(&command->proxy);
  watch_close(&command->deadline);
  watch_close(&command->in);
  watch_close(&command->out[0]);
  watch_close(&command->out[1]);
  free(command->input);
  free(command);
  command_count--;
}

void command_free_if_done(struct command *command) {
  if (command->exit_reported && !command->subreaper && command->out[0].fd < 0 && command->out[1].fd < 0)
    free_command(command);
}

static void listener_ready(struct watch *watch, uint32_t events) {
  struct command *command = watch->owner;
  if (!(events & READABLE)) return watch_close(watch); /* no supervised process is left */
  set_violation_owner(command->id, false);
  supervision_handle(watch->fd);
}

/* Where cgroups enforce the limits, only their events tell why a process died. Reported together with the exit. */
static void report_limit_events(struct command *command, int status) {
  bool killed = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 128 + SIGKILL;
  uint64_t oom_kills = new_oom_kills(), refused = new_refused_forks();
  set_violation_owner(command->id, false);
  if (oom_kills && killed) send_frame(FRAME_LIMIT, command->id, LIMIT_NAME_MEMORY, strlen(LIMIT_NAME_MEMORY));
  else if (oom_kills)
    report_violation("limit.memory", "the kernel killed %llu processes", (unsigned long long)oom_kills);
  if (refused) report_violation("limit.pids", "%llu forks were refused", (unsigned long long)refused);
}

static void record_exit(struct command *command, int status) {
  if (command->exited) return;
  if (memory_events >= 0 && !command->exit_reported) report_limit_events(command, status);
  /* A command may fill the disk and end between two measurements. */
  if (has_root_user && !command->exit_reported && own_disk_became_full()) {
    set_violation_owner(command->id, false);
    report_violation("limit.disk", "the sandbox's disk is full");
  }
  command->exited = true;
  command->status = status;
  stdio_count_unread(command);
  stdio_finish(command);
}

/* The host knows processes by PID 1's numbers: token, pid, words. */
static void relay_sudo(const struct command *command, char *payload, size_t length) {
  pid_t inner, pid;
  memcpy(&inner, payload + 4, sizeof inner);
  pid = isolated_process(command->subreaper, inner);
  memcpy(payload + 4, &pid, sizeof pid);
  send_frame(FRAME_SUDO, command->id, payload, length);
}

/* From the namespace init of an isolated command. SECURITY: it may report, and neither start nor end anything. */
static void isolated_message(struct command *command, char kind, char *text, size_t length, int fd) {
  if (kind == MESSAGE_PROXY && fd >= 0 && command->proxy.fd < 0)
    return stream_listen_for(&command->proxy, fd, command->id);
  struct socket_request request;
  if (kind == MESSAGE_SOCKET && length == sizeof request) {
    memcpy(&request, text, sizeof request);
    return stream_take_socket(request.stream, command, fd);
  }
  int64_t base;
  if (kind == MESSAGE_FILE && length == sizeof base) {
    memcpy(&base, text, sizeof base);
    return disk_track_passed(fd, base);
  }
  if (fd >= 0) close(fd);
  if (kind == MESSAGE_USAGE && length == sizeof command->usage) memcpy(&command->usage, text, length);
  if (kind == MESSAGE_FRAME && length >= 9 && text[0] == FRAME_SUDO) return relay_sudo(command, text + 1, length - 1);
  bool relayed = kind == MESSAGE_FRAME && length > 0 && (text[0] == FRAME_VIOLATION || text[0] == FRAME_USE);
  if (relayed) send_frame((enum frame_type)text[0], command->id, text + 1, length - 1);
}

static bool is_isolated_message(char kind) {
  return kind == MESSAGE_PROXY || kind == MESSAGE_USAGE || kind == MESSAGE_FRAME || kind == MESSAGE_SOCKET ||
         kind == MESSAGE_FILE;
}

enum { END_SECONDS = 1 };

static void deadline_over(struct watch *watch, uint32_t events) {
  (void)events;
  const struct command *command = watch->owner;
  watch_close(watch);
  if (command->subreaper) kill(command->subreaper, SIGKILL);
}

static bool watch_deadline(struct command *command) {
  struct itimerspec left = {.it_value = {.tv_sec = END_SECONDS}};
  int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (fd < 0) return false;
  watch_start(&command->deadline, fd, READABLE, deadline_over, command);
  return !timerfd_settime(fd, 0, &left, NULL);
}

/*
 * SECURITY: a namespace init that is killed can no longer say what its command has written since it was last measured, so it is
 * asked to end, and killed only if it does not. While all processes are stopped, it alone continues.
 */
static void end_isolated(struct command *command) {
  if (command->deadline.fd >= 0) return;
  bool asked = command->messages.fd >= 0 && watch_deadline(command) &&
               send_message_now(command->messages.fd, MESSAGE_END, "", 0);
  kill(command->subreaper, asked ? SIGCONT : SIGKILL);
}

static void kill_command(struct command *command) {
  if (!command->isolated) return kill_tree(command->subreaper);
  /* PLATFORM: in gVisor the first process of a PID namespace never ends when it is killed; without its command it exits. */
  if (command->subreaper && isolated_user.on_linux) end_isolated(command);
  else if (command->subreaper && command->child > 1) kill(command->child, SIGKILL);
}

static void message_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct command *command = watch->owner;
  char kind, text[MAX_TEXT + 2];
  int fd, length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length < 0) return watch_close(watch);
  if (command->isolated && is_isolated_message(kind)) return isolated_message(command, kind, text, (size_t)length, fd);
  if (kind == MESSAGE_LISTENER && fd >= 0) watch_start(&command->listener, fd, READABLE, listener_ready, command);
  else if (fd >= 0) close(fd);
  if (kind == MESSAGE_PID) {
    memcpy(&command->child, text, sizeof command->child);
    if (command->isolated) command->child = isolated_process(command->subreaper, command->child);
    send_number_frame(FRAME_STARTED, command->id, (uint32_t)command->child);
    if (command->kill_requested) kill_command(command);
  }
  if (kind == MESSAGE_FAILED && !command->exit_reported) {
    command->exit_reported = true;
    send_frame(FRAME_REFUSED, command->id, text, (size_t)length);
  }
  if (kind == MESSAGE_STATUS) {
    int status;
    memcpy(&status, text, sizeof status);
    record_exit(command, status);
  }
}

static void close_if_open(int fd) {
  if (fd >= 0) close(fd);
}

static void close_child_ends(const struct stdio_pipes *pipes, bool terminal) {
  close_if_open(pipes->in[0]);
  close_if_open(pipes->messages[1]);
  close_if_open(pipes->requests[1]);
  if (terminal) return; /* one descriptor for all three */
  close_if_open(pipes->out[1]);
  close_if_open(pipes->errors[1]);
}

static void close_own_ends(const struct stdio_pipes *pipes) {
  close_if_open(pipes->in[1]);
  close_if_open(pipes->out[0]);
  close_if_open(pipes->errors[0]);
  close_if_open(pipes->messages[0]);
  close_if_open(pipes->requests[0]);
}

static void pass_start(const struct command *command) {
  if (command->may_start && command->messages.fd >= 0) send_message(command->messages.fd, MESSAGE_START, "", 0, -1);
}

void command_watch_messages(struct command *command, int socket) {
  watch_start(&command->messages, socket, READABLE, message_ready, command);
  pass_start(command);
}

static void watch_command(struct command *command, const struct stdio_pipes *pipes) {
  command->listener.fd = command->proxy.fd = command->deadline.fd = command->messages.fd = -1;
  if (pipes->messages[0] >= 0) command_watch_messages(command, pipes->messages[0]);
  stdio_watch(command, pipes);
}

/* File operations are ours, and have the sandbox's own view of its files. */
static bool is_isolated(const struct command_spec *spec) { return isolator_pid && !spec->builtin; }

/* Returns its pid, -1, or 0 when a namespace init takes its place. */
static pid_t start_subreaper(struct command_spec *spec, struct stdio_pipes *pipes, const char *request, size_t length) {
  if (!open_stdio(spec, pipes)) return -1;
  if (is_isolated(spec)) return 0;
  pid_t preforked = frozen ? 0 : prefork_assign(pipes, request, length);
  if (preforked) return preforked;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pipes->messages)) return -1;
  if (has_root_user && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pipes->requests)) return -1;
  pid_t pid = fork();
  if (pid == 0) run_as_subreaper(spec, pipes, false);
  return pid;
}

const char *command_start(uint32_t id, struct command_spec *spec, const char *request, size_t length) {
  struct stdio_pipes pipes = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
  struct command *command = calloc(1, sizeof *command);
  if (!command || command_count >= MAX_COMMANDS) return free(command), "too many commands at once";
  pid_t subreaper = start_subreaper(spec, &pipes, request, length);
  int error = errno;
  *command = (struct command){.id = id,
                              .subreaper = subreaper,
                              .isolated = is_isolated(spec),
                              .send_window = WINDOW,
                              .terminal = spec->columns > 0,
                              .requests = pipes.requests[0],
                              .next = commands};
  if (subreaper >= 0) commands = command, command_count++, watch_command(command, &pipes);
  const char *problem = subreaper < 0 ? strerror(error) : NULL;
  if (command->isolated && !problem) problem = isolation_start(command, &pipes, request, length);
  close_child_ends(&pipes, spec->columns > 0);
  if (!problem) return NULL;
  if (subreaper >= 0) free_command(command);
  else close_own_ends(&pipes), free(command);
  return problem;
}

static void send_signal(struct command *command, uint32_t signal) {
  if (signal >= 65 || command->child <= 1) return;
  /* A command with a terminal creates its process group itself, shortly after the fork. */
  if (kill(-command->child, (int)signal) && errno == ESRCH) kill(command->child, (int)signal);
}

void command_handle_frame(struct command *command, enum frame_type type, char *payload, size_t length) {
  switch (type) {
    case FRAME_INPUT: return stdio_queue_input(command, payload, length);
    case FRAME_WINDOW: return stdio_add_window(command, payload_number(payload, length));
    case FRAME_SIGNAL: return send_signal(command, payload_number(payload, length));
    case FRAME_KILL: command->kill_requested = true; return kill_command(command);
    case FRAME_RESIZE: return stdio_resize(command, (unsigned char *)payload, length);
    case FRAME_GO: command->may_start = true; return pass_start(command);
    default: return;
  }
}

void commands_request_kill(void) {
  for (struct command *command = commands; command; command = command->next) command->kill_requested = true;
}

void commands_freeze(bool still) {
  frozen = still;
  kill(-1, still ? SIGSTOP : SIGCONT);
}

void commands_resume_output(void) {
  for (struct command *command = commands, *next; command; command = next) {
    next = command->next;
    if (command->exit_reported || command->send_window <= 0) continue;
    stdio_resume(command);
  }
}

static void subreaper_exited(struct command *command, int status) {
  /* Reads its last messages first; a killed subreaper has not sent any. */
  while (command->messages.fd >= 0) {
    struct pollfd waiting = {command->messages.fd, POLLIN, 0};
    if (poll(&waiting, 1, 0) != 1) break;
    message_ready(&command->messages, READABLE);
  }
  command->subreaper = 0;
  streams_forget_command(command->id);
  if (!command->exited && !command->exit_reported) record_exit(command, WIFSIGNALED(status) ? status : SIGKILL);
  else command_free_if_done(command);
}

bool commands_subreaper_exited(pid_t pid, int status) {
  struct command *command = command_of_subreaper(pid);
  if (!command) return false;
  subreaper_exited(command, status);
  return true;
}

bool commands_any(void) { return commands; }

struct isolated_usage isolated_usage(void) {
  struct isolated_usage total = {0};
  for (struct command *command = commands; command; command = command->next) {
    total.memory += command->usage.memory;
    total.disk += command->usage.disk;
    total.sockets += command->usage.sockets;
  }
  return total;
}

void commands_report_violation(const char *guarantee, const char *details) {
  for (struct command *command = commands; command; command = command->next) {
    if (command->exit_reported) continue;
    set_violation_owner(command->id, false);
    report_violation(guarantee, "%s", details);
  }
}

void commands_report_limit(const char *limit) {
  for (struct command *command = commands; command; command = command->next)
    if (!command->exit_reported) send_frame(FRAME_LIMIT, command->id, limit, strlen(limit));
}
