/* One command, from its description to exec. */
#ifndef RINGFENCE_COMMAND_H
#define RINGFENCE_COMMAND_H

#include "common/common.h"

struct command_spec {
  struct strings argv, env, rlimits;
  const char *cwd;
  const char *user;             /* runs as this user, where the sandbox has a root user; NULL: as `user` */
  const char *owner;            /* of a file operation: new files belong to this user */
  bool builtin;                 /* argv names one of our own file operations */
  bool is_sudo;                 /* asked for by `sudo`, whose standard streams it has */
  bool offline;                 /* an isolated command without the sandbox's proxy */
  bool input;                   /* standard input stays open */
  bool wait_for_start;          /* waits for FRAME_GO before it starts */
  unsigned short columns, rows; /* a terminal of this size, when not 0 */
};

bool is_command_field(const char *name);
void parse_command_field(struct command_spec *spec, const char *name, char **at, const char *end);
/* In the child: becomes the command. Failures before exec are reported on `socket`. */
_Noreturn void exec_command(struct command_spec *spec, int socket, bool supervised, bool terminal);

#endif
