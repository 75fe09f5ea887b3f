/*
 * Preloaded into QEMU before version 9, which opens a machine's memory file for writing even when the mapping is private.
 * A template is shared by many machines, so no machine may get a descriptor that could write to it: this library turns the
 * open of that one file (RINGFENCE_TEMPLATE) into an open for reading.
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
