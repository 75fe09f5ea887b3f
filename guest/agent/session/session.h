/* A sandbox that takes many commands (commands.h) and streams (tcp/streams.h) over one channel. */
#ifndef RINGFENCE_SESSION_H
#define RINGFENCE_SESSION_H

#include "session/command.h"

struct session {
  struct command_spec *defaults; /* environment, directory and rlimits that every command starts with */
  bool supervised;               /* system calls of commands are passed to PID 1 */
  int signals;                   /* signalfd with SIGCHLD */
  bool prefork;                  /* create the next command's process in advance */
};

/* The session that is served. */
extern const struct session *session;
/* In a virtual machine: the socket to its /init, which has the privileges that we dropped; otherwise -1. */
extern int machine_helper;
/* In a virtual machine: what the host called it, and when its files had been copied in. */
extern const char *machine_token;
extern long long files_copied_at;

_Noreturn void serve_session(const struct session *session);
/* A command from the host's fields and the session's defaults. Returns what is wrong with it, or NULL. */
const char *parse_command(struct command_spec *spec, char *payload, size_t length);
/* Raises our own limit of open files and adds the former one to the rlimits of commands. */
void raise_nofile_limit(struct strings *rlimits);
/* Undoes it, for a PID 1 that starts itself again. */
void restore_nofile_limit(void);

#endif
