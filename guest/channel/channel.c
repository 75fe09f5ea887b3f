/*
 * ringfence-channel: the end of the channel in a Pod. It runs in a container of its own beside the sandbox, so that neither the
 * key nor the code that reads bytes of strangers is in reach of the sandbox's commands.
 *
 *   control plane ══ TLS, certificates on both ends ══▶ ringfence-channel ── Unix socket ──▶ agent (PID 1 of the sandbox)
 *
 * usage: ringfence-channel PORT SOCKET SECONDS TAKEOVER
 * The environment holds the certificate, its key and the authority (PEM). Ends when the agent is gone, when nobody connected within
 * SECONDS, or when the control plane is gone and no other one connected within TAKEOVER seconds.
 */
#include "channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
  PEERS = 16,             /* connections that are open at once; strangers may hold the others */
  HANDSHAKE_MS = 10000,   /* a connection that did not prove itself by then is closed */
  HELLO_BYTES = 16,       /* "rfchan1\n", then the epoch (8 bytes, little endian) */
  PIECE = 64 * 1024,      /* bytes that are relayed at once in each direction */
  KEEPALIVE_SECONDS = 10, /* a control plane whose machine is gone is noticed after about half a minute */
};

static const char MAGIC[8] = "rfchan1\n";

enum phase { FREE, HANDSHAKE, HELLO, WAITING, ACTIVE };

struct peer {
  enum phase phase;
  int fd;
  int64_t deadline;
  struct secure *secure;
  unsigned char hello[HELLO_BYTES];
  size_t greeted;
};

struct bytes {
  unsigned char data[PIECE];
  size_t start, end;
};

static struct peer peers[PEERS];
static struct peer *active;
static uint64_t epoch;
static int agent = -1, agent_listener = -1, listener = -1;
static const char *socket_path;
static struct bytes to_agent, to_host;
/* How long another control plane is waited for, and until when one must have connected. */
static int64_t takeover_ms, until;
/* The agent was told that its control plane is gone, and has not started again yet. */
static bool restarting;
/* The kubelet ends the Pod. */
static volatile sig_atomic_t told_to_end;

static int64_t now_ms(void) {
  struct timespec at;
  clock_gettime(CLOCK_BOOTTIME, &at);
  return (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

static void on_sigterm(int signal) {
  (void)signal;
  told_to_end = 1;
}

_Noreturn void fail(const char *what) {
  fprintf(stderr, "ringfence-channel: %s\n", what);
  exit(1);
}

static void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

static int listen_tcp(const char *port) {
  struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), off = 0, on = 1;
  if (fd >= 0) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, PEERS)) return fd;
    close(fd);
  }
  /* A node without IPv6. */
  struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&old, sizeof old) || listen(fd, PEERS)) fail("cannot listen");
  return fd;
}

static int listen_for_agent(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  unlink(path);
  umask(0);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1))
    fail("cannot create the socket");
  return fd;
}

static void drop(struct peer *peer) {
  if (peer->secure) secure_close(peer->secure);
  close(peer->fd);
  *peer = (struct peer){.fd = -1};
}

/*
 * SECURITY: if all slots are taken, the oldest connection that has not authenticated is closed. Otherwise silent
 * connections would keep the control plane out.
 */
static struct peer *place_for_peer(void) {
  struct peer *oldest = NULL;
  for (struct peer *peer = peers; peer < peers + PEERS; peer++) {
    if (peer->phase == FREE) return peer;
    if (peer->phase == HANDSHAKE && (!oldest || peer->deadline < oldest->deadline)) oldest = peer;
  }
  if (oldest) drop(oldest);
  return oldest;
}

static void accept_peer(void) {
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), on = 1, idle = KEEPALIVE_SECONDS, count = 3;
  if (fd < 0) return;
  struct peer *peer = place_for_peer();
  if (!peer) {
    close(fd);
    return;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  *peer = (struct peer){.phase = HANDSHAKE, .fd = fd, .deadline = now_ms() + HANDSHAKE_MS};
  peer->secure = secure_open(&peer->fd);
}

/* SECURITY: PID 1 connects before any command of the sandbox exists, and nobody can after it. */
static void accept_agent(void) {
  agent = accept4(agent_listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (agent < 0) return;
  unlink(socket_path);
  close(agent_listener);
  agent_listener = -1;
}

_Noreturn static void end(const char *why) {
  if (active) secure_close(active->secure);
  fprintf(stderr, "ringfence-channel: %s\n", why);
  exit(0);
}

/*
 * A half-sent frame must not be continued by somebody else, so the agent starts again for the next control plane. It ends every
 * command first; that the other direction stays open lets it hand over its new connection (guest/agent/init/pod_takeover.c).
 */
static void lose_control_plane(const char *why) {
  if (!takeover_ms) end(why);
  fprintf(stderr, "ringfence-channel: %s\n", why);
  if (active) drop(active);
  active = NULL;
  to_agent.start = to_agent.end = to_host.start = to_host.end = 0;
  until = now_ms() + takeover_ms;
  if (agent < 0 || restarting) return;
  shutdown(agent, SHUT_WR);
  restarting = true;
}

static void agent_started_again(int connection) {
  if (active && active->phase == ACTIVE) lose_control_plane("the agent's lease is over");
  to_host.start = to_host.end = 0;
  close(agent);
  agent = connection;
  set_nonblocking(agent);
  restarting = false;
}

/* SECURITY: an epoch is used once. A server with an older epoch has been replaced; a newer one replaces the present one. */
static void greet(struct peer *peer) {
  uint64_t number = 0;
  for (int i = 0; i < 8; i++) number |= (uint64_t)peer->hello[8 + i] << (8 * i);
  if (memcmp(peer->hello, MAGIC, sizeof MAGIC) || number <= epoch || (active && !takeover_ms)) {
    secure_write(peer->secure, (const unsigned char *)"S", 1);
    drop(peer);
    return;
  }
  if (active) lose_control_plane("another control plane has taken over");
  epoch = number;
  active = peer;
  peer->phase = WAITING;
}

static void advance(struct peer *peer) {
  if (peer->phase == HANDSHAKE) {
    int done = secure_handshake(peer->secure);
    if (done < 0) return drop(peer);
    if (!done) return;
    peer->phase = HELLO;
  }
  if (peer->phase != HELLO) return;
  int got = secure_read(peer->secure, peer->hello + peer->greeted, HELLO_BYTES - peer->greeted);
  if (got < 0) return drop(peer);
  peer->greeted += (size_t)got;
  if (peer->greeted == HELLO_BYTES) greet(peer);
}

static void welcome(void) {
  if (!active || active->phase != WAITING || agent < 0 || restarting) return;
  secure_write(active->secure, (const unsigned char *)"K", 1);
  fill_mounts(&(struct fill_peer){.fd = active->fd, .secure = active->secure});
  active->phase = ACTIVE;
}

static bool flush_to_agent(void) {
  while (to_agent.start < to_agent.end) {
    ssize_t sent = write(agent, to_agent.data + to_agent.start, to_agent.end - to_agent.start);
    if (sent < 0 && errno == EAGAIN) return false;
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) end("the agent is gone");
    to_agent.start += (size_t)sent;
  }
  to_agent.start = to_agent.end = 0;
  return true;
}

static bool flush_to_host(void) {
  while (to_host.start < to_host.end) {
    int sent = secure_write(active->secure, to_host.data + to_host.start, to_host.end - to_host.start);
    if (sent < 0) return lose_control_plane("the control plane is gone"), false;
    if (!sent) return false;
    to_host.start += (size_t)sent;
  }
  to_host.start = to_host.end = 0;
  return true;
}

static void relay_to_agent(void) {
  while (flush_to_agent()) {
    int got = secure_read(active->secure, to_agent.data, PIECE);
    if (got < 0) return lose_control_plane("the control plane is gone");
    if (!got) return;
    to_agent.end = (size_t)got;
  }
}

/* Returns what read(2) would; a new connection of the agent may come with the last byte of the old one. */
static ssize_t read_agent(int *connection) {
  char space[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec data = {to_host.data, PIECE};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  ssize_t got = recvmsg(agent, &message, MSG_CMSG_CLOEXEC);
  struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
  *connection = -1;
  if (header && header->cmsg_type == SCM_RIGHTS) memcpy(connection, CMSG_DATA(header), sizeof *connection);
  return got;
}

/* Whether there are bytes for the control plane. */
static bool take_from_agent(void) {
  int connection;
  ssize_t got = read_agent(&connection);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) end("the agent is gone");
  to_host.end = (size_t)got - (connection >= 0);
  if (connection < 0) return true;
  /* Its last frame says why. */
  if (active && active->phase == ACTIVE) flush_to_host();
  return agent_started_again(connection), false;
}

static void relay_to_host(void) {
  while (active && flush_to_host() && take_from_agent()) continue;
}

/* What an agent that ends its commands still had to say is for nobody. */
static void drain_agent(void) {
  while (restarting && take_from_agent()) to_host.end = 0;
}

static void close_late(int64_t now) {
  for (struct peer *peer = peers; peer < peers + PEERS; peer++)
    if ((peer->phase == HANDSHAKE || peer->phase == HELLO) && now > peer->deadline) drop(peer);
}

/* While bytes wait for one side, the other side is not read. */
static short events_of(const struct peer *peer) {
  if (peer != active) return (short)(POLLIN | (secure_wants_write(peer->secure) ? POLLOUT : 0));
  bool full = to_agent.start < to_agent.end, waits = to_host.start < to_host.end || secure_wants_write(peer->secure);
  return (short)((full ? 0 : POLLIN) | (waits ? POLLOUT : 0));
}

static void wait_for_events(void) {
  struct pollfd waits[PEERS + 3];
  nfds_t count = 0;
  waits[count++] = (struct pollfd){.fd = listener, .events = POLLIN};
  waits[count++] = (struct pollfd){.fd = agent_listener, .events = POLLIN};
  bool serves = active && active->phase == ACTIVE;
  short wanted = (short)((to_host.start < to_host.end ? 0 : POLLIN) | (to_agent.start < to_agent.end ? POLLOUT : 0));
  waits[count++] = (struct pollfd){.fd = serves || restarting ? agent : -1, .events = restarting ? POLLIN : wanted};
  for (struct peer *peer = peers; peer < peers + PEERS; peer++)
    if (peer->phase != FREE && peer->phase != WAITING)
      waits[count++] = (struct pollfd){.fd = peer->fd, .events = events_of(peer)};
  poll(waits, count, 500);
  if (waits[0].revents) accept_peer();
  if (waits[1].revents) accept_agent();
}

static void prepare(char **argv) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTERM, on_sigterm);
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  for (struct peer *peer = peers; peer < peers + PEERS; peer++) peer->fd = -1;
  secure_setup();
  socket_path = argv[2];
  agent_listener = listen_for_agent(socket_path);
  listener = listen_tcp(argv[1]);
  set_nonblocking(listener);
  set_nonblocking(agent_listener);
}

int main(int argc, char **argv) {
  if (argc != 5) fail("it is started by ringfence, not by hand");
  prepare(argv);
  until = now_ms() + (int64_t)atoi(argv[3]) * 1000;
  takeover_ms = (int64_t)atoi(argv[4]) * 1000;
  for (;;) {
    wait_for_events();
    /* PID 1 ignores signals without a handler, and the Pod would run until the end of its grace period. The agent ends with us. */
    if (told_to_end) end("the Pod is being removed");
    int64_t now = now_ms();
    for (struct peer *peer = peers; peer < peers + PEERS; peer++)
      if (peer->phase == HANDSHAKE || peer->phase == HELLO) advance(peer);
    close_late(now);
    if (!active && now > until) end("nobody connected in time");
    drain_agent();
    welcome();
    if (active && active->phase == ACTIVE) relay_to_agent();
    if (active && active->phase == ACTIVE) relay_to_host();
  }
}
