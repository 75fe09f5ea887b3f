/* TCP streams between the host and the sandbox's loopback interface. */
#ifndef RINGFENCE_STREAMS_H
#define RINGFENCE_STREAMS_H

#include "common/event_loop.h"

struct command;

/* proxy_listener.c */
int listen_on_loopback(int port);
/* Passes the listening socket to the host, which then accepts the connections itself. */
void stream_pass_listener(int port, int to);
/* Lets the loopback interface carry segments larger than 64 KiB, where the kernel can. */
void stream_raise_loopback_gso(void);

/* Accepts connections to this port and forwards them over the channel. */
void stream_listen(int port);
/* The same for the listening socket of one isolated command, whose id the host is told. */
void stream_listen_for(struct watch *watch, int fd, uint32_t command);
/* Opens a stream to a port of the sandbox, or of one isolated command. */
void stream_connect(uint32_t id, unsigned port, uint32_t command);
int open_stream_socket(bool ipv6);
/* The socket that a stream waits for, from the namespace init of its command; -1: there is none. */
void stream_take_socket(uint32_t id, struct command *command, int fd);
/* Refuses the streams that wait for a command which has ended. */
void streams_forget_command(uint32_t command);
/* Returns false when the id is not a stream's. */
bool stream_handle_frame(enum frame_type type, uint32_t id, char *payload, size_t length);
/* The channel has room again. */
void streams_resume(void);

#endif
