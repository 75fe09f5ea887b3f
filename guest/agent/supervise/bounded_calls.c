#include "supervise/supervise.h"

#include <signal.h>
#include <sys/time.h>

/*
 * SECURITY: while PID 1 sleeps in a call on a file of a command, it measures neither disk nor memory. Commands share the
 * file and can change its flags at any time, so no check before the call tells whether it will sleep. A timer interrupts
 * it instead; it repeats, because the first signal may come before the call.
 *
 * Outside of these calls there is no handler, and the kernel then drops what commands send to PID 1.
 */
enum { BOUND_US = 10000 };

static void interrupt(int signal) { (void)signal; }

void begin_bounded_calls(void) {
  struct sigaction action = {.sa_handler = interrupt}; /* without SA_RESTART */
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  sigaction(SIGALRM, &action, NULL);
  sigprocmask(SIG_UNBLOCK, &alarm, NULL);
  setitimer(ITIMER_REAL, &(struct itimerval){{0, BOUND_US}, {0, BOUND_US}}, NULL);
}

void end_bounded_calls(void) {
  int error = errno;
  setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
  signal(SIGALRM, SIG_DFL);
  errno = error;
}
