#include "running.h"

#include <sys/ioctl.h>
#include <sys/wait.h>

/*
 * What a command writes goes to the host and what it reads comes from there, as much as the other side can take. How it
 * ended is told behind its last words.
 */

static void tell_exit(struct command *command) {
  bool signaled = WIFSIGNALED(command->status);
  unsigned char payload[2] = {signaled, (unsigned char)(signaled ? WTERMSIG(command->status) : WEXITSTATUS(command->status))};
  command->told = true;
  report(FRAME_EXIT, command->id, payload, sizeof payload);
}

static enum frame_type stream_type(const struct command *command, const struct watch *watch) {
  return watch == &command->out[0] ? FRAME_OUTPUT : FRAME_ERRORS;
}

/* What a command leaves running may go on writing; nobody reads it any more. */
static void discard(struct command *command, struct watch *watch) {
  static char nothing[CHUNK];
  ssize_t got = read(watch->fd, nothing, sizeof nothing);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    watch_stop(watch);
    running_forget_if_over(command);
  }
}

/* Passes on what is there. Returns whether there may be more. */
static bool pump(struct command *command, struct watch *watch) {
  if (watch->fd < 0) return false;
  if (command->credit <= 0 || !wire_has_room()) {
    watch_for(watch, 0);
    return true;
  }
  size_t most = command->credit < CHUNK ? (size_t)command->credit : CHUNK;
  ssize_t got = wire_pump(stream_type(command, watch), command->id, watch->fd, most);
  if (got > 0) {
    command->credit -= got;
    command->left[watch == &command->out[1]] -= got;
    return true;
  }
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  watch_stop(watch); /* also EIO: the last one has let go of the terminal */
  return false;
}

/* Whether all that was written before the command ended is on its way; others may write for ever. */
static bool drained(struct command *command, int index) {
  struct watch *watch = &command->out[index];
  while (watch->fd >= 0 && command->left[index] > 0 && pump(command, watch))
    if (!watch->events) return false; /* the host has to make room first */
  return true;
}

/* PLATFORM: a terminal does not tell how much waits in it, but it holds little. */
void stdio_count_waiting(struct command *command) {
  for (int i = 0; i < 2; i++) {
    int waiting = 0;
    bool known = command->out[i].fd >= 0 && !command->terminal && !ioctl(command->out[i].fd, FIONREAD, &waiting);
    command->left[i] = known ? waiting : CHUNK;
  }
}

void stdio_settle(struct command *command) {
  if (command->told) return running_forget_if_over(command);
  if (!command->ended) return;
  bool first = drained(command, 0), second = drained(command, 1);
  if (!first || !second) return;
  tell_exit(command);
  watch_stop(&command->in);
  watch_for(&command->out[0], READABLE);
  watch_for(&command->out[1], READABLE);
  running_forget_if_over(command);
}

static void output_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct command *command = watch->owner;
  if (command->told) return discard(command, watch);
  pump(command, watch);
  stdio_settle(command);
}

static void feed(struct command *command) {
  if (command->in.fd < 0) return;
  ssize_t sent = command->input_length ? write(command->in.fd, command->input, command->input_length) : 0;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    command->input_length = 0;
    watch_stop(&command->in); /* it no longer reads */
    return;
  }
  if (sent > 0) {
    command->input_length -= (size_t)sent;
    memmove(command->input, command->input + sent, command->input_length);
    report_number(FRAME_WINDOW, command->id, (uint32_t)sent);
  }
  if (command->input_length) watch_for(&command->in, WRITABLE);
  else if (command->input_ends) watch_stop(&command->in);
  else watch_for(&command->in, 0);
}

static void input_ready(struct watch *watch, uint32_t events) {
  (void)events;
  feed(watch->owner);
}

static void watch_output(struct command *command, int index, int fd) {
  command->out[index].fd = -1;
  if (fd < 0) return;
  fcntl(fd, F_SETFL, O_NONBLOCK); /* a pipe or a terminal of ours: there are no other flags to keep */
  watch_start(&command->out[index], fd, READABLE, output_ready, command);
}

void stdio_watch(struct command *command, const struct ends *ends) {
  watch_output(command, 0, ends->out[0]);
  watch_output(command, 1, ends->errors[0]);
  command->in.fd = -1;
  if (ends->in[1] < 0) return;
  fcntl(ends->in[1], F_SETFL, O_NONBLOCK);
  watch_start(&command->in, ends->in[1], 0, input_ready, command);
}

void stdio_take_input(struct command *command, const char *payload, size_t length) {
  if (!length) command->input_ends = true;
  if (!command->input && length) command->input = malloc(INPUT_WINDOW);
  /* The host keeps to the window that it was given; one that does not is not ours. */
  if (command->input_length + length > INPUT_WINDOW || (length && !command->input)) _exit(125);
  if (command->in.fd < 0) {
    if (length) report_number(FRAME_WINDOW, command->id, (uint32_t)length);
    return;
  }
  if (length) memcpy(command->input + command->input_length, payload, length);
  command->input_length += length;
  feed(command);
}

void stdio_resize(struct command *command, const unsigned char *payload, size_t length) {
  if (length != 4) return;
  struct winsize size = {.ws_col = (unsigned short)(payload[0] | payload[1] << 8), .ws_row = (unsigned short)(payload[2] | payload[3] << 8)};
  ioctl(command->out[0].fd, TIOCSWINSZ, &size);
}

void stdio_go_on(struct command *command) {
  for (int i = 0; i < 2; i++) watch_for(&command->out[i], READABLE);
  stdio_settle(command);
}

void stdio_widen(struct command *command, uint32_t more) {
  command->credit += more;
  if (command->credit > (int64_t)WINDOW * 16) command->credit = (int64_t)WINDOW * 16;
  stdio_go_on(command);
}
