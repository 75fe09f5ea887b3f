/* The commands that run, with their subreapers and standard streams. */
#ifndef RINGFENCE_COMMANDS_H
#define RINGFENCE_COMMANDS_H

#include "common/event_loop.h"
#include "isolate/isolate.h"

struct command {
  uint32_t id;
  pid_t subreaper, child;
  struct watch messages; /* from the command's child and its subreaper */
  struct watch listener; /* supervised system calls */
  struct watch in, out[2];
  struct watch proxy;    /* connections of an isolated command to the proxy */
  struct watch deadline; /* until when the namespace init of a killed command must have ended */
  struct isolated_usage usage;
  bool isolated;          /* `subreaper` is the init of its namespaces */
  unsigned sockets_asked; /* requests for sockets that its namespace init has not answered yet */
  int requests;           /* to its subreaper: what `sudo` asks for; -1 without a root user */
  bool terminal;
  bool may_start;      /* the host has sent FRAME_GO, perhaps before an isolated command had a process */
  bool kill_requested; /* kill it as soon as its pid is known */
  bool exited;         /* its status is known */
  bool exit_reported;  /* the host has been told */
  int status;
  int64_t send_window; /* bytes of output that the host can still receive */
  int64_t unread[2];   /* bytes of output that were unread when it exited */
  char *input;         /* what the command has not read yet */
  size_t input_length;
  size_t input_taken; /* bytes that were passed on since the host was last told */
  bool input_eof;
  struct command *next;
};

/* Starts a command. Returns why it could not be started, or NULL. */
const char *command_start(uint32_t id, struct command_spec *spec, const char *request, size_t length);
/* A command whose exit was not reported yet, or NULL. */
struct command *command_find(uint32_t id);
bool commands_any(void);
/* Watches the socket to its subreaper. */
void command_watch_messages(struct command *command, int socket);
/* Passes the host's answer to a request of `sudo` on. */
void command_pass_verdict(const struct command *command, const char *payload, size_t length);
/* Asks the namespace init of an isolated command for a socket in its network, for a stream. */
bool command_ask_for_socket(const struct command *command, uint32_t stream, bool ipv6);
/* Frees it when its processes are gone and all its output has been read. */
void command_free_if_done(struct command *command);
void command_handle_frame(struct command *command, enum frame_type type, char *payload, size_t length);
/* The channel has room again. */
void commands_resume_output(void);
/* Commands that have no process yet are killed as soon as they have one. */
void commands_request_kill(void);
/* Returns whether the process was the subreaper of a command. */
bool commands_subreaper_exited(pid_t pid, int status);
bool commands_is_subreaper(pid_t pid);
struct command *command_of_subreaper(pid_t pid);
/* Reports a violation of every command: nobody knows which one did it. */
void commands_report_violation(const char *guarantee, const char *details);
/* Reports to the host that this limit stopped every command. */
void commands_report_limit(const char *limit);
/*
 * Stops or continues all processes except PID 1. None escapes: the kernel restarts a fork that is interrupted by a
 * signal.
 */
void commands_freeze(bool still);

/* stdio.c: the standard streams of a command. */
void stdio_watch(struct command *command, const struct stdio_pipes *pipes);
/* Called when the command has exited: what was written before is still sent to the host. */
void stdio_count_unread(struct command *command);
/* Reports the exit to the host once all output from before it has been sent. */
void stdio_finish(struct command *command);
/* The host can receive more output. */
void stdio_resume(struct command *command);
void stdio_queue_input(struct command *command, const char *payload, size_t length);
void stdio_add_window(struct command *command, uint32_t more);
void stdio_resize(struct command *command, const unsigned char *payload, size_t length);

#endif
