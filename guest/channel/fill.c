/*
 * Directories that the sandbox may only read: they are filled from here, because the sandbox's container has them mounted
 * read-only from its start. The control plane sends them before the first frame to the agent:
 *
 *   'F', the number of the directory (1 byte), then pieces of a tar stream: length (4 bytes, little endian) and bytes; length 0
 *   ends it. The answer is 'D', or 'E' when it could not be unpacked.
 *   'G': that was all.
 */
#include "channel.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILL_MS = 120000, PIECE_MOST = 1 << 20 };

static void wait_for(const struct fill_peer *peer, short events) {
  struct pollfd waits = {.fd = peer->fd, .events = events};
  int ready = poll(&waits, 1, FILL_MS);
  if (!ready || (ready < 0 && errno != EINTR)) fail("the control plane sends nothing");
}

static void receive(const struct fill_peer *peer, unsigned char *to, size_t length) {
  for (size_t done = 0; done < length;) {
    int got = secure_read(peer->secure, to + done, length - done);
    if (got < 0) fail("the control plane is gone");
    if (!got) wait_for(peer, POLLIN);
    done += (size_t)got;
  }
}

static void answer(const struct fill_peer *peer, char letter) {
  unsigned char byte = (unsigned char)letter;
  for (int sent = 0; sent <= 0;) {
    sent = secure_write(peer->secure, &byte, 1);
    if (sent < 0) fail("the control plane is gone");
    if (!sent) wait_for(peer, POLLOUT);
  }
}

/* The agent knows how to unpack. Returns its standard input. */
static int start_unpacking(unsigned number, pid_t *child) {
  char path[64], file[80];
  int ends[2];
  snprintf(path, sizeof path, "/.ringfence-mounts/%u/.ringfence-dir", number);
  snprintf(file, sizeof file, "/.ringfence-mounts/%u/.ringfence-file", number);
  bool is_file = !access(file, F_OK);
  if (pipe(ends) || (*child = fork()) < 0) fail("cannot start to unpack");
  if (*child) return close(ends[0]), ends[1];
  dup2(ends[0], 0);
  close(ends[0]);
  close(ends[1]);
  execl("/ringfence-agent", "ringfence-agent", is_file ? "pod-fill-file" : "pod-unpack", is_file ? file : path, NULL);
  _exit(127);
}

static bool pass_on(int to, const unsigned char *bytes, size_t length) {
  while (length > 0) {
    ssize_t sent = write(to, bytes, length);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes += sent;
    length -= (size_t)sent;
  }
  return true;
}

/* What comes after an error is still read, so that the next letter is one. */
static void unpack(const struct fill_peer *peer) {
  static unsigned char piece[PIECE_MOST];
  unsigned char number, head[4];
  receive(peer, &number, 1);
  pid_t child;
  int to = start_unpacking(number, &child), status = 0;
  for (bool works = true;;) {
    receive(peer, head, sizeof head);
    size_t length = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    if (length > PIECE_MOST) fail("a piece is too long");
    if (!length) break;
    receive(peer, piece, length);
    works = works && pass_on(to, piece, length);
  }
  close(to);
  bool done = waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status);
  answer(peer, done ? 'D' : 'E');
}

void fill_mounts(const struct fill_peer *peer) {
  for (unsigned char letter;;) {
    receive(peer, &letter, 1);
    if (letter == 'G') return;
    if (letter != 'F') fail("the control plane said something unknown");
    unpack(peer);
  }
}
