#include "common/channel.h"
#include "session/commands.h"

#include <sys/ioctl.h>
#include <sys/wait.h>

/*
 * The standard streams of commands, with flow control in both directions. The exit is reported after the last output.
 */

static void report_exit(struct command *command) {
  bool signaled = WIFSIGNALED(command->status);
  unsigned char payload[2] = {signaled,
                              (unsigned char)(signaled ? WTERMSIG(command->status) : WEXITSTATUS(command->status))};
  command->exit_reported = true;
  send_frame(FRAME_EXIT, command->id, payload, sizeof payload);
}

static enum frame_type stream_type(const struct command *command, const struct watch *watch) {
  return watch == &command->out[0] ? FRAME_STDOUT : FRAME_STDERR;
}

/* Background processes may keep writing after the command's exit was reported; their output is dropped. */
static void discard_output(struct command *command, struct watch *watch) {
  static char nothing[MAX_BYTES];
  ssize_t got = read(watch->fd, nothing, sizeof nothing);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    watch_close(watch);
    command_free_if_done(command);
  }
}

/* Sends what can be read to the host. Returns whether there may be more. */
static bool forward_output(struct command *command, struct watch *watch) {
  if (watch->fd < 0) return false;
  if (command->send_window <= 0 || !channel_has_room()) {
    watch_set_events(watch, 0);
    return true;
  }
  size_t most = command->send_window < MAX_BYTES ? (size_t)command->send_window : MAX_BYTES;
  ssize_t got = channel_forward(stream_type(command, watch), command->id, watch->fd, most);
  if (got > 0) {
    command->send_window -= got;
    command->unread[watch == &command->out[1]] -= got;
    return true;
  }
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  watch_close(watch); /* also EIO: the last process closed the terminal */
  return false;
}

/* Whether everything that was written before the exit has been sent; background processes may write forever. */
static bool is_drained(struct command *command, int index) {
  struct watch *watch = &command->out[index];
  while (watch->fd >= 0 && command->unread[index] > 0 && forward_output(command, watch))
    if (!watch->events) return false; /* the host has to extend the window first */
  return true;
}

/* PLATFORM: FIONREAD does not work on a terminal, but its buffer is small. */
void stdio_count_unread(struct command *command) {
  for (int i = 0; i < 2; i++) {
    int waiting = 0;
    bool known = command->out[i].fd >= 0 && !command->terminal && !ioctl(command->out[i].fd, FIONREAD, &waiting);
    command->unread[i] = known ? waiting : MAX_BYTES;
  }
}

void stdio_finish(struct command *command) {
  if (command->exit_reported) return command_free_if_done(command);
  if (!command->exited) return;
  bool first = is_drained(command, 0), second = is_drained(command, 1);
  if (!first || !second) return;
  report_exit(command);
  watch_close(&command->in);
  watch_set_events(&command->out[0], READABLE);
  watch_set_events(&command->out[1], READABLE);
  command_free_if_done(command);
}

static void output_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct command *command = watch->owner;
  if (command->exit_reported) return discard_output(command, watch);
  forward_output(command, watch);
  stdio_finish(command);
}

/* Each message lets the host send as much again, so small ones would cut the input into small pieces. */
static void extend_input_window(struct command *command, size_t taken) {
  command->input_taken += taken;
  if (!command->input_taken || (command->input_length && command->input_taken < INPUT_WINDOW / 4)) return;
  send_number_frame(FRAME_WINDOW, command->id, (uint32_t)command->input_taken);
  command->input_taken = 0;
}

static void write_input(struct command *command) {
  if (command->in.fd < 0) return;
  ssize_t sent = command->input_length ? write(command->in.fd, command->input, command->input_length) : 0;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    size_t dropped = command->input_length;
    command->input_length = 0;
    watch_close(&command->in); /* the command closed its standard input */
    return extend_input_window(command, dropped);
  }
  if (sent > 0) {
    command->input_length -= (size_t)sent;
    memmove(command->input, command->input + sent, command->input_length);
    extend_input_window(command, (size_t)sent);
  }
  if (command->input_length) watch_set_events(&command->in, WRITABLE);
  else if (command->input_eof) watch_close(&command->in);
  else watch_set_events(&command->in, 0);
}

static void input_ready(struct watch *watch, uint32_t events) {
  (void)events;
  write_input(watch->owner);
}

static void watch_output(struct command *command, int index, int fd) {
  command->out[index].fd = -1;
  if (fd < 0) return;
  fcntl(fd, F_SETFL, O_NONBLOCK); /* our own pipe or terminal: there are no other flags to keep */
  watch_start(&command->out[index], fd, READABLE, output_ready, command);
}

void stdio_watch(struct command *command, const struct stdio_pipes *pipes) {
  watch_output(command, 0, pipes->out[0]);
  watch_output(command, 1, pipes->errors[0]);
  command->in.fd = -1;
  if (pipes->in[1] < 0) return;
  fcntl(pipes->in[1], F_SETFL, O_NONBLOCK);
  watch_start(&command->in, pipes->in[1], 0, input_ready, command);
}

/* What a pipe with room takes need not be copied. Errors are left to `write_input`. */
static size_t write_at_once(struct command *command, const char *payload, size_t length) {
  if (command->input_length || !length) return 0;
  ssize_t sent = write(command->in.fd, payload, length);
  return sent < 0 ? 0 : (size_t)sent;
}

void stdio_queue_input(struct command *command, const char *payload, size_t length) {
  if (!length) command->input_eof = true;
  if (!command->input && length) command->input = malloc(INPUT_WINDOW);
  /* The host must respect the window; a peer that does not is not our host. */
  if (command->input_length + length > INPUT_WINDOW || (length && !command->input)) _exit(EXIT_SETUP_FAILED);
  if (command->in.fd < 0) {
    if (length) send_number_frame(FRAME_WINDOW, command->id, (uint32_t)length);
    return;
  }
  size_t written = write_at_once(command, payload, length);
  if (length > written) memcpy(command->input + command->input_length, payload + written, length - written);
  command->input_length += length - written;
  if (written) extend_input_window(command, written);
  write_input(command);
}

void stdio_resize(struct command *command, const unsigned char *payload, size_t length) {
  if (length != 4) return;
  struct winsize size = {.ws_col = (unsigned short)(payload[0] | payload[1] << 8),
                         .ws_row = (unsigned short)(payload[2] | payload[3] << 8)};
  ioctl(command->out[0].fd, TIOCSWINSZ, &size);
}

void stdio_resume(struct command *command) {
  for (int i = 0; i < 2; i++) watch_set_events(&command->out[i], READABLE);
  stdio_finish(command);
}

void stdio_add_window(struct command *command, uint32_t more) {
  command->send_window += more;
  if (command->send_window > (int64_t)WINDOW * 16) command->send_window = (int64_t)WINDOW * 16;
  stdio_resume(command);
}
