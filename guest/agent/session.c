#include "agent.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

/*
 * A sandbox that stays. Each command has a keeper: a small copy of us that adopts whatever the command leaves behind,
 * so that all of it can be found and ended, however often it forked.
 *
 *   PID 1 ─ keeper ─ command ─ …
 */

enum { MAX_COMMANDS = 1024 };

struct command {
  uint32_t id;
  pid_t keeper, child;
  struct watch messages; /* from the child and its keeper */
  struct watch listener; /* calls that the guard decides */
  struct watch in, out[2];
  bool terminal;
  bool doomed;           /* to be ended as soon as it exists */
  bool ended;            /* its status is known */
  bool told;             /* and the host knows it */
  int status;
  int64_t credit;        /* bytes of output that the host can still take */
  int64_t left[2];       /* bytes of output that were waiting when it ended */
  char *input;           /* what the command has not read yet */
  size_t input_length;
  bool input_ends;
  struct command *next;
};

int session_helper = -1;
const char *session_token;
long long session_filled;

const struct session *session;
static struct command *commands;
static int command_count;
static bool frozen; /* everything stands still, the keeper that waits too; what the host asks for meanwhile gets one of its own */

size_t keepers(void) { return (size_t)command_count + (spare_keeper() > 0); }
void keepers_are(size_t count) { command_count = (int)count; }

static struct command *find_command(uint32_t id) {
  for (struct command *command = commands; command; command = command->next)
    if (command->id == id && !command->told) return command;
  return NULL;
}

static bool is_keeper(pid_t pid) {
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

/* Gone are its processes and everything that it wrote has been read. */
static void forget_if_over(struct command *command) {
  if (command->told && !command->keeper && command->out[0].fd < 0 && command->out[1].fd < 0) forget(command);
}

static void tell_exit(struct command *command) {
  bool signaled = WIFSIGNALED(command->status);
  unsigned char payload[2] = {signaled, (unsigned char)(signaled ? WTERMSIG(command->status) : WEXITSTATUS(command->status))};
  command->told = true;
  report(FRAME_EXIT, command->id, payload, sizeof payload);
}

static enum frame_type stream_type(const struct command *command, const struct watch *watch) {
  return watch == &command->out[0] ? FRAME_OUTPUT : FRAME_ERRORS;
}

/* What a command leaves running may go on writing; nobody reads it any more. */
static void discard(struct command *command, struct watch *watch) {
  static char nothing[CHUNK];
  ssize_t got = read(watch->fd, nothing, sizeof nothing);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    watch_stop(watch);
    forget_if_over(command);
  }
}

/* Passes on what is there. Returns whether there may be more. */
static bool pump(struct command *command, struct watch *watch) {
  if (watch->fd < 0) return false;
  if (command->credit <= 0 || !wire_has_room()) {
    watch_for(watch, 0);
    return true;
  }
  size_t most = command->credit < CHUNK ? (size_t)command->credit : CHUNK;
  ssize_t got = wire_pump(stream_type(command, watch), command->id, watch->fd, most);
  if (got > 0) {
    command->credit -= got;
    command->left[watch == &command->out[1]] -= got;
    return true;
  }
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  watch_stop(watch); /* also EIO: the last one has let go of the terminal */
  return false;
}

/* Whether all that was written before the command ended is on its way; others may write for ever. */
static bool drained(struct command *command, int index) {
  struct watch *watch = &command->out[index];
  while (watch->fd >= 0 && command->left[index] > 0 && pump(command, watch))
    if (!watch->events) return false; /* the host has to make room first */
  return true;
}

/* PLATFORM: a terminal does not tell how much waits in it, but it holds little. */
static void count_waiting(struct command *command) {
  for (int i = 0; i < 2; i++) {
    int waiting = 0;
    bool known = command->out[i].fd >= 0 && !command->terminal && !ioctl(command->out[i].fd, FIONREAD, &waiting);
    command->left[i] = known ? waiting : CHUNK;
  }
}

static void settle(struct command *command) {
  if (command->told) return forget_if_over(command);
  if (!command->ended) return;
  bool first = drained(command, 0), second = drained(command, 1);
  if (!first || !second) return;
  tell_exit(command);
  watch_stop(&command->in);
  watch_for(&command->out[0], READABLE);
  watch_for(&command->out[1], READABLE);
  forget_if_over(command);
}

static void output_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct command *command = watch->owner;
  if (command->told) return discard(command, watch);
  pump(command, watch);
  settle(command);
}

static void feed(struct command *command) {
  if (command->in.fd < 0) return;
  ssize_t sent = command->input_length ? write(command->in.fd, command->input, command->input_length) : 0;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    command->input_length = 0;
    watch_stop(&command->in); /* it no longer reads */
    return;
  }
  if (sent > 0) {
    command->input_length -= (size_t)sent;
    memmove(command->input, command->input + sent, command->input_length);
    report_number(FRAME_WINDOW, command->id, (uint32_t)sent);
  }
  if (command->input_length) watch_for(&command->in, WRITABLE);
  else if (command->input_ends) watch_stop(&command->in);
  else watch_for(&command->in, 0);
}

static void input_ready(struct watch *watch, uint32_t events) {
  (void)events;
  feed(watch->owner);
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
  count_waiting(command);
  settle(command);
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

static void watch_output(struct command *command, int index, int fd) {
  command->out[index].fd = -1;
  if (fd < 0) return;
  fcntl(fd, F_SETFL, O_NONBLOCK); /* a pipe or a terminal of ours: there are no other flags to keep */
  watch_start(&command->out[index], fd, READABLE, output_ready, command);
}

static void watch_command(struct command *command, const struct ends *ends) {
  watch_start(&command->messages, ends->messages[0], READABLE, message_ready, command);
  watch_output(command, 0, ends->out[0]);
  watch_output(command, 1, ends->errors[0]);
  command->listener.fd = command->in.fd = -1;
  if (ends->in[1] < 0) return;
  fcntl(ends->in[1], F_SETFL, O_NONBLOCK);
  watch_start(&command->in, ends->in[1], 0, input_ready, command);
}

static const char *start(uint32_t id, struct command_spec *spec, const char *asked, size_t length) {
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

static void copy_strings(struct strings *to, const struct strings *from) {
  for (size_t i = 0; i < from->count; i++) strings_add(to, from->items[i]);
}

const char *read_command(struct command_spec *spec, char *payload, size_t length) {
  *spec = (struct command_spec){.cwd = session->defaults->cwd};
  copy_strings(&spec->env, &session->defaults->env);
  copy_strings(&spec->rlimits, &session->defaults->rlimits);
  if (length && payload[length - 1]) return "bad command";
  for (char *at = payload, *end = payload + length; at < end;) {
    const char *name = take_field(&at, end);
    if (!is_command_field(name)) return "unknown field";
    command_field(spec, name, &at, end);
  }
  return spec->argv.count ? NULL : "no command";
}

static void start_command(uint32_t id, char *payload, size_t length) {
  struct command_spec spec;
  violations_of(id, true);
  const char *problem = read_command(&spec, payload, length);
  if (!id || find_command(id)) problem = "bad command";
  if (!problem) problem = start(id, &spec, payload, length);
  if (problem) report(FRAME_REFUSED, id, problem, strlen(problem));
  free(spec.argv.items);
  free(spec.env.items);
  free(spec.rlimits.items);
}

static void take_input(struct command *command, const char *payload, size_t length) {
  if (!length) command->input_ends = true;
  if (!command->input && length) command->input = malloc(INPUT_WINDOW);
  /* The host keeps to the window that it was given; one that does not is not ours. */
  if (command->input_length + length > INPUT_WINDOW || (length && !command->input)) _exit(125);
  if (command->in.fd < 0) {
    if (length) report_number(FRAME_WINDOW, command->id, (uint32_t)length);
    return;
  }
  if (length) memcpy(command->input + command->input_length, payload, length);
  command->input_length += length;
  feed(command);
}

static void resize(struct command *command, const unsigned char *payload, size_t length) {
  if (length != 4) return;
  struct winsize size = {.ws_col = (unsigned short)(payload[0] | payload[1] << 8), .ws_row = (unsigned short)(payload[2] | payload[3] << 8)};
  ioctl(command->out[0].fd, TIOCSWINSZ, &size);
}

static uint32_t number_of(const char *payload, size_t length) {
  uint32_t number = 0;
  for (size_t i = 0; i < length && i < 4; i++) number |= (uint32_t)(unsigned char)payload[i] << (8 * i);
  return number;
}

static void widen(struct command *command, uint32_t more) {
  command->credit += more;
  if (command->credit > (int64_t)WINDOW * 16) command->credit = (int64_t)WINDOW * 16;
  for (int i = 0; i < 2; i++) watch_for(&command->out[i], READABLE);
  settle(command);
}

static void send_signal(struct command *command, uint32_t signal) {
  if (signal >= 65 || command->child <= 1) return;
  /* With a terminal it makes its group itself, a moment after it was born. */
  if (kill(-command->child, (int)signal) && errno == ESRCH) kill(command->child, (int)signal);
}

static void frame_for(struct command *command, enum frame_type type, char *payload, size_t length) {
  switch (type) {
    case FRAME_INPUT: return take_input(command, payload, length);
    case FRAME_WINDOW: return widen(command, number_of(payload, length));
    case FRAME_SIGNAL: return send_signal(command, number_of(payload, length));
    case FRAME_KILL:
      command->doomed = true;
      return kill_tree(command->keeper);
    case FRAME_RESIZE: return resize(command, (unsigned char *)payload, length);
    case FRAME_GO: send_message(command->messages.fd, 'G', "", 0, -1); return;
    default: return;
  }
}

/* Every process but us. Nobody slips through: a fork that meets a signal starts over. */
static void freeze(bool still) {
  frozen = still;
  kill(-1, still ? SIGSTOP : SIGCONT);
}

/* SECURITY: the machine takes from us only what the host sent, and it changes nothing that a guest could not see anyway. */
static void renew(const char *payload, size_t length) {
  char done;
  if (session_helper < 0 || send(session_helper, payload, length, MSG_NOSIGNAL) < 0 || recv(session_helper, &done, 1, 0) != 1) _exit(125);
  report(FRAME_RENEWED, 0, "", 0);
}

static void take_frame(enum frame_type type, uint32_t id, char *payload, size_t length) {
  if (type == FRAME_IDENTITY) return renew(payload, length);
  if (type == FRAME_LEAVE && session_helper >= 0) _exit(LEFT);
  if (type == FRAME_COMMAND) return start_command(id, payload, length);
  if (type == FRAME_FREEZE) return freeze(length == 1 && payload[0] == 1);
  if (type == FRAME_CONNECT) return stream_connect(id, length == 2 ? number_of(payload, 2) : 0);
  if (stream_frame(type, id, payload, length)) return;
  struct command *command = find_command(id);
  if (command) frame_for(command, type, payload, length);
}

/* There is room on the channel again: whoever was held back goes on. */
static void room_again(void) {
  for (struct command *command = commands, *next; command; command = next) {
    next = command->next;
    if (command->told || command->credit <= 0) continue;
    for (int i = 0; i < 2; i++) watch_for(&command->out[i], READABLE);
    settle(command);
  }
  streams_have_room();
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
  else forget_if_over(command);
}

static void reap(struct watch *watch, uint32_t events) {
  (void)events;
  struct signalfd_siginfo info;
  while (read(watch->fd, &info, sizeof info) > 0) continue;
  bool strays = false;
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    struct command *command = commands;
    while (command && command->keeper != pid) command = command->next;
    if (command) keeper_ended(command, status);
    else spare_ended(pid);
    if (command && WIFSIGNALED(status)) strays = true;
  }
  if (strays) kill_strays(is_keeper);
  if (session->ahead) spare_make();
}

/* What a command leaves behind keeps its keeper here; without one there is nothing that could grow. */
static void check_ceilings(void) {
  const char *limit = commands ? usage_exceeded() : NULL;
  if (!limit) return;
  for (struct command *command = commands; command; command = command->next)
    if (!command->told) report(FRAME_LIMIT, command->id, limit, strlen(limit));
  kill(-1, SIGKILL);
}

/* Every command costs us half a dozen descriptors. */
static void raise_descriptors(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit)) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static void remember_descriptors(struct strings *rlimits) {
  static char text[32];
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit)) return;
  snprintf(text, sizeof text, "%llu", (unsigned long long)limit.rlim_cur);
  strings_add(rlimits, "nofile");
  strings_add(rlimits, text);
}

_Noreturn void serve_session(const struct session *with) {
  static struct watch signals;
  session = with;
  remember_descriptors(&session->defaults->rlimits);
  raise_descriptors();
  signal(SIGPIPE, SIG_IGN);
  watch_start(&signals, session->signals, READABLE, reap, NULL);
  wire_open(take_frame, room_again);
  if (session->ahead) spare_make();
  bool counts = ceilings.memory_bytes || ceilings.disk_bytes || ceilings.processes;
  loop(counts ? ceilings.tick : -1, check_ceilings);
}
