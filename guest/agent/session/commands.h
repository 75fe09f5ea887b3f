/* A command that runs, its keeper and its standard streams. */
#ifndef RINGFENCE_COMMANDS_H
#define RINGFENCE_COMMANDS_H

#include "common/event_loop.h"
#include "session/subreaper.h"

struct command {
  uint32_t id;
  pid_t subreaper, child;
  struct watch messages; /* from the child and its keeper */
  struct watch listener; /* calls that the guard decides */
  struct watch in, out[2];
  bool terminal;
  bool kill_requested;           /* to be ended as soon as it exists */
  bool exited;            /* its status is known */
  bool exit_reported;             /* and the host knows it */
  int status;
  int64_t send_window;        /* bytes of output that the host can still take */
  int64_t unread[2];       /* bytes of output that were waiting when it ended */
  char *input;           /* what the command has not read yet */
  size_t input_length;
  bool input_eof;
  struct command *next;
};

/* running.c: all of them. */
/* Gives it a keeper. Returns why it could not start, or NULL. */
const char *command_start(uint32_t id, struct command_spec *spec, const char *request, size_t length);
/* The one that the host still waits for, or NULL. */
struct command *command_find(uint32_t id);
bool commands_any(void);
/* Gone are its processes and everything that it wrote has been read. */
void command_free_if_done(struct command *command);
void command_handle_frame(struct command *command, enum frame_type type, char *payload, size_t length);
/* There is room on the channel again: whoever was held back goes on. */
void commands_resume_output(void);
/* Whether it was a keeper of one of them. */
bool commands_subreaper_exited(pid_t pid, int status);
bool commands_is_subreaper(pid_t pid);
/* Tells the host of each that this limit stopped it. */
void commands_report_limit(const char *limit);
/* Every process but us. Nobody slips through: a fork that meets a signal starts over. */
void commands_freeze(bool still);

/* stdio.c: its standard streams. */
void stdio_watch(struct command *command, const struct stdio_pipes *pipes);
/* At its end: so much was written before, and still goes to the host. */
void stdio_count_unread(struct command *command);
/* Tells the host of the end, once everything that was written before it is on its way. */
void stdio_finish(struct command *command);
/* The host can take more of what it writes. */
void stdio_resume(struct command *command);
void stdio_queue_input(struct command *command, const char *payload, size_t length);
void stdio_add_window(struct command *command, uint32_t more);
void stdio_resize(struct command *command, const unsigned char *payload, size_t length);

#endif
