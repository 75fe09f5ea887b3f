#include "session/lease.h"
#include "common/channel.h"
#include "common/event_loop.h"

#include <sys/timerfd.h>
#include <time.h>

/*
 * SECURITY: another machine may have taken the sandbox over when the lease is over, so nothing here may go on, whatever
 * became of the host's process. CLOCK_BOOTTIME also counts the time in which the machine was suspended.
 */
static struct watch timer = {.fd = -1};

static void lease_ended(struct watch *watch, uint32_t events) {
  static const char reason[] = "nobody renewed the lease of this sandbox";
  (void)watch;
  (void)events;
  send_frame(FRAME_ERROR, 0, reason, sizeof reason - 1);
  host_gone();
}

void lease_renew(uint32_t ms) {
  if (timer.fd < 0) {
    int fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0) _exit(EXIT_HOST_GONE);
    watch_start(&timer, fd, READABLE, lease_ended, NULL);
  }
  struct itimerspec left = {.it_value = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}};
  if (timerfd_settime(timer.fd, 0, &left, NULL)) _exit(EXIT_HOST_GONE);
}
