/*
 * `sudo` in a sandbox with a root user. no_new_privs makes setuid programs powerless, so our `sudo` (guest/agent/sudo) asks
 * PID 1 to start the command.
 *
 *   PID 1 ─ subreaper ─┬─ command ─ … ─ sudo      its streams, its directory, its words
 *      ▲               └─ monitor ─ root's command
 *      └── request over SUDO_SOCKET, recorded by the host before anything starts
 *
 * What it starts is a child of the same subreaper: it is limited, recorded and killed together with the command.
 */
#ifndef RINGFENCE_SUDO_H
#define RINGFENCE_SUDO_H

#include "session/commands.h"

/* Where PID 1 takes requests. */
#define SUDO_SOCKET "/run/ringfence/sudo"

/* The longest request; a socket carries no more in one message. */
enum { MAX_SUDO_REQUEST = 160 * 1024 };

/* Between `sudo` and its monitor, one byte each and an int. */
enum sudo_message { SUDO_SIGNAL = 's', SUDO_STATUS = 'x' };

/* In PID 1: accepts requests. */
void sudo_listen(void);
/* The same in the namespace init of an isolated command, which starts what is asked for itself. */
void sudo_listen_for_one(void);
/* The host's answer. */
void sudo_handle_verdict(const char *payload, size_t length);
/* In PID 1: forgets the requests of a command that is gone. */
void sudo_forget(const struct command *command);

/* sudo_monitor.c: starts what a request asks for, once the host permits it, and stays until it has ended. */
_Noreturn void sudo_monitor(char *request, size_t length, const int *streams, int connection, int waiting);

/* In a subreaper: takes one request and forks its monitor. */
void sudo_take_request(int requests);

#endif
