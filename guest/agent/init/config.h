/* The configuration of an agent, as the host sends it. */
#ifndef RINGFENCE_CONFIG_H
#define RINGFENCE_CONFIG_H

#include "session/command.h"

/* Every string points into the configuration. */
struct options {
  struct strings readonly, hidden, masks, nested, overlays, writable;
  struct command_spec command; /* the only command, or the defaults of all */
  const char *uid, *gid;
  bool wait_for_start;    /* the command starts when the host sends FRAME_GO */
  bool whole_file_system; /* all of it is granted: Landlock has nothing to restrict */
  bool persistent;        /* takes many commands over the channel */
  bool isolate;           /* every command has namespaces of its own */
  bool prefork;           /* starting a process is slow here */
  bool shared_network;    /* the sockets that the kernel lists are the host's */
  int proxy_port;         /* connections to it go to the host's proxy */
  int range_lock;         /* holds the sandbox's range of ids while it is open; -1: the sandbox has none */
  int handover_fd;        /* where the host takes the proxy's listening socket; -1: connections use the channel */
};

extern struct options options;

/* Both end the agent when something is wrong. */
void parse_config(char *at, size_t length);
void parse_config_file(int fd);

#endif
