/*
 * Commands with namespaces of their own inside the sandbox.
 *
 *   PID 1 ─┬─ isolator            keeps the privileges to create namespaces; forked before PID 1 drops its own
 *          ├─ namespace init ─ command ─ …   PID 1 of one command's namespaces, and supervisor of its system calls
 *          └─ namespace init      prepared in advance, waits for a command
 *
 * SECURITY: every command of such a sandbox is isolated, so no command shares a PID namespace with any process of ours
 * except its own namespace init.
 */
#ifndef RINGFENCE_ISOLATE_H
#define RINGFENCE_ISOLATE_H

#include "session/subreaper.h"

/* isolator.c */
/* Who the commands of the sandbox are, seen from the isolator. */
struct isolated_user {
  bool is_elsewhere; /* in a user namespace that PID 1 enters after the isolator was forked */
  unsigned uid, gid; /* PID 1's in that namespace */
  bool yields;   /* namespaces are made at a low priority, which only the kernel's own root user can give up again */
  bool on_linux; /* and not on gVisor, which has no ambient capabilities */
  unsigned first_id; /* what the sandbox's id 0 is where the isolator makes mounts */
};
extern struct isolated_user isolated_user;
/* Forks the isolator, which keeps our capabilities. To be called before they are dropped. */
void isolator_start(int filter, struct isolated_user user);
/* Tells the isolator that PID 1 is in its last user namespace. */
void isolator_enter_users(void);
extern pid_t isolator_pid;
/* PID 1's socket to the isolator; -1: commands are not isolated. */
extern int isolator_socket;

/* namespace.c: in a new namespace init, with the isolator's privileges. */
void prepare_namespaces(void);

/* isolated_init.c: what a new namespace init does. `messages` is its socket to PID 1, `users` its user namespace or -1. */
struct isolated_parts {
  int messages, filter, users;
};
_Noreturn void isolated_main(const struct isolated_parts *parts);

/* A command for a prepared namespace init: this, then three standard streams and the request as descriptors. */
struct isolated_assignment {
  uint32_t agent_processes; /* of the whole sandbox, which no limit counts */
  uint32_t request_length;
};
enum { ASSIGNED_FDS = 4 };

/* A socket in a command's network, for a stream of this id. */
struct socket_request {
  uint32_t stream, ipv6;
};

/* What a namespace init measures and PID 1 cannot see. */
struct isolated_usage {
  uint64_t memory, disk, sockets;
};

/* session/isolation.c: in PID 1. */
struct command;
/* Watches the isolator and prepares the first namespace init. */
void isolation_serve(void);
/* Gives the command to a namespace init, now or when one is ready. Returns what is wrong, or NULL. */
const char *isolation_start(struct command *command, struct stdio_pipes *pipes, const char *request, size_t length);
/* The command is gone before it was assigned. */
void isolation_forget(const struct command *command);
/* Our own processes beside the commands' namespace inits. */
size_t isolation_processes(void);
/* To be called for every child of PID 1 that exited; ignores others. */
void isolation_child_exited(pid_t pid);
bool isolation_is_known(pid_t pid);
/* A process of a command, which its namespace init knows by another number. Returns 0 when it is gone. */
pid_t isolated_process(pid_t init, pid_t inner);
/* Kills every process of every command. */
void kill_all_commands(void);

#endif
