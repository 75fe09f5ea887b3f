/* TLS with certificates on both ends, over non-blocking sockets. */
#ifndef RINGFENCE_CHANNEL_H
#define RINGFENCE_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Noreturn void fail(const char *what);

struct secure;

/* Reads the certificate, the key and the authority from the environment, and erases them there. */
void secure_setup(void);
/* The server's side of a new connection. The descriptor stays where it is as long as the connection is open. */
struct secure *secure_open(int *fd);
/* 1: the other end has proven that it is the control plane; 0: not yet; -1: it is somebody else. */
int secure_handshake(struct secure *secure);
/* How many bytes were read or written; 0: none now; -1: the connection is over. */
int secure_read(struct secure *secure, unsigned char *to, size_t most);
int secure_write(struct secure *secure, const unsigned char *from, size_t length);
/* Whether the last call could not go on because the socket took no more. */
bool secure_wants_write(const struct secure *secure);
void secure_close(struct secure *secure);

/* fill.c: a connection whose other end is the control plane. */
struct fill_peer {
  int fd;
  struct secure *secure;
};
/* Fills the read-only directories of the sandbox; returns when the control plane has sent them all. */
void fill_mounts(const struct fill_peer *peer);

#endif
