#include "common/channel.h"
#include "common/event_loop.h"
#include "common/message.h"

#include <stdarg.h>

int control_fd = -1;
int control_out = -1;
int child_socket = -1;
void (*on_host_gone)(void);
void (*frame_relay)(enum frame_type type, const void *payload, size_t length);

enum { HIGH_WATER = 1 << 20 };

/* Bytes that wait to be sent, or received bytes that wait to be parsed. */
struct buffer {
  char *bytes;
  size_t start, end, room;
};

static struct buffer outgoing, incoming;
static struct watch channel, output;
static bool nonblocking;
static bool room_awaited; /* somebody was told that the queue is full */
static void (*frame_handler)(enum frame_type, uint32_t, char *, size_t);
static void (*room_handler)(void);

static char *reserve(struct buffer *buffer, size_t length) {
  if (buffer->start == buffer->end) buffer->start = buffer->end = 0;
  if (buffer->end + length > buffer->room && buffer->start > 0) {
    memmove(buffer->bytes, buffer->bytes + buffer->start, buffer->end - buffer->start);
    buffer->end -= buffer->start;
    buffer->start = 0;
  }
  if (buffer->end + length > buffer->room) {
    buffer->room = (buffer->end + length) * 2;
    buffer->bytes = realloc(buffer->bytes, buffer->room);
    if (!buffer->bytes) _exit(EXIT_SETUP_FAILED);
  }
  return buffer->bytes + buffer->end;
}

static void write_u32(char *at, uint32_t number) {
  for (int i = 0; i < 4; i++) at[i] = (char)(number >> (8 * i));
}

static uint32_t read_u32(const char *at) {
  uint32_t number = 0;
  for (int i = 0; i < 4; i++) number |= (uint32_t)(unsigned char)at[i] << (8 * i);
  return number;
}

static void write_header(char *at, enum frame_type type, uint32_t id, size_t length) {
  at[0] = (char)type;
  write_u32(at + 1, id);
  write_u32(at + 5, (uint32_t)length);
}

_Noreturn void host_gone(void) {
  if (on_host_gone) on_host_gone();
  _exit(EXIT_HOST_GONE);
}

/* Returns whether the queue is empty. Exits when the host is gone. */
static bool flush(void) {
  while (outgoing.start < outgoing.end) {
    ssize_t sent = write(control_out >= 0 ? control_out : control_fd, outgoing.bytes + outgoing.start,
                         outgoing.end - outgoing.start);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent <= 0) host_gone();
    outgoing.start += (size_t)sent;
  }
  return outgoing.start == outgoing.end;
}

/* Any frame may empty the queue: commands that wait for room resume from the event loop, not from this call. */
static void send_queue(void) {
  bool done = flush() && !room_awaited;
  if (!nonblocking) return;
  if (control_out >= 0) watch_set_events(&output, done ? 0 : WRITABLE);
  else watch_set_events(&channel, done ? READABLE : READABLE | WRITABLE);
}

void send_frame(enum frame_type type, uint32_t id, const void *payload, size_t length) {
  if (frame_relay) return frame_relay(type, payload, length);
  if (control_fd < 0) return;
  char *at = reserve(&outgoing, FRAME_HEADER + length);
  write_header(at, type, id, length);
  memcpy(at + FRAME_HEADER, payload, length);
  outgoing.end += FRAME_HEADER + length;
  send_queue();
}

void send_number_frame(enum frame_type type, uint32_t id, uint32_t number) {
  char bytes[4];
  write_u32(bytes, number);
  send_frame(type, id, bytes, sizeof bytes);
}

uint32_t payload_number(const char *payload, size_t length) {
  uint32_t number = 0;
  for (size_t i = 0; i < length && i < 4; i++) number |= (uint32_t)(unsigned char)payload[i] << (8 * i);
  return number;
}

ssize_t channel_forward(enum frame_type type, uint32_t id, int fd, size_t most) {
  char *at = reserve(&outgoing, FRAME_HEADER + most);
  ssize_t got = read(fd, at + FRAME_HEADER, most);
  if (got <= 0) return got;
  write_header(at, type, id, (size_t)got);
  outgoing.end += FRAME_HEADER + (size_t)got;
  send_queue();
  return got;
}

bool channel_has_room(void) {
  bool has_room = outgoing.end - outgoing.start < HIGH_WATER;
  if (!has_room) room_awaited = true;
  return has_room;
}

static struct frame_header parse_header(const char *at) {
  return (struct frame_header){(enum frame_type)(unsigned char)at[0], read_u32(at + 1), read_u32(at + 5)};
}

char *read_setup_frame(struct frame_header *header, void (*read_bytes)(void *to, size_t length)) {
  char bytes[FRAME_HEADER];
  read_bytes(bytes, sizeof bytes);
  *header = parse_header(bytes);
  char *payload = header->length > MAX_SETUP_FRAME ? NULL : malloc(header->length + 1);
  if (!payload) die("configuration: too long");
  read_bytes(payload, header->length);
  payload[header->length] = 0;
  return payload;
}

void channel_read_blocking(void *to, size_t length) {
  for (size_t got = 0; got < length;) {
    ssize_t more = read(control_fd, (char *)to + got, length - got);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0 && on_host_gone) host_gone();
    if (more <= 0) _exit(EXIT_SETUP_FAILED);
    got += (size_t)more;
  }
}

static void dispatch_frames(void) {
  while (incoming.end - incoming.start >= FRAME_HEADER) {
    char *at = incoming.bytes + incoming.start;
    struct frame_header header = parse_header(at);
    if (header.length > MAX_HOST_FRAME) _exit(EXIT_SETUP_FAILED);
    if (incoming.end - incoming.start < FRAME_HEADER + header.length) return;
    incoming.start += FRAME_HEADER + header.length;
    frame_handler(header.type, header.id, at + FRAME_HEADER, header.length);
  }
}

static void read_channel(void) {
  char *at = reserve(&incoming, MAX_BYTES);
  ssize_t got = read(control_fd, at, MAX_BYTES);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) host_gone();
  incoming.end += (size_t)got;
  dispatch_frames();
}

static void channel_ready(struct watch *watch, uint32_t events) {
  (void)watch;
  if (events & WRITABLE) {
    bool was_awaited = room_awaited;
    room_awaited = false;
    send_queue();
    if (was_awaited && channel_has_room()) room_handler();
  }
  if (events & ~(uint32_t)WRITABLE) read_channel();
}

static void output_ready(struct watch *watch, uint32_t events) {
  (void)events; /* a closed channel is noticed when writing fails */
  channel_ready(watch, WRITABLE);
}

void channel_open(void (*on_frame)(enum frame_type, uint32_t, char *, size_t), void (*on_room)(void)) {
  frame_handler = on_frame;
  room_handler = on_room;
  fcntl(control_fd, F_SETFL, fcntl(control_fd, F_GETFL) | O_NONBLOCK);
  nonblocking = true;
  if (control_out >= 0) {
    fcntl(control_out, F_SETFL, fcntl(control_out, F_GETFL) | O_NONBLOCK);
    watch_start(&output, control_out, 0, output_ready, NULL);
  }
  watch_start(&channel, control_fd, READABLE, channel_ready, NULL);
  send_queue();
}

void channel_forget(void) {
  outgoing = incoming = (struct buffer){0};
  nonblocking = room_awaited = false;
  control_fd = control_out = -1;
}

/* More violations of one command tell nothing new, and would let it flood the host. */
enum { VIOLATIONS_REPORTED = 256 };

static uint32_t violation_owner;
static int reported;

void set_violation_owner(uint32_t id, bool afresh) {
  violation_owner = id;
  if (afresh) reported = 0;
}

void report_violation(const char *guarantee, const char *format, ...) {
  if (reported++ >= VIOLATIONS_REPORTED) return;
  char text[2048];
  size_t used = strlen(guarantee) + 1;
  memcpy(text, guarantee, used);
  va_list arguments;
  va_start(arguments, format);
  int more = vsnprintf(text + used, sizeof text - used, format, arguments);
  va_end(arguments);
  size_t length = used + (more < 0 ? 0 : (size_t)more);
  send_frame(FRAME_VIOLATION, violation_owner, text, length < sizeof text ? length : sizeof text - 1);
}

_Noreturn void die(const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (child_socket >= 0) send_message(child_socket, MESSAGE_FAILED, text, strlen(text), -1);
  else if (control_fd >= 0) send_frame(FRAME_ERROR, 0, text, strlen(text));
  else dprintf(2, "ringfence: launch-failed: %s\n", text);
  _exit(EXIT_SETUP_FAILED);
}
