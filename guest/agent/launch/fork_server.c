#include "common/channel.h"
#include "common/event_loop.h"
#include "common/message.h"
#include "launch/launch.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

/*
 * `fork-server`: starts launchers for the host's process. A fork of Node copies the page tables of a large process and blocks its
 * only thread until the child has executed its program; a fork of this small process takes a tenth of that, and Node does not wait.
 *
 * Descriptor 3 is Node's channel for descriptors: it carries the host's end of each launcher's control channel, and the listening
 * socket of its proxy. Descriptor 4 carries frames: `command` starts a launcher, `signal` is for its process group; `stderr`, `end`,
 * `exit` and `refused` (an errno) tell what became of it.
 */
enum { NODE_FD = 3, REQUEST_FD = 4 };
/* In the launcher; the contents of files come after the channels. */
enum { CONTROL_FD = 3, HANDOVER_FD = 4 };
/* More of a launcher's standard error is read and dropped. */
enum { MOST_SAID = 65536 };

extern char **environ;

/* What the host asks for. */
struct request {
  bool hands_over; /* a listening socket */
  const char *contents;
  size_t contents_length;
  struct strings environment;
};

struct launcher {
  uint32_t id;
  pid_t pid; /* 0 after its end */
  size_t said;
  struct watch errors;   /* its standard error */
  struct watch handover; /* where it hands over its listening socket */
  struct launcher *next;
};

/* A descriptor that Node has not acknowledged yet; it does so in order. */
struct delivery {
  uint32_t id;
  bool is_listener;
};

static pid_t host;
static struct launcher *launchers;
static struct delivery *deliveries;
static size_t delivery_count, delivery_room;

static struct launcher *find_launcher(uint32_t id) {
  struct launcher *one = launchers;
  while (one && one->id != id) one = one->next;
  return one;
}

static void refuse(uint32_t id, int reason) {
  char text[16];
  snprintf(text, sizeof text, "%d", reason);
  send_frame(FRAME_REFUSED, id, text, strlen(text));
}

/* Until a new launcher has its own process group, there is only the process itself. */
static void signal_group(pid_t leader, int number) {
  if (kill(-leader, number)) kill(leader, number);
}

/* Frees a launcher of which nothing is left. */
static void forget_if_over(struct launcher *launcher) {
  if (launcher->pid || launcher->errors.fd >= 0 || launcher->handover.fd >= 0) return;
  struct launcher **at = &launchers;
  while (*at != launcher) at = &(*at)->next;
  *at = launcher->next;
  free(launcher);
}

/* Sends a descriptor in Node's own format. */
static bool deliver(uint32_t id, pid_t pid, int fd, bool is_listener) {
  char text[160];
  if (delivery_count == delivery_room) {
    size_t room = delivery_room ? delivery_room * 2 : 64;
    struct delivery *more = realloc(deliveries, room * sizeof *more);
    if (!more) return false;
    deliveries = more;
    delivery_room = room;
  }
  int length = snprintf(text, sizeof text,
                        "\"cmd\":\"NODE_HANDLE\",\"type\":\"%s\",\"msg\":{\"id\":%u,\"pid\":%d,\"isListener\":%s}}\n",
                        is_listener ? "net.Native" : "net.Socket", id, pid, is_listener ? "true" : "false");
  if (!send_message(NODE_FD, '{', text, (size_t)length, fd)) return false;
  deliveries[delivery_count++] = (struct delivery){id, is_listener};
  return true;
}

/* What the launcher waits for after it has handed over its listening socket. */
static void answer_handover(struct launcher *launcher, bool was_received) {
  static const char RECEIVED[] = "\"cmd\":\"NODE_HANDLE_ACK\"}\n", LOST[] = "\"cmd\":\"NODE_HANDLE_NACK\"}\n";
  if (was_received) send_message_now(launcher->handover.fd, '{', RECEIVED, sizeof RECEIVED - 1);
  else send_message_now(launcher->handover.fd, '{', LOST, sizeof LOST - 1);
  watch_close(&launcher->handover);
  forget_if_over(launcher);
}

/* Node received a descriptor, or had no room for it: then the launcher cannot be used. */
static void settle_delivery(bool was_received) {
  if (!delivery_count) return;
  struct delivery delivery = deliveries[0];
  memmove(deliveries, deliveries + 1, --delivery_count * sizeof *deliveries);
  struct launcher *launcher = find_launcher(delivery.id);
  if (!launcher) return;
  if (delivery.is_listener) {
    if (launcher->handover.fd >= 0) answer_handover(launcher, was_received);
  } else if (!was_received) {
    refuse(launcher->id, EMFILE);
    if (launcher->pid) signal_group(launcher->pid, SIGKILL);
  }
}

static void hear_node(struct watch *watch, uint32_t events) {
  static char text[65536];
  static size_t length;
  (void)events;
  ssize_t got = read(watch->fd, text + length, sizeof text - 1 - length);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) host_gone();
  length += (size_t)got;
  text[length] = 0;
  char *line = text, *end;
  for (; (end = strchr(line, '\n')); line = end + 1) {
    *end = 0;
    if (strstr(line, "NODE_HANDLE_ACK")) settle_delivery(true);
    else if (strstr(line, "NODE_HANDLE_NACK")) settle_delivery(false);
  }
  length -= (size_t)(line - text);
  if (length == sizeof text - 1) host_gone();
  memmove(text, line, length);
}

static void hear_errors(struct watch *watch, uint32_t events) {
  static char dropped[4096];
  struct launcher *launcher = watch->owner;
  (void)events;
  bool is_kept = launcher->said < MOST_SAID;
  ssize_t got = is_kept ? channel_forward(FRAME_STDERR, launcher->id, watch->fd, sizeof dropped)
                        : read(watch->fd, dropped, sizeof dropped);
  if (got < 0 && errno == EINTR) return;
  if (got > 0) {
    launcher->said += (size_t)got;
    return;
  }
  watch_close(watch);
  send_frame(FRAME_END, launcher->id, "", 0);
  forget_if_over(launcher);
}

static void hear_handover(struct watch *watch, uint32_t events) {
  char kind, text[256];
  int fd;
  struct launcher *launcher = watch->owner;
  (void)events;
  int length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length >= 0 && fd >= 0) {
    /* One message is all that it sends; the answer closes the socket. */
    watch_set_events(watch, 0);
    if (!deliver(launcher->id, launcher->pid, fd, true)) answer_handover(launcher, false);
    close(fd);
    return;
  }
  if (fd >= 0) close(fd);
  watch_close(watch);
  forget_if_over(launcher);
}

/* What a process of the group does after its leader has ended is nobody's. */
static void reap(pid_t pid) {
  int status;
  kill(-pid, SIGKILL);
  if (waitpid(pid, &status, 0) != pid) return;
  struct launcher *launcher = launchers;
  while (launcher && launcher->pid != pid) launcher = launcher->next;
  if (!launcher) return;
  bool signaled = WIFSIGNALED(status);
  unsigned char bytes[] = {signaled, (unsigned char)(signaled ? WTERMSIG(status) : WEXITSTATUS(status))};
  launcher->pid = 0;
  send_frame(FRAME_EXIT, launcher->id, bytes, sizeof bytes);
  forget_if_over(launcher);
}

/* INVARIANT: a process is signalled only before it is reaped, so its number cannot belong to another one. */
static void hear_children(struct watch *watch, uint32_t events) {
  struct signalfd_siginfo info;
  (void)events;
  if (read(watch->fd, &info, sizeof info) < 0) return;
  for (;;) {
    siginfo_t child = {0};
    if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) || !child.si_pid) return;
    reap(child.si_pid);
  }
}

/* Must come after the channels are in their places: it may get any number. */
static void place_contents(const struct request *request) {
  if (!request->contents_length) return;
  int fd = memory_file(request->contents, request->contents_length);
  if (dup2(fd, request->hands_over ? HANDOVER_FD + 1 : CONTROL_FD + 1) < 0) _exit(EXIT_SETUP_FAILED);
}

_Noreturn static void become_launcher(struct request *request, int control, int errors, int handover, pid_t server) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  channel_forget();
  setsid();
  if (dup2(errors, 2) < 0 || dup2(control, CONTROL_FD) < 0) _exit(EXIT_SETUP_FAILED);
  if (handover >= 0 && dup2(handover, HANDOVER_FD) < 0) _exit(EXIT_SETUP_FAILED);
  place_contents(request);
  environ = strings_vector(&request->environment);
  launch(server, host);
}

static void close_pair(const int pair[2]) {
  if (pair[0] >= 0) close(pair[0]);
  if (pair[1] >= 0) close(pair[1]);
}

/* The host's ends are [0], the launcher's [1]. */
struct channels {
  int control[2], errors[2], handover[2];
};

static bool open_channels(struct channels *channels, bool hands_over) {
  *channels = (struct channels){{-1, -1}, {-1, -1}, {-1, -1}};
  return !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels->control) &&
         /* PLATFORM: Node takes every descriptor that it receives for a non-blocking one, and would wait in `read`. */
         !fcntl(channels->control[0], F_SETFL, O_NONBLOCK) && !pipe2(channels->errors, O_CLOEXEC) &&
         (!hands_over || !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels->handover));
}

/* Returns the errno, or 0. */
static int start_launcher(struct launcher *launcher, struct request *request) {
  struct channels channels;
  pid_t server = getpid();
  bool hands_over = request->hands_over;
  int reason = open_channels(&channels, hands_over) ? 0 : errno;
  if (!reason) {
    launcher->pid = fork();
    if (launcher->pid < 0) reason = errno;
    if (!launcher->pid) become_launcher(request, channels.control[1], channels.errors[1], channels.handover[1], server);
  }
  if (!reason && !deliver(launcher->id, launcher->pid, channels.control[0], false)) {
    reason = errno;
    signal_group(launcher->pid, SIGKILL);
  }
  if (reason) {
    close_pair(channels.errors);
    close_pair(channels.handover);
  } else {
    watch_start(&launcher->errors, channels.errors[0], READABLE, hear_errors, launcher);
    close(channels.errors[1]);
    if (hands_over) {
      watch_start(&launcher->handover, channels.handover[0], READABLE, hear_handover, launcher);
      close(channels.handover[1]);
    }
  }
  close_pair(channels.control);
  return reason;
}

/* `handover` or `control`, the length of the contents, the environment, and at the end the contents themselves. */
static struct request parse_request(char *payload, size_t length) {
  struct request request = {0};
  char *at = payload;
  const char *end = payload + length;
  request.hands_over = !strcmp(next_string(&at, end), "handover");
  request.contents_length = strtoul(next_string(&at, end), NULL, 10);
  if (request.contents_length > (size_t)(end - at)) die("the request is truncated");
  request.contents = end -= request.contents_length;
  while (at < end) strings_add(&request.environment, next_string(&at, end));
  return request;
}

static void start(uint32_t id, char *payload, size_t length) {
  struct request request = parse_request(payload, length);
  struct launcher *launcher = calloc(1, sizeof *launcher);
  if (!launcher) die("out of memory");
  launcher->id = id;
  launcher->errors.fd = launcher->handover.fd = -1;
  int reason = start_launcher(launcher, &request);
  free(request.environment.items);
  if (!reason) {
    launcher->next = launchers;
    launchers = launcher;
    return;
  }
  refuse(id, reason);
  free(launcher);
}

static void handle_request(enum frame_type type, uint32_t id, char *payload, size_t length) {
  if (type == FRAME_COMMAND) return start(id, payload, length);
  struct launcher *launcher = find_launcher(id);
  if (type == FRAME_SIGNAL && launcher && launcher->pid)
    signal_group(launcher->pid, (int)payload_number(payload, length));
}

static void ignore_room(void) {}

_Noreturn void fork_server_main(void) {
  static struct watch node, children;
  sigset_t child;
  host = getppid();
  die_with_parent(host);
  control_fd = REQUEST_FD;
  if (fcntl(NODE_FD, F_SETFD, FD_CLOEXEC) || fcntl(REQUEST_FD, F_SETFD, FD_CLOEXEC)) _exit(EXIT_SETUP_FAILED);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, NULL);
  int fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) die("signalfd: %s", strerror(errno));
  watch_start(&children, fd, READABLE, hear_children, NULL);
  watch_start(&node, NODE_FD, READABLE, hear_node, NULL);
  channel_open(handle_request, ignore_room);
  event_loop_run(-1, NULL);
}
