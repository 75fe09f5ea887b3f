/*
 * The native front of the command line: passes a request to the resident broker and runs what the broker launches, or
 * becomes Node. README.md describes both programs and their protocol.
 */
#ifndef RINGFENCE_FRONT_H
#define RINGFENCE_FRONT_H

#include "common/common.h"

/* What the two sides send. A frame is its type, the length of its payload (4 bytes, big-endian) and the payload. */
enum front_frame {
  /* front to broker */
  BROKER_REQUEST = 'R', /* strings: see request.c */
  BROKER_ATTACH = 'T',  /* strings: token, descriptor; all later bytes belong to that stream of a launched process */
  BROKER_INPUT = 'I',   /* bytes of standard input; none: its end */
  BROKER_SIGNAL = 'S',  /* number */
  BROKER_STARTED = 'P', /* number: pid of the launched process */
  BROKER_FAILED = 'F',  /* number: errno */
  BROKER_EXITED = 'X',  /* number: wait status */
  /* broker to front */
  BROKER_ACCEPTED = 'A',
  BROKER_DECLINED = 'N',
  BROKER_STDOUT = 'O',
  BROKER_STDERR = 'E',
  BROKER_LAUNCH = 'L', /* strings: see child.c */
  BROKER_KILL = 'K',   /* number: signal for the process group of the launched process */
  BROKER_RESULT = 'Q', /* number: exit code */
};

enum {
  MAX_BROKER_FRAME = 64 << 20,
  SECRET_FD = 60,        /* the listener's descriptor that holds both of its secrets */
  SECRET_LENGTH = 64,    /* hexadecimal digits of one secret */
  ANSWER_WAIT_MS = 1000, /* a broker that takes longer is left alone: Node starts in a tenth of this */
  BUILD_LENGTH = 160,
  EXIT_OUTPUT_FAILED = 1,
  EXIT_FAILED = 125,
  EXIT_BLOCKED = 2, /* what every agent takes for "do not run the tool" */
};

#define LISTENER_NAME "ringfence-broker-listener"
#define PROTOCOL "2"

/* What the listener keeps behind SECRET_FD: it shows the first one to callers, and callers show the second one to it. */
struct secrets {
  char of_listener[SECRET_LENGTH + 1];
  char of_caller[SECRET_LENGTH + 1];
};

/* A buffer that grows. */
struct buffer {
  char *bytes;
  size_t length;
  size_t room;
};
void buffer_add(struct buffer *buffer, const void *bytes, size_t length);
void buffer_add_string(struct buffer *buffer, const char *text);
/* Reads the next string of a payload; NULL at its end. */
const char *take_string(char **at, const char *end);

/* False when the other side is gone. */
bool write_all(int fd, const void *bytes, size_t length);
bool send_front_frame(int fd, enum front_frame type, const void *payload, size_t length);
bool send_front_number(int fd, enum front_frame type, uint32_t number);
/* Reads one frame; the payload is NUL-terminated and the caller frees it. False at the end or after a broken frame. */
bool receive_front_frame(int fd, char *type, char **payload, size_t *length);
bool read_all(int fd, void *to, size_t length);

/* What this invocation is about. */
enum command { COMMAND_OTHER, COMMAND_RUN, COMMAND_CHECK, COMMAND_HOOK };
struct invocation {
  int argc;
  char **argv; /* with the name of the program */
  enum command command;
  char script[PATH_MAX];  /* dist/cli/ringfence.cjs */
  char program[PATH_MAX]; /* dist/cli/main.cjs, whose identity the broker compares */
  char node[PATH_MAX];
};

/* Whether a broker may serve this invocation; everything else is Node's. */
bool may_use_broker(const struct invocation *invocation);
_Noreturn void become_node(const struct invocation *invocation);

/* The directory of the broker's socket, or -1; `create` makes it in a state directory that exists. */
int open_broker_directory(bool create);
int open_broker_directory_in(const char *state, bool create);
/* A connection to the broker of this user, or -1. Waits for it no longer than ANSWER_WAIT_MS at a time. */
int connect_broker(struct secrets *secrets);
/* From now on the connection waits as long as it takes. */
void wait_without_limit(int connection);
/* Tells one build of the program from another, also at the same path. */
bool build_of(const char *program, char text[BUILD_LENGTH]);
/* Sends the request and waits for the answer: true when the broker has accepted it. */
bool request_service(int connection, const struct secrets *secrets, const struct invocation *invocation);
/* Does what the broker says until it sends the result. */
_Noreturn void serve_request(int connection, const struct invocation *invocation);
/* Starts a broker for later invocations, unless there is one. */
void start_broker(const struct invocation *invocation);

/* The launched process; pid 0: none. */
struct child {
  pid_t pid;
};
/* Returns 0 or an errno. */
int launch_child(struct child *child, char *payload, size_t length);
/* Signal handling as Node leaves it for the processes that it starts. */
void default_signals(void);

_Noreturn void listener_main(const char *state);
/* Compares a process with this one: what it may see and do must be the same. `cgroup` is told apart. */
bool is_equal_process(pid_t pid, bool *same_cgroup);

#endif
