#include "agent.h"

#include <sys/epoll.h>

static int poll_fd = -1;

static void control(int operation, struct watch *watch) {
  struct epoll_event event = {.events = watch->events, .data.ptr = watch};
  if (epoll_ctl(poll_fd, operation, watch->fd, &event)) die("epoll: %s", strerror(errno));
}

void watch_start(struct watch *watch, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *owner) {
  if (poll_fd < 0 && (poll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) die("epoll: %s", strerror(errno));
  *watch = (struct watch){.fd = fd, .ready = ready, .owner = owner};
  watch_for(watch, events);
}

/* A descriptor that is watched for nothing still tells of its end, again and again; so it is taken out. */
void watch_for(struct watch *watch, uint32_t events) {
  if (watch->fd < 0 || watch->events == events) return;
  int operation = !watch->events ? EPOLL_CTL_ADD : events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
  watch->events = events;
  control(operation, watch);
}

void watch_stop(struct watch *watch) {
  if (watch->fd < 0) return;
  watch_for(watch, 0);
  close(watch->fd);
  watch->fd = -1;
}

/* One event at a time: what it does may free the owner of the next. */
_Noreturn void loop(int tick, void (*on_tick)(void)) {
  int64_t now = tick < 0 ? 0 : milliseconds(), next = now + tick;
  for (;;) {
    struct epoll_event event;
    int64_t left = next - now;
    int ready = epoll_wait(poll_fd, &event, 1, tick < 0 ? -1 : left > 0 ? (int)left : 0);
    if (ready == 1) {
      struct watch *watch = event.data.ptr;
      watch->ready(watch, event.events);
    }
    if (tick < 0) continue;
    now = milliseconds();
    if (now < next) continue;
    on_tick();
    now = milliseconds();
    next = now + tick;
  }
}
