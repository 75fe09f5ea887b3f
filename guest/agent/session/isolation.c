#include "common/channel.h"
#include "common/message.h"
#include "isolate/isolate.h"
#include "limits/limits.h"
#include "session/commands.h"
#include "session/process_tree.h"
#include "supervise/resolve.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* PID 1's side of isolated commands: one namespace init is always prepared, and commands wait here when none is ready. */

static struct {
  pid_t pid;
  int socket;
} prepared = {0, -1};
static bool asked; /* the isolator is preparing one */
static struct watch isolator;

struct waiting {
  struct command *command;
  int fds[ASSIGNED_FDS];
  size_t length;
  struct waiting *next;
};
static struct waiting *first;

static void ask_for_init(void) {
  if (asked || prepared.pid) return;
  asked = send_message(isolator_socket, MESSAGE_START, "", 0, -1);
}

static void free_waiting(struct waiting *one) {
  for (int i = 0; i < ASSIGNED_FDS; i++)
    if (one->fds[i] >= 0) close(one->fds[i]);
  free(one);
}

static void refuse(struct waiting *one, const char *why) {
  if (!one->command->exit_reported) {
    one->command->exit_reported = true;
    send_frame(FRAME_REFUSED, one->command->id, why, strlen(why));
  }
  command_free_if_done(one->command);
}

static bool send_assignment(int socket, const struct waiting *one) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof one->fds)];
  } control = {{0}};
  struct isolated_assignment assignment = {(uint32_t)agent_processes(), (uint32_t)one->length};
  struct iovec data = {&assignment, sizeof assignment};
  struct msghdr message = {.msg_iov = &data,
                           .msg_iovlen = 1,
                           .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof one->fds);
  memcpy(CMSG_DATA(header), one->fds, sizeof one->fds);
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/* Why a namespace init ended before it had a command. */
static void read_failure(int socket, char *text, size_t size) {
  char kind;
  int fd;
  if (receive_message(socket, &kind, text, size, &fd) < 0 || kind != MESSAGE_FAILED)
    snprintf(text, size, "the namespaces of the command could not be created");
}

/* Room for all verdicts and sockets that can be on their way at once (MAX_REQUESTS, MAX_SOCKETS_ASKED). */
static void enlarge_queue(int socket) {
  int bytes = 1 << 20;
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

/* The namespace init is the command's subreaper from now on. */
static void assign(struct waiting *one) {
  char text[1024];
  pid_t pid = prepared.pid;
  int socket = prepared.socket;
  prepared.pid = 0, prepared.socket = -1;
  disk_is_full(); /* the next command sees what was freed meanwhile */
  if (!send_assignment(socket, one)) {
    read_failure(socket, text, sizeof text);
    close(socket);
    refuse(one, text);
  } else {
    one->command->subreaper = pid;
    enlarge_queue(socket);
    command_watch_messages(one->command, socket);
    if (one->command->kill_requested) kill(pid, SIGKILL);
  }
  free_waiting(one);
}

static void assign_next(void) {
  while (prepared.pid && first) {
    struct waiting *one = first;
    first = one->next;
    assign(one);
  }
  ask_for_init();
}

static void isolator_ready(struct watch *watch, uint32_t events) {
  (void)events;
  char kind, text[1024];
  int fd, length = receive_message(watch->fd, &kind, text, sizeof text, &fd);
  asked = false;
  if (length < 0 || kind == MESSAGE_FAILED) {
    if (length < 0) watch_close(watch), isolator_socket = -1;
    for (struct waiting *one; (one = first);) {
      first = one->next;
      refuse(one, length < 0 ? "the sandbox can no longer isolate commands" : text);
      free_waiting(one);
    }
    return;
  }
  memcpy(&prepared.pid, text, sizeof prepared.pid);
  prepared.socket = fd;
  if (first) assign_next();
}

void isolation_serve(void) {
  watch_start(&isolator, isolator_socket, READABLE, isolator_ready, NULL);
  ask_for_init();
}

static int request_file(const char *request, size_t length) {
  int fd = (int)syscall(SYS_memfd_create, "request", MFD_CLOEXEC);
  if (fd >= 0 && write(fd, request, length) != (ssize_t)length) close(fd), fd = -1;
  return fd;
}

const char *isolation_start(struct command *command, struct stdio_pipes *pipes, const char *request, size_t length) {
  if (isolator_socket < 0) return "the sandbox can no longer isolate commands";
  struct waiting *one = calloc(1, sizeof *one), **at = &first;
  int request_fd = request_file(request, length);
  if (!one || request_fd < 0) return free(one), "out of memory";
  *one = (struct waiting){.command = command, .fds = {-1, -1, -1, request_fd}, .length = length};
  one->fds[0] = fcntl(pipes->in[0], F_DUPFD_CLOEXEC, 3);
  one->fds[1] = fcntl(pipes->out[1], F_DUPFD_CLOEXEC, 3);
  one->fds[2] = fcntl(pipes->errors[1], F_DUPFD_CLOEXEC, 3);
  if (one->fds[0] < 0 || one->fds[1] < 0 || one->fds[2] < 0) return free_waiting(one), "too many open files";
  while (*at) at = &(*at)->next;
  *at = one;
  assign_next();
  return NULL;
}

void isolation_forget(const struct command *command) {
  for (struct waiting **at = &first; *at; at = &(*at)->next)
    if ((*at)->command == command) {
      struct waiting *one = *at;
      *at = one->next;
      return free_waiting(one);
    }
}

size_t isolation_processes(void) { return isolator_socket < 0 ? 0 : 1 + (prepared.pid > 0 || asked); }

void isolation_child_exited(pid_t pid) {
  if (pid != prepared.pid) return;
  close(prepared.socket);
  prepared.pid = 0, prepared.socket = -1;
}

/* SECURITY: all children of PID 1 in another PID namespace are the isolator's; while one is prepared it has no name yet. */
bool isolation_is_known(pid_t pid) { return pid == isolator_pid || pid == prepared.pid || (asked && isolator_pid); }

/* PLATFORM: gVisor does not tell it; when this is asked, a namespace init has one child. */
static bool has_inner_pid(const char *pid, pid_t wanted) {
  char path[300], text[2048];
  snprintf(path, sizeof path, "%s/status", pid);
  const char *line = read_text_at(proc_fd, path, text, sizeof text) > 0 ? strstr(text, "\nNSpid:") : NULL;
  int outer, inner;
  return !line || (sscanf(line, "\nNSpid: %d %d", &outer, &inner) == 2 && inner == wanted);
}

enum { MAX_DEPTH = 4096 };

static bool is_below(pid_t pid, pid_t init) {
  char name[16];
  for (int depth = 0; depth < MAX_DEPTH && pid > 1; depth++) {
    snprintf(name, sizeof name, "%d", pid);
    pid = live_parent_of(name);
    if (pid == init) return true;
  }
  return false;
}

pid_t isolated_process(pid_t init, pid_t inner) {
  DIR *processes = opendir("/proc");
  pid_t found = 0;
  for (struct dirent *entry; processes && !found && (entry = readdir(processes));)
    if (isdigit((unsigned char)entry->d_name[0]) && has_inner_pid(entry->d_name, inner) &&
        is_below(atoi(entry->d_name), init))
      found = atoi(entry->d_name);
  if (processes) closedir(processes);
  return found;
}

/* They end by themselves when their commands are gone, and the prepared one has none. */
static bool is_namespace_init(pid_t pid) { return pid == prepared.pid || command_of_subreaper(pid); }

/* A stopped process cannot fork, so nothing new appears between the two steps. */
void kill_all_commands(void) {
  DIR *processes = isolator_socket < 0 ? NULL : opendir("/proc");
  if (!processes) {
    kill(-1, SIGKILL);
    return;
  }
  kill(-1, SIGSTOP);
  for (struct dirent *entry; (entry = readdir(processes));) {
    pid_t pid = isdigit((unsigned char)entry->d_name[0]) ? atoi(entry->d_name) : 0;
    if (pid > 1 && pid != isolator_pid && !is_namespace_init(pid)) kill(pid, SIGKILL);
  }
  closedir(processes);
  commands_request_kill();
  kill(-1, SIGCONT);
}
