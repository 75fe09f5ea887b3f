/* The program `sudo` in a sandbox with a root user. */
#ifndef RINGFENCE_SUDO_PROGRAM_H
#define RINGFENCE_SUDO_PROGRAM_H

#include "common/common.h"

/* Asks PID 1 to run a command as another user. Returns its exit code. */
int sudo_main(int argc, char **argv);

/* options.c */
struct sudo_options {
  const char *user, *directory;
  bool login, shell, keep_environment;
  struct strings variables; /* NAME=VALUE before the command */
  char **command;           /* ends in NULL */
};
/* Returns -1 to go on, or the exit code. */
int read_sudo_options(int argc, char **argv, struct sudo_options *options);

/* relay.c */
/* Waits for the end of the command. `master` is the terminal that we gave it, or -1. Returns its wait status, or -1. */
int relay(int connection, int master);

#endif
