#include "running.h"

#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* A sandbox that stays: what the host asks for comes in frames, to one of the commands, to a stream or to all of it. */

int session_helper = -1;
const char *session_token;
long long session_filled;

const struct session *session;

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
  if (!id || running_find(id)) problem = "bad command";
  if (!problem) problem = running_start(id, &spec, payload, length);
  if (problem) report(FRAME_REFUSED, id, problem, strlen(problem));
  free(spec.argv.items);
  free(spec.env.items);
  free(spec.rlimits.items);
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
  if (type == FRAME_FREEZE) return running_freeze(length == 1 && payload[0] == 1);
  if (type == FRAME_CONNECT) return stream_connect(id, length == 2 ? number_of(payload, 2) : 0);
  if (stream_frame(type, id, payload, length)) return;
  struct command *command = running_find(id);
  if (command) running_frame(command, type, payload, length);
}

static void room_again(void) {
  running_have_room();
  streams_have_room();
}

static void reap(struct watch *watch, uint32_t events) {
  (void)events;
  struct signalfd_siginfo info;
  while (read(watch->fd, &info, sizeof info) > 0) continue;
  bool strays = false;
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    bool kept = running_keeper_ended(pid, status);
    if (!kept) spare_ended(pid);
    if (kept && WIFSIGNALED(status)) strays = true;
  }
  if (strays) kill_strays(running_is_keeper);
  if (session->ahead) spare_make();
}

/* What a command leaves behind keeps its keeper here; without one there is nothing that could grow. */
static void check_ceilings(void) {
  if (!running_any()) return memory_clear(), usage_release();
  const char *limit = usage_exceeded();
  if (!limit) return;
  running_exceeded(limit);
  kill(-1, SIGKILL);
  memory_clear();
}

/* Every command costs us half a dozen descriptors, every file that is counted one. Commands keep the limit that they had. */
void raise_descriptors(struct strings *rlimits) {
  static char text[32];
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit)) return;
  snprintf(text, sizeof text, "%llu", (unsigned long long)limit.rlim_cur);
  strings_add(rlimits, "nofile");
  strings_add(rlimits, text);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

_Noreturn void serve_session(const struct session *with) {
  static struct watch signals;
  session = with;
  raise_descriptors(&session->defaults->rlimits);
  signal(SIGPIPE, SIG_IGN);
  watch_start(&signals, session->signals, READABLE, reap, NULL);
  wire_open(take_frame, room_again);
  if (session->ahead) spare_make();
  bool counts = ceilings.memory_bytes || ceilings.disk_bytes || ceilings.processes;
  loop(counts ? ceilings.tick : -1, check_ceilings);
}
