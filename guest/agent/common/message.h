/* Messages between PID 1 and its children, and to PID 1 of a container, over a SOCK_SEQPACKET socket: a kind, some bytes, perhaps a descriptor. */
#ifndef RINGFENCE_MESSAGE_H
#define RINGFENCE_MESSAGE_H

#include "common/common.h"

enum message_kind {
  MESSAGE_LISTENER = 'L', /* with a descriptor: the seccomp listener of the command */
  MESSAGE_FAILED = 'F',   /* text: why the command could not be started */
  MESSAGE_PID = 'P',      /* pid_t: the command's process exists */
  MESSAGE_STATUS = 'S',   /* int: wait status of the command */
  MESSAGE_START = 'G',    /* to the child: a command that waits may start */
  MESSAGE_USERS = 'U',    /* with a descriptor: the user namespace of a root */
  MESSAGE_MOUNTS = 'M',   /* with a descriptor: its mount namespace */
  MESSAGE_RANGE = 'K',    /* with a descriptor: the lock of its range of ids */
  MESSAGE_PREPARED = 'I', /* pid_t, with a descriptor: a namespace init and the socket to it */
  MESSAGE_FRAME = 'R',    /* a frame's type and payload, for the host */
  MESSAGE_USAGE = 'W',    /* struct isolated_usage */
  CHANNEL_REPLACED = 'C', /* to guest/channel, with a descriptor: the new end of a Pod's channel */
  MESSAGE_VERDICT = 'V',  /* to a namespace init: the host's answer to a request of `sudo` */
  MESSAGE_SOCKET = 'O',   /* struct socket_request; in the answer with the socket */
  MESSAGE_END = 'E',      /* to a namespace init: it ends its command and says what that has used */
  MESSAGE_FILE = 'D',     /* int64_t, with a descriptor: a file that may be written, and its size before */
  MESSAGE_PROXY = 'T',    /* with a descriptor: the listening socket of the command's proxy */
};

bool send_message(int socket, char kind, const void *text, size_t length, int fd);
/* The same for a peer that may not read: fails instead of waiting. */
bool send_message_now(int socket, char kind, const void *text, size_t length);
/* Returns the length of the text, or -1 at the end. The text is NUL-terminated; `fd` is -1 when none came along. */
int receive_message(int socket, char *kind, char *text, size_t size, int *fd);

#endif
