#include "session/tcp/streams.h"
#include "common/channel.h"
#include "common/event_loop.h"
#include "session/commands.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/*
 * The host opens a stream to a port in the sandbox, and connections to the proxy's port become streams to the host.
 * There is no other way out of the network namespace.
 */

enum { MAX_STREAMS = 4096, MAX_SOCKETS_ASKED = 32 };

struct stream {
  uint32_t id;
  struct watch socket;
  bool connecting, host_ended, guest_ended; /* end of data in each direction */
  unsigned port;                            /* while connecting */
  bool ipv6;                                /* while connecting: IPv6 is being tried */
  bool waits;                               /* its socket was not asked for yet */
  uint32_t command;                         /* the isolated command whose port it is; 0: the sandbox's own network */
  int64_t send_window;                      /* bytes that the host can still receive */
  char *pending;                            /* data that the socket has not accepted yet */
  size_t pending_start, pending_length;
  uint32_t unacknowledged; /* bytes written to the socket that the host's window was not extended by yet */
  struct stream *next;
};

static struct stream *streams;
static int stream_count;
/* Ids that the host assigns are lower. */
static uint32_t next_id = 0x80000000u;

static struct stream *find_stream(uint32_t id) {
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (stream->id == id) return stream;
  return NULL;
}

static void free_stream(struct stream *stream) {
  for (struct stream **at = &streams; *at; at = &(*at)->next)
    if (*at == stream) {
      *at = stream->next;
      break;
    }
  watch_close(&stream->socket);
  free(stream->pending);
  free(stream);
  stream_count--;
}

static void reset_stream(struct stream *stream) {
  send_frame(FRAME_DROP, stream->id, "", 0);
  free_stream(stream);
}

static void set_events(struct stream *stream) {
  bool reads = !stream->guest_ended && stream->send_window > 0 && channel_has_room();
  watch_set_events(&stream->socket,
                   (reads ? READABLE : 0) | (stream->pending_length || stream->connecting ? WRITABLE : 0));
}

/* Returns false when the stream was closed. */
static bool write_pending(struct stream *stream) {
  ssize_t sent = stream->pending_length ? send(stream->socket.fd, stream->pending + stream->pending_start,
                                               stream->pending_length, MSG_NOSIGNAL)
                                        : 0;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return reset_stream(stream), false;
  if (sent > 0) {
    stream->pending_length -= (size_t)sent;
    stream->pending_start = stream->pending_length ? stream->pending_start + (size_t)sent : 0;
    stream->unacknowledged += (uint32_t)sent;
    /* Extends the window in large steps; the remaining three quarters are enough for the host to continue. */
    if (stream->unacknowledged >= STREAM_WINDOW / 4) {
      send_number_frame(FRAME_WINDOW, stream->id, stream->unacknowledged);
      stream->unacknowledged = 0;
    }
  }
  if (stream->host_ended && !stream->pending_length) shutdown(stream->socket.fd, SHUT_WR);
  return true;
}

static bool read_socket(struct stream *stream) {
  size_t most = stream->send_window < MAX_BYTES ? (size_t)stream->send_window : MAX_BYTES;
  ssize_t got = channel_forward(FRAME_DATA, stream->id, stream->socket.fd, most);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got < 0) return reset_stream(stream), false;
  stream->send_window -= got;
  if (got == 0) {
    stream->guest_ended = true;
    send_frame(FRAME_END, stream->id, "", 0);
  }
  return true;
}

static void stream_ready(struct watch *watch, uint32_t events);

int open_stream_socket(bool ipv6) {
  return socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Connects a socket to a port, or closes it. Returns the socket or -1. */
static int connect_socket(int fd, unsigned port, bool ipv6) {
  struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                             .sin6_port = htons((uint16_t)port),
                             .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  struct sockaddr_in four = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int on = 1;
  if (fd < 0) return -1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  int failed =
      ipv6 ? connect(fd, (struct sockaddr *)&six, sizeof six) : connect(fd, (struct sockaddr *)&four, sizeof four);
  if (!failed || errno == EINPROGRESS) return fd;
  close(fd);
  return -1;
}

static void refuse_stream(struct stream *stream) {
  char text[64];
  int length = snprintf(text, sizeof text, "nothing listens on port %u", stream->port);
  send_frame(FRAME_REFUSED, stream->id, text, (size_t)length);
  free_stream(stream);
}

static void try_connect(struct stream *stream);

static void use_socket(struct stream *stream, int socket) {
  int fd = connect_socket(socket, stream->port, stream->ipv6);
  if (fd >= 0) return watch_start(&stream->socket, fd, WRITABLE, stream_ready, stream);
  if (stream->ipv6) return refuse_stream(stream);
  stream->ipv6 = true;
  try_connect(stream);
}

/*
 * A socket belongs to the network that it was created in, so an isolated command's namespace init creates it. SECURITY: that
 * process may be stopped, or wait until we read its messages. Only a few requests are on their way to it, so that we never wait for it.
 */
static void ask_for_socket(struct stream *stream, struct command *command) {
  stream->waits = command->sockets_asked >= MAX_SOCKETS_ASKED;
  if (stream->waits) return;
  if (!command_ask_for_socket(command, stream->id, stream->ipv6)) return refuse_stream(stream);
  command->sockets_asked++;
}

static void try_connect(struct stream *stream) {
  if (!stream->command) return use_socket(stream, open_stream_socket(stream->ipv6));
  struct command *command = command_find(stream->command);
  if (command) ask_for_socket(stream, command);
  else refuse_stream(stream);
}

/* The list begins with the newest one. */
static struct stream *oldest_waiting(uint32_t command) {
  struct stream *oldest = NULL;
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (stream->waits && stream->command == command) oldest = stream;
  return oldest;
}

void stream_take_socket(uint32_t id, struct command *command, int fd) {
  struct stream *stream = find_stream(id), *next;
  bool awaited =
      stream && stream->command == command->id && stream->connecting && stream->socket.fd < 0 && !stream->waits;
  if (command->sockets_asked) command->sockets_asked--;
  if (awaited) use_socket(stream, fd);
  else if (fd >= 0) close(fd);
  while (command->sockets_asked < MAX_SOCKETS_ASKED && (next = oldest_waiting(command->id)))
    ask_for_socket(next, command);
}

void streams_forget_command(uint32_t command) {
  for (struct stream *stream = streams, *next; stream; stream = next) {
    next = stream->next;
    if (stream->command == command && stream->connecting && stream->socket.fd < 0) refuse_stream(stream);
  }
}

static void on_connected(struct stream *stream) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(stream->socket.fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error && !stream->ipv6) {
    watch_close(&stream->socket);
    stream->ipv6 = true;
    return try_connect(stream);
  }
  if (error) return refuse_stream(stream);
  stream->connecting = false;
  send_frame(FRAME_STARTED, stream->id, "", 0);
  set_events(stream);
}

static void stream_ready(struct watch *watch, uint32_t events) {
  struct stream *stream = watch->owner;
  if (stream->connecting) return on_connected(stream);
  if ((events & WRITABLE) && !write_pending(stream)) return;
  if ((events & ~(uint32_t)WRITABLE) && !stream->guest_ended && stream->send_window > 0 && !read_socket(stream)) return;
  if (stream->guest_ended && stream->host_ended && !stream->pending_length) return free_stream(stream);
  if ((events & 0x18 /* EPOLLERR | EPOLLHUP */) && stream->guest_ended) return reset_stream(stream);
  set_events(stream);
}

static struct stream *new_stream(uint32_t id) {
  struct stream *stream = stream_count < MAX_STREAMS ? calloc(1, sizeof *stream) : NULL;
  if (!stream) return NULL;
  *stream = (struct stream){.id = id, .send_window = WINDOW, .next = streams, .socket = {.fd = -1}};
  streams = stream;
  stream_count++;
  return stream;
}

void stream_connect(uint32_t id, unsigned port, uint32_t command) {
  struct stream *stream = port && port < 65536 && !find_stream(id) ? new_stream(id) : NULL;
  if (!stream) return send_frame(FRAME_REFUSED, id, "bad stream", 10);
  stream->connecting = true;
  stream->port = port;
  stream->command = command;
  try_connect(stream);
}

static void accept_stream(struct watch *watch, uint32_t events) {
  (void)events;
  int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), on = 1;
  if (fd < 0) return;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct stream *stream = new_stream(next_id);
  if (!stream) {
    close(fd);
    return;
  }
  next_id = (next_id + 1) | 0x80000000u;
  uint32_t command = (uint32_t)(uintptr_t)watch->owner;
  if (command) send_number_frame(FRAME_TUNNEL, stream->id, command);
  else send_frame(FRAME_TUNNEL, stream->id, "", 0);
  watch_start(&stream->socket, fd, READABLE, stream_ready, stream);
}

void stream_listen(int port) {
  static struct watch listening;
  watch_start(&listening, listen_on_loopback(port), READABLE, accept_stream, NULL);
}

void stream_listen_for(struct watch *watch, int fd, uint32_t command) {
  watch_start(watch, fd, READABLE, accept_stream, (void *)(uintptr_t)command);
}

static void queue_data(struct stream *stream, const char *payload, size_t length) {
  if (!stream->pending && !(stream->pending = malloc(STREAM_WINDOW))) _exit(EXIT_SETUP_FAILED);
  /* The host must respect the window; a peer that does not is not our host. */
  if (stream->pending_length + length > STREAM_WINDOW || stream->connecting) _exit(EXIT_SETUP_FAILED);
  if (stream->pending_start + stream->pending_length + length > STREAM_WINDOW) {
    memmove(stream->pending, stream->pending + stream->pending_start, stream->pending_length);
    stream->pending_start = 0;
  }
  memcpy(stream->pending + stream->pending_start + stream->pending_length, payload, length);
  stream->pending_length += length;
  if (write_pending(stream)) set_events(stream);
}

/* The host closed the stream. If it had ended its data before, the rest is still delivered. */
static void close_by_host(struct stream *stream) {
  if (!stream->host_ended || !stream->pending_length) return free_stream(stream);
  stream->guest_ended = true;
  set_events(stream);
}

bool stream_handle_frame(enum frame_type type, uint32_t id, char *payload, size_t length) {
  struct stream *stream = find_stream(id);
  if (!stream) return false;
  if (type == FRAME_DROP) close_by_host(stream);
  else if (type == FRAME_DATA && !stream->host_ended) queue_data(stream, payload, length);
  else if (type == FRAME_WINDOW) {
    stream->send_window += payload_number(payload, length);
    if (stream->send_window > (int64_t)WINDOW * 16) stream->send_window = (int64_t)WINDOW * 16;
    if (!stream->connecting) set_events(stream);
  } else if (type == FRAME_END && !stream->host_ended) {
    stream->host_ended = true;
    if (!write_pending(stream)) return true;
    if (stream->guest_ended && !stream->pending_length) free_stream(stream);
  }
  return true;
}

void streams_resume(void) {
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (!stream->connecting) set_events(stream);
}
