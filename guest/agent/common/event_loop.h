/* Waits for many descriptors at once (epoll) and calls the handler of the one that is ready. */
#ifndef RINGFENCE_EVENT_LOOP_H
#define RINGFENCE_EVENT_LOOP_H

#include "common/common.h"

struct watch {
  int fd; /* -1 when closed */
  uint32_t events;
  void (*ready)(struct watch *watch, uint32_t events);
  void *owner;
};

enum { READABLE = 1, WRITABLE = 4 }; /* the values of EPOLLIN and EPOLLOUT */

void watch_start(struct watch *watch, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *owner);
/* With no events even a hang-up is not reported. */
void watch_set_events(struct watch *watch, uint32_t events);
/* Also closes the descriptor. */
void watch_close(struct watch *watch);
/* Calls `on_interval` every `interval_ms`; never when that is negative. */
_Noreturn void event_loop_run(int interval_ms, void (*on_interval)(void));

#endif
