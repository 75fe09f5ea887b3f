#include "machine/machine.h"

#include <linux/random.h>
#include <sys/ioctl.h>
#include <time.h>

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static size_t from_hex(const char *text, unsigned char *bytes, size_t room) {
  size_t count = 0;
  for (; count < room && hex_digit(text[0]) >= 0 && hex_digit(text[1]) >= 0; count++, text += 2)
    bytes[count] = (unsigned char)(hex_digit(text[0]) << 4 | hex_digit(text[1]));
  return count;
}

static void reseed(const char *hex) {
  struct {
    struct rand_pool_info head;
    unsigned char bytes[64];
  } seed = {{0}, {0}};
  size_t count = from_hex(hex, seed.bytes, sizeof seed.bytes);
  seed.head.entropy_count = (int)count * 8;
  seed.head.buf_size = (int)count;
  int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
  if (count < 32 || fd < 0 || ioctl(fd, RNDADDENTROPY, &seed) || ioctl(fd, RNDRESEEDCRNG))
    die("random seed: %s", strerror(errno));
  close(fd);
}

/* Only moves the clock forward: programs rely on the order of times. */
static void set_clock(const char *text) {
  long long wanted = strtoll(text, NULL, 10);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if ((long long)now.tv_sec * 1000000000 + now.tv_nsec >= wanted) return;
  struct timespec then = {wanted / 1000000000, wanted % 1000000000};
  if (clock_settime(CLOCK_REALTIME, &then)) die("clock: %s", strerror(errno));
}

/*
 * SECURITY: a clone without a seed of its own is refused. That two clones produce different random numbers proves
 * nothing: a kernel whose seed is older than about a second mixes in RDSEED and the cycle counter at the next request,
 * while one with a younger seed repeats the numbers of the other clone.
 */
void apply_identity(char *at, size_t length) {
  static const struct field FIELDS[] = {IDENTITY_FIELDS(FIELD_ROW)};
  const char *end = at + length, *arguments[MAX_ARITY];
  bool seeded = false;
  while (at < end) {
    const char *name = next_string(&at, end);
    read_arguments(FIELDS, LENGTH(FIELDS), name, &at, end, arguments);
    const char *value = arguments[0];
    if (!strcmp(name, "seed")) reseed(value), seeded = true;
    else if (!strcmp(name, "time")) set_clock(value);
    else if (!strcmp(name, "token")) snprintf(machine.token, sizeof machine.token, "%s", value);
    else if (!strcmp(name, "machine-id")) snprintf(machine.id, sizeof machine.id, "%s\n", value);
    else if (!strcmp(name, "hostname")) sethostname(value, strlen(value));
    else die("identity: unknown field %s", name);
  }
  if (!seeded) die("identity: no random seed");
}
