/* What `/init` of a virtual machine was told, and the container that it makes of it. */
#ifndef RINGFENCE_MACHINE_H
#define RINGFENCE_MACHINE_H

#include "agent.h"

/* Whoever the sandbox's user is inside, to the machine it is this one. */
enum { SANDBOX_UID = 100000, MAX_MOUNTS = 64, AGENT_PORT = 1024 };

struct machine_mount {
  const char *kind, *mode, *target, *name;
};

struct machine {
  bool has_identity; /* the host has said who we are */
  char *config;
  size_t config_length;
  int filter;
  int helper; /* in the container: asks for what needs rights */
  char token[80], id[40];
  const char *uid, *gid, *tmp;
  struct strings limits, files;
  struct machine_mount mounts[MAX_MOUNTS];
  size_t mount_count;
  long long files_copied_at; /* when the last of the files that came with the machine was written */
};

extern struct machine machine;
void apply_identity(char *fields, size_t length);
void receive_setup(void);
/* container.c */
_Noreturn void container_init(void);
#endif
