/* Frames to and from the host. protocol.h lists them. */
#ifndef RINGFENCE_CHANNEL_H
#define RINGFENCE_CHANNEL_H

#include "common/common.h"

/* The channel to the host, or -1. */
extern int control_fd;
/* Where frames are written when that is another descriptor; -1 when it is the same. */
extern int control_out;
/* In a child of PID 1: where it reports why it failed. It must not write to the channel itself. */
extern int child_socket;
/* In the namespace init of an isolated command: what would be a frame goes to PID 1. */
extern void (*frame_relay)(enum frame_type type, const void *payload, size_t length);

void send_frame(enum frame_type type, uint32_t id, const void *payload, size_t length);
void send_number_frame(enum frame_type type, uint32_t id, uint32_t number);
/* The number that a payload holds. */
uint32_t payload_number(const char *payload, size_t length);

struct frame_header {
  enum frame_type type;
  uint32_t id;
  size_t length;
};

/*
 * Before channel_open(): reads one frame. `read_bytes` must block until it has all bytes. The caller frees the payload,
 * which is NUL-terminated.
 */
char *read_setup_frame(struct frame_header *header, void (*read_bytes)(void *to, size_t length));
/* What is done before exiting when the host is gone; NULL: nothing. */
extern void (*on_host_gone)(void);
_Noreturn void host_gone(void);
/* Reads from the channel until all bytes are there; exits when the host has closed it. */
void channel_read_blocking(void *to, size_t length);

/* Sets the command that later violations belong to; `reset` also restarts their count. */
void set_violation_owner(uint32_t id, bool reset);
void report_violation(const char *guarantee, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* From now on frames are queued and sending never blocks. `on_room` is called when a full queue has room again. */
void channel_open(void (*on_frame)(enum frame_type type, uint32_t id, char *payload, size_t length),
                  void (*on_room)(void));
/* In a forked process that has a channel of its own: forgets this one and what waits to be sent on it. */
void channel_forget(void);
bool channel_has_room(void);
/* Reads from a descriptor directly into a frame. Returns what read(2) returned. */
ssize_t channel_forward(enum frame_type type, uint32_t id, int fd, size_t most);

#endif
