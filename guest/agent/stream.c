#include "agent.h"

#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/*
 * Streams between the host and the sandbox's own loopback: the host reaches a port in here, and connections to the
 * proxy's port go out to the host. There is no other way out of the network namespace.
 */

enum { MAX_STREAMS = 4096 };

struct stream {
  uint32_t id;
  struct watch socket;
  bool connecting, heard_end, sent_end; /* the ends of both directions */
  unsigned port;                        /* while connecting: where to */
  bool sixth;                           /* and whether IPv6 is being tried */
  int64_t credit;                       /* bytes that the host can still take */
  char *waiting;                        /* what the other side has not read yet */
  size_t waiting_start, waiting_length;
  uint32_t taken;                       /* bytes whose room was not given back yet */
  struct stream *next;
};

static struct stream *streams;
static int stream_count;
/* Ids that the host gives are below. */
static uint32_t next_id = 0x80000000u;

static struct stream *find_stream(uint32_t id) {
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (stream->id == id) return stream;
  return NULL;
}

static void forget(struct stream *stream) {
  for (struct stream **at = &streams; *at; at = &(*at)->next)
    if (*at == stream) {
      *at = stream->next;
      break;
    }
  watch_stop(&stream->socket);
  free(stream->waiting);
  free(stream);
  stream_count--;
}

static void drop(struct stream *stream) {
  report(FRAME_DROP, stream->id, "", 0);
  forget(stream);
}

static void set_events(struct stream *stream) {
  bool reads = !stream->sent_end && stream->credit > 0 && wire_has_room();
  watch_for(&stream->socket, (reads ? READABLE : 0) | (stream->waiting_length || stream->connecting ? WRITABLE : 0));
}

/* Returns whether the stream is still there. */
static bool push(struct stream *stream) {
  ssize_t sent = stream->waiting_length ? send(stream->socket.fd, stream->waiting + stream->waiting_start, stream->waiting_length, MSG_NOSIGNAL) : 0;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return drop(stream), false;
  if (sent > 0) {
    stream->waiting_length -= (size_t)sent;
    stream->waiting_start = stream->waiting_length ? stream->waiting_start + (size_t)sent : 0;
    stream->taken += (uint32_t)sent;
    /* In large pieces: less than a quarter that is held back leaves the host enough to go on with. */
    if (stream->taken >= STREAM_WINDOW / 4) {
      report_number(FRAME_WINDOW, stream->id, stream->taken);
      stream->taken = 0;
    }
  }
  if (stream->heard_end && !stream->waiting_length) shutdown(stream->socket.fd, SHUT_WR);
  return true;
}

static bool pull(struct stream *stream) {
  size_t most = stream->credit < CHUNK ? (size_t)stream->credit : CHUNK;
  ssize_t got = wire_pump(FRAME_DATA, stream->id, stream->socket.fd, most);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got < 0) return drop(stream), false;
  stream->credit -= got;
  if (got == 0) {
    stream->sent_end = true;
    report(FRAME_END, stream->id, "", 0);
  }
  return true;
}

static void stream_ready(struct watch *watch, uint32_t events);

static int open_socket(unsigned port, bool sixth) {
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(sixth ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
  if (fd < 0) return -1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  int failed = sixth ? connect(fd, (struct sockaddr *)&six, sizeof six) : connect(fd, (struct sockaddr *)&four, sizeof four);
  if (!failed || errno == EINPROGRESS) return fd;
  close(fd);
  return -1;
}

static void refuse(struct stream *stream) {
  char text[64];
  int length = snprintf(text, sizeof text, "nothing listens on port %u", stream->port);
  report(FRAME_REFUSED, stream->id, text, (size_t)length);
  forget(stream);
}

static void try_connect(struct stream *stream) {
  int fd = open_socket(stream->port, stream->sixth);
  if (fd < 0 && !stream->sixth) {
    stream->sixth = true;
    fd = open_socket(stream->port, true);
  }
  if (fd < 0) return refuse(stream);
  watch_start(&stream->socket, fd, WRITABLE, stream_ready, stream);
}

static void connected(struct stream *stream) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(stream->socket.fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error && !stream->sixth) {
    watch_stop(&stream->socket);
    stream->sixth = true;
    return try_connect(stream);
  }
  if (error) return refuse(stream);
  stream->connecting = false;
  report(FRAME_STARTED, stream->id, "", 0);
  set_events(stream);
}

static void stream_ready(struct watch *watch, uint32_t events) {
  struct stream *stream = watch->owner;
  if (stream->connecting) return connected(stream);
  if ((events & WRITABLE) && !push(stream)) return;
  if ((events & ~(uint32_t)WRITABLE) && !stream->sent_end && stream->credit > 0 && !pull(stream)) return;
  if (stream->sent_end && stream->heard_end && !stream->waiting_length) return forget(stream);
  if ((events & 0x18 /* EPOLLERR | EPOLLHUP */) && stream->sent_end) return drop(stream);
  set_events(stream);
}

static struct stream *new_stream(uint32_t id) {
  struct stream *stream = stream_count < MAX_STREAMS ? calloc(1, sizeof *stream) : NULL;
  if (!stream) return NULL;
  *stream = (struct stream){.id = id, .credit = WINDOW, .next = streams, .socket = {.fd = -1}};
  streams = stream;
  stream_count++;
  return stream;
}

void stream_connect(uint32_t id, unsigned port) {
  struct stream *stream = port && port < 65536 && !find_stream(id) ? new_stream(id) : NULL;
  if (!stream) return report(FRAME_REFUSED, id, "bad stream", 10);
  stream->connecting = true;
  stream->port = port;
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
  report(FRAME_TUNNEL, stream->id, "", 0);
  watch_start(&stream->socket, fd, READABLE, stream_ready, stream);
}

static int listen_on(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
  if (fd < 0) die("tunnel: %s", strerror(errno));
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  /* Who speaks to a proxy speaks first: it hears of a client with its first bytes, and not once more before. */
  setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &on, sizeof on);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024)) die("tunnel: %s", strerror(errno));
  return fd;
}

void stream_listen(int port) {
  static struct watch listening;
  watch_start(&listening, listen_on(port), READABLE, accept_stream, NULL);
}

/* Whether the host has it. Without a free descriptor it gets the letter and not what was in it, and says so. */
static bool is_taken(int by) {
  char answer[256];
  size_t got = 0;
  while (got < sizeof answer - 1 && !memchr(answer, '\n', got)) {
    ssize_t more = read(by, answer + got, sizeof answer - 1 - got);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return false;
    got += (size_t)more;
  }
  answer[got] = 0;
  return strstr(answer, "NODE_HANDLE_ACK");
}

/*
 * In Node's own language for descriptors that come from a child. SECURITY: nothing of a guest has run yet, and when it
 * does this channel is closed.
 */
void stream_hand_over(int port, int to) {
  static const char LETTER[] = "\"cmd\":\"NODE_HANDLE\",\"type\":\"net.Native\",\"msg\":\"proxy\"}\n";
  int fd = listen_on(port);
  if (!send_message(to, '{', LETTER, sizeof LETTER - 1, fd)) die("tunnel: %s", strerror(errno));
  if (!is_taken(to)) die("tunnel: the host did not take its socket; it may have too many open files");
  close(fd);
  close(to);
}

/* PLATFORM: since Linux 6.3; older headers do not name them. */
#define LINK_SENT_AT_ONCE 63
#define LINK_RECEIVED_AT_ONCE 64
#define LOOPBACK_INDEX 1
#define LARGEST_PIECE (8 * 65535)

/*
 * Lets loopback carry pieces larger than 64 KiB: what comes in bulk through the proxy then passes the kernel in fewer
 * steps. Where the kernel does not know how, it goes on as before.
 */
void stream_widen_loopback(void) {
  struct attribute {
    struct rtattr head;
    uint32_t value;
  };
  struct {
    struct nlmsghdr head;
    struct ifinfomsg link;
    struct attribute sent, received;
  } request = {
      .head = {.nlmsg_len = sizeof request, .nlmsg_type = RTM_NEWLINK, .nlmsg_flags = NLM_F_REQUEST},
      .link = {.ifi_index = LOOPBACK_INDEX},
      .sent = {{sizeof(struct attribute), LINK_SENT_AT_ONCE}, LARGEST_PIECE},
      .received = {{sizeof(struct attribute), LINK_RECEIVED_AT_ONCE}, LARGEST_PIECE},
  };
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return;
  send(fd, &request, sizeof request, 0);
  close(fd);
}

static void take_data(struct stream *stream, const char *payload, size_t length) {
  if (!stream->waiting && !(stream->waiting = malloc(STREAM_WINDOW))) _exit(125);
  /* The host keeps to the window that it was given; one that does not is not ours. */
  if (stream->waiting_length + length > STREAM_WINDOW || stream->connecting) _exit(125);
  if (stream->waiting_start + stream->waiting_length + length > STREAM_WINDOW) {
    memmove(stream->waiting, stream->waiting + stream->waiting_start, stream->waiting_length);
    stream->waiting_start = 0;
  }
  memcpy(stream->waiting + stream->waiting_start + stream->waiting_length, payload, length);
  stream->waiting_length += length;
  if (push(stream)) set_events(stream);
}

/* The host has gone. If it had said everything first, what the other side has not read yet still reaches it. */
static void leave(struct stream *stream) {
  if (!stream->heard_end || !stream->waiting_length) return forget(stream);
  stream->sent_end = true;
  set_events(stream);
}

bool stream_frame(enum frame_type type, uint32_t id, char *payload, size_t length) {
  struct stream *stream = find_stream(id);
  if (!stream) return false;
  if (type == FRAME_DROP) leave(stream);
  else if (type == FRAME_DATA && !stream->heard_end) take_data(stream, payload, length);
  else if (type == FRAME_WINDOW) {
    stream->credit += number_of(payload, length);
    if (stream->credit > (int64_t)WINDOW * 16) stream->credit = (int64_t)WINDOW * 16;
    if (!stream->connecting) set_events(stream);
  } else if (type == FRAME_END && !stream->heard_end) {
    stream->heard_end = true;
    if (!push(stream)) return true;
    if (stream->sent_end && !stream->waiting_length) forget(stream);
  }
  return true;
}

void streams_have_room(void) {
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (!stream->connecting) set_events(stream);
}
