/*
 * The process between PID 1 and a command: a subreaper that starts the command, adopts its orphans, reports the exit
 * status and stays until the last descendant is gone.
 */
#ifndef RINGFENCE_SUBREAPER_H
#define RINGFENCE_SUBREAPER_H

#include "session/command.h"

/* Both ends of a command's standard streams and of the sockets to its subreaper; -1 when closed. */
struct stdio_pipes {
  int in[2], out[2], errors[2], messages[2], requests[2];
};

bool open_stdio(const struct command_spec *spec, struct stdio_pipes *pipes);
_Noreturn void run_as_subreaper(struct command_spec *spec, struct stdio_pipes *pipes, bool preforked);
void close_all_except(int fd);

/* prefork.c: a subreaper that was forked in advance and waits for its command. */
void prefork_create(void);
/* Gives it the command. Returns its pid, or 0 when there is none that can take it. */
pid_t prefork_assign(struct stdio_pipes *pipes, const char *request, size_t length);
/* To be called for every child that exited; ignores others. */
void prefork_exited(pid_t pid);
/* 0 when there is none. */
pid_t prefork_pid(void);

#endif
