#include "running.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

/*
 * The commands that run. Each has a keeper: a small copy of us that adopts whatever the command leaves behind, so that all
 * of it can be found and ended, however often it forked.
 *
 *   PID 1 ─ keeper ─ command ─ …
 */

enum { MAX_COMMANDS = 1024 };

static struct command *commands;
static int command_count;
static bool frozen; /* everything stands still, the keeper that waits too; what the host asks for meanwhile gets one of its own */

size_t keepers(void) { return (size_t)command_count + (spare_keeper() > 0); }
void keepers_are(size_t count) { command_count = (int)count; }

struct command *running_find(uint32_t id) {
  for (struct command *command = commands; command; command = command->next)
    if (command->id == id && !command->told) return command;
  return NULL;
}

bool running_is_keeper(pid_t pid) {
  for (struct command *command = commands; command; command = command->next)
    if (command->keeper == pid) return true;
  return pid == spare_keeper();
}

static void forget(struct command *command) {
  for (struct command **at = &commands; *at; at = &(*at)->next)
    if (*at == command) {
      *at = command->next;
      break;
    }
  watch_stop(&command->messages);
  watch_stop(&command->listener);
  watch_stop(&command->in);
  watch_stop(&command->out[0]);
  watch_stop(&command->out[1]);
  free(command->input);
  free(command);
  command_count--;
}

void running_forget_if_over(struct command *command) {
  if (command->told && !command->keeper && command->out[0].fd < 0 && command->out[1].fd < 0) forget(command);
}

static void listener_ready(struct watch *watch, uint32_t events) {
  struct command *command = watch->owner;
  if (!(events & READABLE)) return watch_stop(watch); /* nobody is watched any more */
  violations_of(command->id, false);
  guard_serve(watch->fd);
}

/* Where the kernel holds the limits it alone knows why somebody died; the host hears it with the end. */
static void tell_limits(struct command *command, int status) {
  bool killed = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 128 + SIGKILL;
  uint64_t ended = usage_killed(), refused = usage_refused();
  violations_of(command->id, false);
  if (ended && killed) report(FRAME_LIMIT, command->id, "memory", 6);
  else if (ended) report_violation("limit.memory", "the kernel ended %llu processes", (unsigned long long)ended);
  if (refused) report_violation("limit.pids", "%llu new processes were refused", (unsigned long long)refused);
}

static void take_status(struct command *command, int status) {
  if (command->ended) return;
  if (memory_events >= 0 && !command->told) tell_limits(command, status);
  command->ended = true;
  command->status = status;
  stdio_count_waiting(command);
  stdio_settle(command);
}

static void message_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct command *command = watch->owner;
  char kind, text[1024];
  int fd, length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length < 0) return watch_stop(watch);
  if (kind == 'L' && fd >= 0) watch_start(&command->listener, fd, READABLE, listener_ready, command);
  else if (fd >= 0) close(fd);
  if (kind == 'P') {
    memcpy(&command->child, text, sizeof command->child);
    report_number(FRAME_STARTED, command->id, (uint32_t)command->child);
    if (command->doomed) kill_tree(command->keeper);
  }
  if (kind == 'F' && !command->told) {
    command->told = true;
    report(FRAME_REFUSED, command->id, text, (size_t)length);
  }
  if (kind == 'S') {
    int status;
    memcpy(&status, text, sizeof status);
    take_status(command, status);
  }
}

static void close_end(int fd) {
  if (fd >= 0) close(fd);
}

static void watch_command(struct command *command, const struct ends *ends) {
  watch_start(&command->messages, ends->messages[0], READABLE, message_ready, command);
  command->listener.fd = -1;
  stdio_watch(command, ends);
}

const char *running_start(uint32_t id, struct command_spec *spec, const char *asked, size_t length) {
  struct ends ends = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
  struct command *command = calloc(1, sizeof *command);
  if (!command || command_count >= MAX_COMMANDS) return free(command), "too many commands at once";
  bool opened = open_ends(spec, &ends);
  pid_t keeper = !opened ? -1 : frozen ? 0 : spare_take(&ends, asked, length);
  if (opened && !keeper) {
    opened = !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.messages);
    keeper = opened ? fork() : -1;
    if (keeper == 0) become_keeper(spec, &ends, false);
  }
  close_end(ends.in[0]);
  if (!spec->columns) close_end(ends.out[1]), close_end(ends.errors[1]); /* a terminal has one end for all three */
  close_end(ends.messages[1]);
  if (keeper < 0) {
    close_end(ends.in[1]), close_end(ends.out[0]), close_end(ends.errors[0]), close_end(ends.messages[0]);
    free(command);
    return strerror(errno);
  }
  *command = (struct command){.id = id, .keeper = keeper, .credit = WINDOW, .terminal = spec->columns > 0, .next = commands};
  commands = command;
  command_count++;
  watch_command(command, &ends);
  return NULL;
}

static void send_signal(struct command *command, uint32_t signal) {
  if (signal >= 65 || command->child <= 1) return;
  /* With a terminal it makes its group itself, a moment after it was born. */
  if (kill(-command->child, (int)signal) && errno == ESRCH) kill(command->child, (int)signal);
}

void running_frame(struct command *command, enum frame_type type, char *payload, size_t length) {
  switch (type) {
    case FRAME_INPUT: return stdio_take_input(command, payload, length);
    case FRAME_WINDOW: return stdio_widen(command, number_of(payload, length));
    case FRAME_SIGNAL: return send_signal(command, number_of(payload, length));
    case FRAME_KILL:
      command->doomed = true;
      return kill_tree(command->keeper);
    case FRAME_RESIZE: return stdio_resize(command, (unsigned char *)payload, length);
    case FRAME_GO: send_message(command->messages.fd, 'G', "", 0, -1); return;
    default: return;
  }
}

void running_freeze(bool still) {
  frozen = still;
  kill(-1, still ? SIGSTOP : SIGCONT);
}

void running_have_room(void) {
  for (struct command *command = commands, *next; command; command = next) {
    next = command->next;
    if (command->told || command->credit <= 0) continue;
    stdio_go_on(command);
  }
}

static void keeper_ended(struct command *command, int status) {
  /* What it had to say comes first; a keeper that was killed says nothing. */
  while (command->messages.fd >= 0) {
    struct pollfd waiting = {command->messages.fd, POLLIN, 0};
    if (poll(&waiting, 1, 0) != 1) break;
    message_ready(&command->messages, READABLE);
  }
  command->keeper = 0;
  if (!command->ended && !command->told) take_status(command, WIFSIGNALED(status) ? status : SIGKILL);
  else running_forget_if_over(command);
}

bool running_keeper_ended(pid_t pid, int status) {
  struct command *command = commands;
  while (command && command->keeper != pid) command = command->next;
  if (!command) return false;
  keeper_ended(command, status);
  return true;
}

bool running_any(void) { return commands; }

void running_exceeded(const char *limit) {
  for (struct command *command = commands; command; command = command->next)
    if (!command->told) report(FRAME_LIMIT, command->id, limit, strlen(limit));
}
