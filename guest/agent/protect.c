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

/* How many segments of the path are the guarded mount's own; -1 when it is below none. */
static int depth_of_root(const char *path) {
  for (size_t i = 0; i < protection.guarded.count; i++) {
    const char *root = protection.guarded.items[i];
    size_t length = strlen(root);
    if (strncmp(path, root, length) || (path[length] != '/' && path[length] != 0)) continue;
    struct segments segments;
    split(&segments, root);
    return segments.count;
  }
  return -1;
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

static int dependency_depth(const struct segments *segments, int root) {
  for (int i = root; i < segments->count; i++)
    if (listed(&protection.except, segments, i)) return i;
  return INT_MAX;
}

static bool is_pinned(const char *path) {
  for (size_t i = 0; i < protection.pinned.count; i++) {
    size_t length = strlen(protection.pinned.items[i]);
    if (!strncmp(path, protection.pinned.items[i], length) && (path[length] == '/' || path[length] == 0)) return true;
  }
  return false;
}

/* `.git/hooks` stands in the path also when the mount itself is the `.git`. */
static bool has_inner(const struct segments *segments) {
  for (int start = 0; start < segments->count; start++)
    for (size_t i = 0; i < protection.inner.count; i++) {
      bool whole;
      matched(segments, start, protection.inner.items[i], &whole);
      if (whole) return true;
    }
  return false;
}

static bool has_name(const struct segments *segments, int start) {
  for (size_t i = 0; i < protection.names.count; i++) {
    bool whole;
    matched(segments, start, protection.names.items[i], &whole);
    if (whole) return true;
  }
  return false;
}

/* The same judgement as policy/protect.ts; test/wall.test.ts holds the two against each other. */
bool is_protected(const char *path) {
  struct segments segments;
  int root = depth_of_root(path);
  if (root < 0) return false;
  split(&segments, path);
  /* SECURITY: a path too deep to be judged is refused, not waved through. */
  if (segments.count == MAX_SEGMENTS) return true;
  if (segments.count > root && listed(&protection.roots, &segments, segments.count - 1)) return true;
  if (is_pinned(path) || has_inner(&segments)) return true;
  int dependency = dependency_depth(&segments, root);
  for (int start = root; start < segments.count && start <= dependency; start++)
    if (has_name(&segments, start)) return true;
  return false;
}

static bool leads_to_pinned(const char *path) {
  size_t length = strlen(path);
  for (size_t i = 0; i < protection.pinned.count; i++)
    if (!strncmp(protection.pinned.items[i], path, length) && protection.pinned.items[i][length] == '/') return true;
  return false;
}

/* Whether the path ends in the middle of one of the patterns: `.github` of `.github/workflows`. */
static bool ends_within(const struct strings *patterns, const struct segments *segments, int start) {
  for (size_t i = 0; i < patterns->count; i++) {
    bool whole;
    int count = matched(segments, start, patterns->items[i], &whole);
    if (count > 0 && start + count == segments->count) return true;
  }
  return false;
}

bool leads_to_protected(const char *path) {
  struct segments segments;
  if (depth_of_root(path) < 0) return false;
  if (leads_to_pinned(path)) return true;
  split(&segments, path);
  for (int start = 0; start < segments.count; start++)
    if (ends_within(&protection.inner, &segments, start)) return true;
  int root = depth_of_root(path), dependency = dependency_depth(&segments, root);
  for (int start = root; start < segments.count && start <= dependency; start++)
    if (ends_within(&protection.names, &segments, start)) return true;
  return false;
}

bool is_exempt(const char *path) {
  struct segments segments;
  int root = depth_of_root(path);
  if (root < 0) return true;
  split(&segments, path);
  return dependency_depth(&segments, root) != INT_MAX;
}
