#include "limits/limits.h"

struct limits limits = {.interval_ms = 100};

bool has_limits(void) { return limits.memory_bytes || limits.socket_bytes || limits.disk_bytes || limits.processes; }

const char *exceeded_limit(void) {
  if (disk_limit_crossed()) return LIMIT_NAME_DISK;
  if (limits.socket_bytes && socket_usage() + isolated_usage().sockets > limits.socket_bytes) return LIMIT_NAME_MEMORY;
  return exceeded_process_limit();
}
