#include "calls.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* What the host asked for; every string points into the configuration that came by descriptor. */
static struct {
  struct strings readonly, hidden, masks, nested, overlays, writable;
  struct command_spec command;
  const char *uid, *gid;
  bool waits;      /* the host gives the word when the command may start */
  bool open_files; /* the whole file system is granted: Landlock has nothing to hold */
  bool stays;      /* many commands, each as the host sends it */
  bool ahead;      /* to make a process is slow here */
  bool shared_network; /* the sockets that the kernel lists are the host's */
  int tunnel_port; /* connections to it go out to the host's proxy */
  int hand;        /* where the host takes the listening socket itself; -1: connections go through the channel */
} plan = {.hand = -1};

static struct {
  const char *name;
  size_t arity;
  struct strings *list;
  bool lines;
} FIELDS[] = {
    {"readonly", 1, &plan.readonly},          {"mask", 3, &plan.masks},
    {"hide", 1, &plan.hidden},                {"nested", 3, &plan.nested},
    {"overlay", 3, &plan.overlays},           {"writable", 1, &plan.writable},          {"guard", 1, &protection.guarded},
    {"protect-root", 1, &protection.roots, true},   {"protect-inner", 1, &protection.inner, true},
    {"protect-name", 1, &protection.names, true},   {"protect-except", 1, &protection.except, true},
    {"protect-path", 1, &protection.pinned},  {"own", 1, &protection.own},
};

static char *read_config(int fd, size_t *length) {
  struct stat stat;
  if (fstat(fd, &stat)) die("configuration: %s", strerror(errno));
  char *text = mmap(NULL, (size_t)stat.st_size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (text == MAP_FAILED) die("out of memory");
  for (*length = 0; *length < (size_t)stat.st_size;) {
    ssize_t got = read(fd, text + *length, (size_t)stat.st_size - *length);
    if (got <= 0) die("configuration: %s", strerror(errno));
    *length += (size_t)got;
  }
  close(fd);
  return text;
}

/* One value, or many on a line each. */
static void add_field(struct strings *list, const char *value, bool lines) {
  if (!lines) return strings_add(list, value);
  char *copy = strdup(value);
  if (!copy) die("out of memory");
  for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) strings_add(list, line);
}

static void parse_field(const char *name, char **at, const char *end) {
  for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
    if (strcmp(name, FIELDS[i].name)) continue;
    for (size_t n = 0; n < FIELDS[i].arity; n++) add_field(FIELDS[i].list, take_field(at, end), FIELDS[i].lines);
    return;
  }
  if (is_command_field(name)) command_field(&plan.command, name, at, end);
  else if (!strcmp(name, "user")) plan.uid = take_field(at, end), plan.gid = take_field(at, end);
  else if (!strcmp(name, "wait")) plan.waits = true;
  else if (!strcmp(name, "stay")) plan.stays = true;
  else if (!strcmp(name, "ahead")) plan.ahead = true;
  else if (!strcmp(name, "shared-network")) plan.shared_network = true;
  else if (!strcmp(name, "learn")) learning = true;
  else if (!strcmp(name, "tunnel")) plan.tunnel_port = atoi(take_field(at, end));
  else if (!strcmp(name, "hand")) plan.hand = atoi(take_field(at, end));
  else if (!strcmp(name, "tell-network")) network_guarantee = take_field(at, end);
  else if (!strcmp(name, "open-files")) plan.open_files = ceilings.shared_tmp = true;
  else if (!strcmp(name, "memory")) ceilings.memory_bytes = strtoull(take_field(at, end), NULL, 10);
  else if (!strcmp(name, "memory-shared")) memory_shared = true;
  else if (!strcmp(name, "disk")) ceilings.disk_bytes = strtoull(take_field(at, end), NULL, 10);
  else if (!strcmp(name, "processes")) ceilings.processes = strtoull(take_field(at, end), NULL, 10);
  else if (!strcmp(name, "tick")) ceilings.tick = atoi(take_field(at, end));
  else die("configuration: unknown field %s", name);
}

static void parse_config(char *at, size_t length) {
  const char *end = at + length;
  while (at < end) parse_field(take_field(&at, end), &at, end);
  protection_ready();
  if ((!plan.command.argv.count && !plan.stays) || !plan.command.cwd) die("configuration: no command");
}

static void finish_mounts(void) {
  for (size_t i = 0; i + 2 < plan.overlays.count; i += 3)
    mount_overlay(plan.overlays.items[i], plan.overlays.items[i + 1], plan.overlays.items[i + 2]);
  for (size_t i = 0; i + 2 < plan.nested.count; i += 3)
    move_mount_to(plan.nested.items[i], plan.nested.items[i + 1], plan.nested.items[i + 2]);
  for (size_t i = 0; i + 2 < plan.masks.count; i += 3)
    mask_path(plan.masks.items[i], plan.masks.items[i + 1], plan.masks.items[i + 2]);
  for (size_t i = 0; i < plan.hidden.count; i++) hide_path(plan.hidden.items[i]);
  for (size_t i = 0; i < plan.readonly.count; i++) make_readonly(plan.readonly.items[i]);
}

/* SECURITY: names are judged by the paths that the kernel reports; a guarded mount must be where we think it is. */
static void check_guarded(void) {
  char path[PATH_MAX];
  for (size_t i = 0; i < protection.guarded.count; i++) {
    const char *root = protection.guarded.items[i][0] ? protection.guarded.items[i] : "/";
    int fd = open(root, O_PATH | O_CLOEXEC);
    if (fd < 0 || !path_of(fd, path, sizeof path) || strcmp(path, root)) die("%s is somewhere else in the sandbox", root);
    close(fd);
  }
}

/* SECURITY: until the host has judged the command and written that down, it does not exist. */
static void wait_for_word(void) {
  unsigned char frame[9];
  for (size_t got = 0; got < sizeof frame;) {
    ssize_t more = read(control_fd, frame + got, sizeof frame - got);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) _exit(125);
    got += (size_t)more;
  }
  if (frame[0] != FRAME_GO) _exit(125);
}

/* One command with our own standard streams; its end is the sandbox's. */
static pid_t only_command;
static struct watch listener, messages;

static void listener_ready(struct watch *watch, uint32_t events) {
  if (events & READABLE) guard_serve(watch->fd);
  else watch_stop(watch); /* nobody is watched any more */
}

static void message_ready(struct watch *watch, uint32_t events) {
  (void)events;
  char kind, text[1024];
  int fd, length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  if (length < 0) return watch_stop(watch);
  if (kind == 'L' && fd >= 0) watch_start(&listener, fd, READABLE, listener_ready, NULL);
  if (kind == 'F') die("%s", text);
}

static void start_only_command(bool guarded) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) die("socketpair: %s", strerror(errno));
  only_command = fork();
  if (only_command < 0) die("cannot start a process: %s", strerror(errno));
  if (only_command == 0) {
    control_fd = -1;
    run_command(&plan.command, sockets[1], guarded, false);
  }
  close(sockets[1]);
  watch_start(&messages, sockets[0], READABLE, message_ready, NULL);
}

static _Noreturn void finish(int status) {
  bool signaled = WIFSIGNALED(status);
  unsigned char payload[2] = {signaled, (unsigned char)(signaled ? WTERMSIG(status) : WEXITSTATUS(status))};
  /* Why the command could not start is the last thing that it may have said. */
  struct pollfd waiting = {messages.fd, POLLIN, 0};
  while (messages.fd >= 0 && poll(&waiting, 1, 0) == 1) {
    message_ready(&messages, READABLE);
    waiting.fd = messages.fd;
  }
  if (control_fd >= 0) fcntl(control_fd, F_SETFL, fcntl(control_fd, F_GETFL) & ~O_NONBLOCK);
  report(FRAME_EXIT, 0, payload, sizeof payload);
  /* The end of PID 1 ends every process of the sandbox. */
  _exit(signaled ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static void reap(struct watch *watch, uint32_t events) {
  (void)events;
  struct signalfd_siginfo info;
  int status, last = 0;
  bool ended = false;
  while (read(watch->fd, &info, sizeof info) > 0) continue;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    if (pid == only_command) ended = true, last = status;
  if (ended) finish(last);
}

static void obey(enum frame_type type, uint32_t id, char *payload, size_t length) {
  if (stream_frame(type, id, payload, length)) return;
  if (type == FRAME_SIGNAL && length == 4 && (unsigned char)payload[0] < 65) kill(-only_command, (unsigned char)payload[0]);
}

static void check_ceilings(void) {
  const char *limit = usage_exceeded();
  if (!limit) return;
  report(FRAME_LIMIT, 0, limit, strlen(limit));
  kill(-1, SIGKILL);
}

static void open_tunnel(void) {
  if (!plan.tunnel_port) return;
  if (plan.hand >= 0) stream_hand_over(plan.tunnel_port, plan.hand);
  else stream_listen(plan.tunnel_port);
}

static _Noreturn void serve_one(bool guarded, int signals) {
  static struct watch children;
  if (plan.waits) wait_for_word();
  raise_descriptors(&plan.command.rlimits);
  open_tunnel();
  start_only_command(guarded);
  watch_start(&children, signals, READABLE, reap, NULL);
  if (control_fd >= 0) wire_open(obey, streams_have_room);
  bool counts = ceilings.memory_bytes || ceilings.disk_bytes || ceilings.processes;
  loop(counts ? ceilings.tick : -1, check_ceilings);
}

static int watch_children(void) {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, NULL);
  int signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) die("signalfd: %s", strerror(errno));
  if (control_fd >= 0) fcntl(control_fd, F_SETFD, FD_CLOEXEC);
  return signals;
}

static void parse_file(int config) {
  size_t length;
  char *text = read_config(config, &length);
  parse_config(text, length);
}

#ifdef RINGFENCE_TEST
/* For tests alone: a session without the fences, so that sanitizers, which need what the fences take, can watch it. */
_Noreturn void serve_unfenced(int config) {
  /* Whatever turns up below PID 1 is ended as a stray: elsewhere that would be the machine's own processes. */
  if (getpid() != 1) die("not PID 1");
  parse_file(config);
  umask(0);
  walk_setup();
  int signals = watch_children();
  bool guarded = protection.guarded.count > 0;
  describe_layers(0, guarded);
  open_tunnel();
  serve_session(&(struct session){&plan.command, guarded, signals, plan.ahead});
}
#endif

/* The last fences, and then whatever the host asks for. */
static _Noreturn void fence_and_serve(int filter) {
  int landlock = restrict_files(&plan.writable, !plan.open_files);
  if (memory_shared && !plan.shared_network) sockets_ready();
  signal(SIGIO, SIG_IGN); /* of a lease that somebody broke (usage.c) */
  load_filter(filter);
  int signals = watch_children();
  bool guarded = protection.guarded.count > 0;
  describe_layers(landlock, guarded);
  guarded |= network_guarantee != NULL || learning || memory_shared;
  if (plan.stays) {
    open_tunnel();
    serve_session(&(struct session){&plan.command, guarded, signals, plan.ahead});
  }
  serve_one(guarded, signals);
}

_Noreturn void init(int config, int filter) {
  parse_file(config);
  umask(0);
  walk_setup();
  forbid_user_namespaces(plan.uid);
  finish_mounts();
  check_guarded();
  if (plan.hand >= 0) stream_widen_loopback();
  if (plan.uid) become_user(plan.uid, plan.gid);
  drop_privileges();
  fence_and_serve(filter);
}

_Noreturn void serve_inside(char *config, size_t length, int filter) {
  parse_config(config, length);
  check_guarded();
  fence_and_serve(filter);
}
