#include "session/session.h"
#include "common/channel.h"
#include "common/event_loop.h"
#include "isolate/isolate.h"
#include "limits/limits.h"
#include "session/commands.h"
#include "session/lease.h"
#include "session/process_tree.h"
#include "session/subreaper.h"
#include "session/tcp/streams.h"
#include "session/users/sudo.h"
#include "session/users/users.h"
#include "supervise/supervise.h"

#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* A persistent sandbox: dispatches the host's frames to commands and streams. */

int machine_helper = -1;
const char *machine_token;
long long files_copied_at;

const struct session *session;

static void copy_strings(struct strings *to, const struct strings *from) {
  for (size_t i = 0; i < from->count; i++) strings_add(to, from->items[i]);
}

const char *parse_command(struct command_spec *spec, char *payload, size_t length) {
  *spec = (struct command_spec){.cwd = session->defaults->cwd};
  copy_strings(&spec->env, &session->defaults->env);
  copy_strings(&spec->rlimits, &session->defaults->rlimits);
  if (length && payload[length - 1]) return "bad command";
  for (char *at = payload, *end = payload + length; at < end;) {
    const char *name = next_string(&at, end);
    if (!is_command_field(name)) return "unknown field";
    parse_command_field(spec, name, &at, end);
  }
  return spec->argv.count ? NULL : "no command";
}

static void start_command(uint32_t id, char *payload, size_t length) {
  struct command_spec spec;
  set_violation_owner(id, true);
  const char *problem = parse_command(&spec, payload, length);
  if (!id || command_find(id)) problem = "bad command";
  if (!problem) problem = command_start(id, &spec, payload, length);
  if (problem) send_frame(FRAME_REFUSED, id, problem, strlen(problem));
  free(spec.argv.items);
  free(spec.env.items);
  free(spec.rlimits.items);
}

/*
 * SECURITY: /init of the machine gets only what the host sent, and it changes nothing that commands could not see
 * anyway. Without fields the answer says only that every earlier frame was handled; a container cannot do more.
 */
static void renew_identity(const char *payload, size_t length) {
  char done;
  if (length && (machine_helper < 0 || send(machine_helper, payload, length, MSG_NOSIGNAL) < 0 ||
                 recv(machine_helper, &done, 1, 0) != 1))
    _exit(EXIT_SETUP_FAILED);
  send_frame(FRAME_RENEWED, 0, "", 0);
}

/* SECURITY: where commands are isolated, a stream leads to one of them, and never to the network of PID 1. */
static void handle_connect(uint32_t id, const char *payload, size_t length) {
  bool has_command = length == 6;
  uint32_t command = has_command ? payload_number(payload + 2, 4) : 0;
  bool fits = has_command ? isolator_pid && command_find(command) : length == 2 && !isolator_pid;
  stream_connect(id, fits ? payload_number(payload, 2) : 0, command);
}

static void handle_frame(enum frame_type type, uint32_t id, char *payload, size_t length) {
  if (type == FRAME_IDENTITY) return renew_identity(payload, length);
  if (type == FRAME_LEAVE && machine_helper >= 0) _exit(EXIT_LEFT);
  if (type == FRAME_COMMAND) return start_command(id, payload, length);
  if (type == FRAME_VERDICT) return command_pass_verdict(command_find(id), payload, length);
  if (type == FRAME_LEASE) return lease_renew(length == 4 ? payload_number(payload, 4) : 1);
  if (type == FRAME_FREEZE) return commands_freeze(length == 1 && payload[0] == 1);
  if (type == FRAME_CONNECT) return handle_connect(id, payload, length);
  if (stream_handle_frame(type, id, payload, length)) return;
  struct command *command = command_find(id);
  if (command) command_handle_frame(command, type, payload, length);
}

static void resume_output(void) {
  commands_resume_output();
  streams_resume();
}

static void reap(struct watch *watch, uint32_t events) {
  (void)events;
  struct signalfd_siginfo info;
  while (read(watch->fd, &info, sizeof info) > 0) continue;
  bool orphans = false;
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    bool known = commands_subreaper_exited(pid, status);
    if (!known) prefork_exited(pid), worker_exited(pid), isolation_child_exited(pid);
    if (known && WIFSIGNALED(status)) orphans = true;
  }
  if (orphans) kill_orphans(commands_is_subreaper);
  if (session->prefork && !isolator_pid) prefork_create();
}

/* As long as a command's descendants exist, so does its subreaper; without any there is nothing to measure. */
static void check_limits(void) {
  if (!commands_any()) return memory_usage_reset(), disk_release_deleted(), (void)disk_is_full();
  if (has_root_user && own_disk_became_full()) commands_report_violation("limit.disk", "the sandbox's disk is full");
  const char *limit = exceeded_limit();
  if (!limit) return;
  commands_report_limit(limit);
  kill_all_commands();
  memory_usage_reset();
}

/* Every command needs half a dozen descriptors of ours, every tracked file one. Commands keep the original limit. */
static struct rlimit original_nofile;

void raise_nofile_limit(struct strings *rlimits) {
  static char text[32];
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit)) return;
  original_nofile = limit;
  snprintf(text, sizeof text, "%llu", (unsigned long long)limit.rlim_cur);
  strings_add(rlimits, "nofile");
  strings_add(rlimits, text);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void restore_nofile_limit(void) {
  if (original_nofile.rlim_max) setrlimit(RLIMIT_NOFILE, &original_nofile);
}

_Noreturn void serve_session(const struct session *with) {
  static struct watch signals;
  session = with;
  raise_nofile_limit(&session->defaults->rlimits);
  signal(SIGPIPE, SIG_IGN);
  watch_start(&signals, session->signals, READABLE, reap, NULL);
  channel_open(handle_frame, resume_output);
  if (session->prefork && !isolator_pid) prefork_create();
  if (isolator_pid) isolation_serve();
  if (has_root_user) sudo_listen();
  event_loop_run(has_limits() || has_root_user ? limits.interval_ms : -1, check_limits);
}
