#include "init/config.h"
#include "limits/limits.h"
#include "session/users/users.h"
#include "supervise/protected_paths.h"
#include "supervise/supervise.h"
#include "supervise/unix_sockets.h"

#include <sys/mman.h>

struct options options = {.handover_fd = -1, .range_lock = -1};

static const struct field FIELDS[] = {CONFIG_FIELDS(FIELD_ROW)};

/* Fields whose arguments are collected in a list; with `lines` one argument holds many values, one per line. */
static const struct {
  const char *name;
  struct strings *list;
  bool lines;
} LISTS[] = {
    {"readonly", &options.readonly},
    {"mask", &options.masks},
    {"hide", &options.hidden},
    {"nested", &options.nested},
    {"overlay", &options.overlays},
    {"writable", &options.writable},
    {"supervise", &protection.mounts},
    {"private", &protection.private_mounts},
    {"host-mount", &host_mounts},
    {"host-socket", &host_sockets},
    {"protect-root", &protection.roots, true},
    {"protect-inner", &protection.inner, true},
    {"protect-name", &protection.names, true},
    {"protect-except", &protection.except, true},
    {"protect-path", &protection.pinned},
};

static char *read_config(int fd, size_t *length) {
  struct stat stat;
  if (fstat(fd, &stat)) die("configuration: %s", strerror(errno));
  char *text = mmap(NULL, (size_t)stat.st_size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (text == MAP_FAILED) die("out of memory");
  for (*length = 0; *length < (size_t)stat.st_size;) {
    ssize_t got = read(fd, text + *length, (size_t)stat.st_size - *length);
    if (got <= 0) die("configuration: %s", strerror(errno));
    *length += (size_t)got;
  }
  close(fd);
  return text;
}

static void add_value(struct strings *list, const char *value, bool lines) {
  if (!lines) return strings_add(list, value);
  char *copy = strdup(value);
  if (!copy) die("out of memory");
  for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) strings_add(list, line);
}

/* Returns false when the field does not belong to a list. */
static bool add_to_list(const char *name, const char *const *arguments, size_t count) {
  for (size_t i = 0; i < LENGTH(LISTS); i++) {
    if (strcmp(name, LISTS[i].name)) continue;
    for (size_t n = 0; n < count; n++) add_value(LISTS[i].list, arguments[n], LISTS[i].lines);
    return true;
  }
  return false;
}

static void set_option(const char *name, const char *const *arguments) {
  if (!strcmp(name, "user")) options.uid = arguments[0], options.gid = arguments[1];
  else if (!strcmp(name, "root-user")) has_root_user = true;
  else if (!strcmp(name, "range-lock")) options.range_lock = atoi(arguments[0]);
  else if (!strcmp(name, "wait-for-go")) options.wait_for_start = true;
  else if (!strcmp(name, "persistent")) options.persistent = true;
  else if (!strcmp(name, "isolate")) options.isolate = true;
  else if (!strcmp(name, "prefork")) options.prefork = true;
  else if (!strcmp(name, "free-bind")) free_bind = true;
  else if (!strcmp(name, "shared-network")) options.shared_network = true;
  else if (!strcmp(name, "trace")) tracing = true;
  else if (!strcmp(name, "proxy-port")) options.proxy_port = atoi(arguments[0]);
  else if (!strcmp(name, "handover")) options.handover_fd = atoi(arguments[0]);
  else if (!strcmp(name, "report-network")) network_guarantee = arguments[0];
  else if (!strcmp(name, "whole-file-system")) options.whole_file_system = limits.shared_tmp = true;
  else if (!strcmp(name, "memory")) limits.memory_bytes = strtoull(arguments[0], NULL, 10);
  else if (!strcmp(name, "memory-shared")) count_shared_memory = true;
  else if (!strcmp(name, "socket-memory")) limits.socket_bytes = strtoull(arguments[0], NULL, 10);
  else if (!strcmp(name, "disk")) limits.disk_bytes = strtoull(arguments[0], NULL, 10);
  else if (!strcmp(name, "processes")) limits.processes = strtoull(arguments[0], NULL, 10);
  else if (!strcmp(name, "check-interval")) limits.interval_ms = atoi(arguments[0]);
  else die("configuration: unknown field %s", name);
}

static void parse_field(const char *name, char **at, const char *end) {
  const char *arguments[MAX_ARITY];
  if (is_command_field(name)) return parse_command_field(&options.command, name, at, end);
  read_arguments(FIELDS, LENGTH(FIELDS), name, at, end, arguments);
  size_t count = find_field(FIELDS, LENGTH(FIELDS), name)->arity;
  if (!add_to_list(name, arguments, count)) set_option(name, arguments);
}

void parse_config(char *at, size_t length) {
  const char *end = at + length;
  while (at < end) parse_field(next_string(&at, end), &at, end);
  protection_index();
  if ((!options.command.argv.count && !options.persistent) || !options.command.cwd) die("configuration: no command");
}

void parse_config_file(int config) {
  size_t length;
  char *text = read_config(config, &length);
  parse_config(text, length);
}
