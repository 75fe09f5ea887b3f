/* The users of a sandbox that has a root user. */
#ifndef RINGFENCE_USERS_H
#define RINGFENCE_USERS_H

#include "session/command.h"

#include <linux/capability.h>

/* Whether commands can run as any user of the sandbox's own range of ids. */
extern bool has_root_user;

#define CAPABILITY(name) (1ULL << CAP_##name)
/* What root may do in the sandbox, over its own range of ids and its own network namespace. */
#define ROOT_CAPABILITIES                                                                                              \
  (CAPABILITY(CHOWN) | CAPABILITY(DAC_OVERRIDE) | CAPABILITY(FOWNER) | CAPABILITY(FSETID) | CAPABILITY(KILL) |         \
   CAPABILITY(SETGID) | CAPABILITY(SETUID) | CAPABILITY(NET_BIND_SERVICE))
/* What PID 1 has in addition; programs never do. */
#define AGENT_CAPABILITIES CAPABILITY(SYS_PTRACE)

bool set_capabilities(uint64_t effective, uint64_t permitted);

enum { MAX_GROUPS = 64 };

struct user {
  uid_t uid;
  gid_t gid;
  gid_t groups[MAX_GROUPS];
  size_t group_count;
  char name[64], home[256], shell[256];
};

/* Reads a user, by name or number, from the sandbox's /etc/passwd and /etc/group. */
bool find_user(const char *name, struct user *user);
/* In the child: gives up everything that the command's user does not have. Ends the process when that fails. */
void become_user(struct command_spec *spec);
/* The same for a user that was found before. `streams`: the standard streams become the user's. */
void switch_to_user(const struct user *user, bool streams);
/* Sets a variable, and replaces one of that name. */
void set_variable(struct strings *env, const char *entry);

#endif
