#include "common/common.h"

#include <time.h>

void strings_add(struct strings *list, const char *item) {
  if (list->count + 2 > list->room) {
    list->room = list->room ? list->room * 2 : 64;
    list->items = realloc(list->items, list->room * sizeof(char *));
    if (!list->items) die("out of memory");
  }
  list->items[list->count++] = (char *)item;
  list->items[list->count] = NULL;
}

char **strings_vector(struct strings *list) {
  static char *none[] = {NULL};
  return list->items ? list->items : none;
}

int64_t monotonic_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

ssize_t read_text_at(int directory, const char *path, char *text, size_t size) {
  int fd = openat(directory, path, O_RDONLY | O_CLOEXEC);
  ssize_t length = fd < 0 ? -1 : read(fd, text, size - 1);
  int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
  text[length > 0 ? length : 0] = 0;
  return length;
}

void write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
    die("cannot write %s: %s", path, strerror(errno));
  close(fd);
}

const char *next_string(char **at, const char *end) {
  if (*at >= end) die("the configuration is truncated");
  const char *item = *at;
  *at += strnlen(*at, (size_t)(end - *at)) + 1;
  if (*at > end) die("the configuration is truncated");
  return item;
}

const struct field *find_field(const struct field *fields, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++)
    if (!strcmp(name, fields[i].name)) return &fields[i];
  return NULL;
}

void read_arguments(const struct field *fields, size_t count, const char *name, char **at, const char *end,
                    const char *arguments[MAX_ARITY]) {
  const struct field *field = find_field(fields, count, name);
  if (!field) die("configuration: unknown field %s", name);
  for (size_t i = 0; i < field->arity; i++) arguments[i] = next_string(at, end);
}
