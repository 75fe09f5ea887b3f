/* A command that runs, its keeper and its standard streams. */
#ifndef RINGFENCE_RUNNING_H
#define RINGFENCE_RUNNING_H

#include "agent.h"

struct command {
  uint32_t id;
  pid_t keeper, child;
  struct watch messages; /* from the child and its keeper */
  struct watch listener; /* calls that the guard decides */
  struct watch in, out[2];
  bool terminal;
  bool doomed;           /* to be ended as soon as it exists */
  bool ended;            /* its status is known */
  bool told;             /* and the host knows it */
  int status;
  int64_t credit;        /* bytes of output that the host can still take */
  int64_t left[2];       /* bytes of output that were waiting when it ended */
  char *input;           /* what the command has not read yet */
  size_t input_length;
  bool input_ends;
  struct command *next;
};

/* running.c: all of them. */
/* Gives it a keeper. Returns why it could not start, or NULL. */
const char *running_start(uint32_t id, struct command_spec *spec, const char *asked, size_t length);
/* The one that the host still waits for, or NULL. */
struct command *running_find(uint32_t id);
bool running_any(void);
/* Gone are its processes and everything that it wrote has been read. */
void running_forget_if_over(struct command *command);
void running_frame(struct command *command, enum frame_type type, char *payload, size_t length);
/* There is room on the channel again: whoever was held back goes on. */
void running_have_room(void);
/* Whether it was a keeper of one of them. */
bool running_keeper_ended(pid_t pid, int status);
bool running_is_keeper(pid_t pid);
/* Tells the host of each that this limit stopped it. */
void running_exceeded(const char *limit);
/* Every process but us. Nobody slips through: a fork that meets a signal starts over. */
void running_freeze(bool still);

/* stdio.c: its standard streams. */
void stdio_watch(struct command *command, const struct ends *ends);
/* At its end: so much was written before, and still goes to the host. */
void stdio_count_waiting(struct command *command);
/* Tells the host of the end, once everything that was written before it is on its way. */
void stdio_settle(struct command *command);
/* The host can take more of what it writes. */
void stdio_go_on(struct command *command);
void stdio_take_input(struct command *command, const char *payload, size_t length);
void stdio_widen(struct command *command, uint32_t more);
void stdio_resize(struct command *command, const unsigned char *payload, size_t length);

#endif
