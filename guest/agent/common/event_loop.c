#include "common/event_loop.h"

#include <sys/epoll.h>

static int epoll_fd = -1;

static void epoll_update(int operation, struct watch *watch) {
  struct epoll_event event = {.events = watch->events, .data.ptr = watch};
  if (epoll_ctl(epoll_fd, operation, watch->fd, &event)) die("epoll: %s", strerror(errno));
}

void watch_start(struct watch *watch, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *owner) {
  if (epoll_fd < 0 && (epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) die("epoll: %s", strerror(errno));
  *watch = (struct watch){.fd = fd, .ready = ready, .owner = owner};
  watch_set_events(watch, events);
}

/* epoll keeps reporting a hang-up even when no events are requested, so such a descriptor is removed from the set. */
void watch_set_events(struct watch *watch, uint32_t events) {
  if (watch->fd < 0 || watch->events == events) return;
  int operation = !watch->events ? EPOLL_CTL_ADD : events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
  watch->events = events;
  epoll_update(operation, watch);
}

void watch_close(struct watch *watch) {
  if (watch->fd < 0) return;
  watch_set_events(watch, 0);
  close(watch->fd);
  watch->fd = -1;
}

/* Takes one event at a time, because a handler may free the owner of the next one. */
_Noreturn void event_loop_run(int interval_ms, void (*on_interval)(void)) {
  int64_t now = interval_ms < 0 ? 0 : monotonic_ms(), next = now + interval_ms;
  for (;;) {
    struct epoll_event event;
    int64_t left = next - now;
    int ready = epoll_wait(epoll_fd, &event, 1, interval_ms < 0 ? -1 : left > 0 ? (int)left : 0);
    if (ready == 1) {
      struct watch *watch = event.data.ptr;
      watch->ready(watch, event.events);
    }
    if (interval_ms < 0) continue;
    now = monotonic_ms();
    if (now < next) continue;
    on_interval();
    now = monotonic_ms();
    next = now + interval_ms;
  }
}
