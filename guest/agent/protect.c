#include "agent.h"

#include <strings.h>

struct protection protection;

enum { MAX_SEGMENTS = 512 };

struct segments {
  const char *start[MAX_SEGMENTS];
  size_t length[MAX_SEGMENTS];
  int count;
};

static void split(struct segments *segments, const char *path) {
  segments->count = 0;
  while (*(path += strspn(path, "/")) && segments->count < MAX_SEGMENTS) {
    segments->start[segments->count] = path;
    segments->length[segments->count++] = strcspn(path, "/");
    path += strcspn(path, "/");
  }
}

static bool same(const struct segments *segments, int index, const char *name, size_t length) {
  return index < segments->count && segments->length[index] == length &&
         !strncasecmp(segments->start[index], name, length);
}

static bool listed(const struct strings *list, const struct segments *segments, int index) {
  for (size_t i = 0; i < list->count; i++)
    if (same(segments, index, list->items[i], strlen(list->items[i]))) return true;
  return false;
}

const char *guarded_part(const char *path) {
  for (size_t i = 0; i < protection.guarded.count; i++) {
    const char *root = protection.guarded.items[i];
    size_t length = strlen(root);
    if (!strncmp(path, root, length) && (path[length] == '/' || path[length] == 0)) return path + length;
  }
  return NULL;
}

/* How many segments of the pattern `a/b/c` stand in the path from `start` on; all of them: *whole. */
static int matched(const struct segments *segments, int start, const char *pattern, bool *whole) {
  struct segments parts;
  split(&parts, pattern);
  int count = 0;
  while (count < parts.count && same(segments, start + count, parts.start[count], parts.length[count])) count++;
  *whole = count == parts.count;
  return count;
}

static int dependency_depth(const struct segments *segments) {
  for (int i = 0; i < segments->count; i++)
    if (listed(&protection.except, segments, i)) return i;
  return INT_MAX;
}

/* The same judgement as policy/protect.ts; test/conformance holds the two against each other. */
bool is_protected(const char *relative) {
  struct segments segments;
  split(&segments, relative);
  /* SECURITY: a path too deep to be judged is refused, not waved through. */
  if (segments.count == MAX_SEGMENTS) return true;
  if (segments.count && listed(&protection.roots, &segments, segments.count - 1)) return true;
  int dependency = dependency_depth(&segments);
  for (int start = 0; start < segments.count; start++) {
    bool whole = false;
    for (size_t i = 0; i < protection.inner.count && !whole; i++) matched(&segments, start, protection.inner.items[i], &whole);
    if (whole) return true;
    if (start <= dependency && listed(&protection.names, &segments, start)) return true;
  }
  return false;
}

bool leads_to_protected(const char *relative) {
  struct segments segments;
  split(&segments, relative);
  for (int start = 0; start < segments.count; start++)
    for (size_t i = 0; i < protection.inner.count; i++) {
      bool whole;
      int count = matched(&segments, start, protection.inner.items[i], &whole);
      if (count > 0 && start + count == segments.count) return true;
    }
  return false;
}

bool is_exempt(const char *relative) {
  struct segments segments;
  split(&segments, relative);
  return dependency_depth(&segments) != INT_MAX;
}
