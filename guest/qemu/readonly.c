/*
 * Loaded into QEMU before version 9: it opens the file of a machine's memory for writing even where it only keeps changes
 * to itself. A template belongs to many machines, so nobody gets a descriptor that could write to it; here the one open
 * of that one file asks for reading alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static int open_as(const char *symbol, const char *path, int flags, mode_t mode) {
  int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, symbol);
  const char *template = getenv("RINGFENCE_TEMPLATE");
  if (template && !strcmp(path, template)) flags = (flags & ~O_ACCMODE) | O_RDONLY;
  return next(path, flags, mode);
}

int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_as("open", path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_as("open64", path, flags, mode);
}

int __open_2(const char *path, int flags) { return open_as("open", path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_as("open64", path, flags, 0); }
