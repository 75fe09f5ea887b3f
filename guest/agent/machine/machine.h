/* `/init` of a virtual machine, and the container that it creates for the commands. */
#ifndef RINGFENCE_MACHINE_H
#define RINGFENCE_MACHINE_H

#include "common/common.h"

struct machine_mount {
  const char *kind, *mode, *target, *name;
};

/* What the host told the machine. */
struct machine {
  bool has_identity;
  char *config;
  size_t config_length;
  int filter;
  int helper; /* in the container: the socket to /init */
  char token[80], id[40];
  const char *uid, *gid, *tmp;
  unsigned root;                                  /* the machine's id of the sandbox's root user; 0: it has none */
  struct strings limits, files, first_files, own; /* `first_files`: only on a new disk */
  struct machine_mount mounts[MAX_MOUNTS];
  size_t mount_count;
  long long files_copied_at; /* in ns; 0 when there are no mounts */
};

extern struct machine machine;

/* machine_init.c */
_Noreturn void machine_main(void);
void sleep_ms(long ms);

/* identity.c: the random seed, clock and names that make a clone of a snapshot distinct. */
void apply_identity(char *fields, size_t length);

/* setup.c: in the container, while it is still root: receives its identity, files and configuration. */
void receive_setup(void);
/* Devices of the drives for mounts and for large inputs. */
extern char disk_device[32], inputs_device[32];
void mount_on(const char *what, const char *where, const char *type, unsigned long flags, const char *options);

/* writable_root.c: the sandbox's own root, over the image and on its own disk, in place of the one at /new. */
void build_writable_root(void);
/* Binds the copies of the host's files. */
void bind_in_writable_root(void);
/* Becomes the root user of the sandbox, after the root was entered. */
void become_machine_root_user(void);
/* Writes what the host sent, as the root user. */
void fill_writable_root(void);

/* The machine's id of the user who owns what the host copies in. */
unsigned copied_files_owner(void);

/* container.c: becomes PID 1 of the container. */
_Noreturn void machine_container_main(void);

#endif
