#include "supervise/protected_paths.h"

#include <ctype.h>
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

static bool segment_equals(const struct segments *segments, int index, const char *name, size_t length) {
  return index < segments->count && segments->length[index] == length &&
         !strncasecmp(segments->start[index], name, length);
}

static bool is_listed(const struct strings *list, const struct segments *segments, int index) {
  for (size_t i = 0; i < list->count; i++)
    if (segment_equals(segments, index, list->items[i], strlen(list->items[i]))) return true;
  return false;
}

static bool is_below(const char *path, const char *root) {
  size_t length = strlen(root);
  return !strncmp(path, root, length) && (path[length] == '/' || path[length] == 0);
}

/* The longest path of the list that contains this one, or NULL. */
static const char *innermost(const struct strings *list, const char *path) {
  const char *found = NULL;
  for (size_t i = 0; i < list->count; i++)
    if (is_below(path, list->items[i]) && (!found || strlen(list->items[i]) > strlen(found))) found = list->items[i];
  return found;
}

/*
 * How many segments of the path belong to its supervised mount; -1 when it is below none. SECURITY: a mount below a private
 * directory is supervised like any other mount, so the innermost one decides.
 */
static int mount_depth(const char *path) {
  struct segments segments;
  const char *root = innermost(&protection.mounts, path), *own = innermost(&protection.private_mounts, path);
  if (!root || (own && strlen(own) >= strlen(root))) return -1;
  split(&segments, root);
  return segments.count;
}

bool is_in_supervised_mount(const char *path) { return mount_depth(path) >= 0; }

/* How many segments of the pattern `a/b/c` the path has from `start` on; *whole is set when it has all. */
static int matched_segments(const struct segments *segments, int start, const char *pattern, bool *whole) {
  struct segments parts;
  split(&parts, pattern);
  int count = 0;
  while (count < parts.count && segment_equals(segments, start + count, parts.start[count], parts.length[count]))
    count++;
  *whole = count == parts.count;
  return count;
}

static int dependency_depth(const struct segments *segments, int root) {
  for (int i = root; i < segments->count; i++)
    if (is_listed(&protection.except, segments, i)) return i;
  return INT_MAX;
}

static bool is_pinned(const char *path) {
  for (size_t i = 0; i < protection.pinned.count; i++)
    if (is_below(path, protection.pinned.items[i])) return true;
  return false;
}

/* Patterns by their first segment: there are hundreds, and every change of a name is checked. */
enum { BUCKETS = 256 };

struct patterns {
  struct entry {
    const char *text;
    struct entry *next;
  } * buckets[BUCKETS];
};

/* Patterns for `.git/…` without their first segment, for repositories with another name. */
static struct patterns inner, names, in_repository;

static unsigned bucket_of(const char *name, size_t length) {
  unsigned hash = 5381;
  for (size_t i = 0; i < length; i++) hash = hash * 33 + (unsigned)tolower((unsigned char)name[i]);
  return hash % BUCKETS;
}

static void add_pattern(struct patterns *patterns, const char *text) {
  struct entry *entry = malloc(sizeof *entry);
  if (!entry) die("out of memory");
  unsigned bucket = bucket_of(text, strcspn(text, "/"));
  *entry = (struct entry){text, patterns->buckets[bucket]};
  patterns->buckets[bucket] = entry;
}

void protection_index(void) {
  for (size_t i = 0; i < protection.names.count; i++) add_pattern(&names, protection.names.items[i]);
  for (size_t i = 0; i < protection.inner.count; i++) {
    const char *text = protection.inner.items[i];
    add_pattern(&inner, text);
    if (!strncmp(text, ".git/", 5)) add_pattern(&in_repository, text + 5);
  }
}

/* The patterns that may begin at this segment. */
static const struct entry *candidates(const struct patterns *patterns, const struct segments *segments, int start) {
  return patterns->buckets[bucket_of(segments->start[start], segments->length[start])];
}

/* Only patterns that reach beyond the first `outside` segments count. */
static bool has_pattern(const struct patterns *patterns, const struct segments *segments, int start, int outside) {
  for (const struct entry *entry = candidates(patterns, segments, start); entry; entry = entry->next) {
    bool whole;
    int count = matched_segments(segments, start, entry->text, &whole);
    if (whole && start + count > outside) return true;
  }
  return false;
}

/* Whether the path ends inside one of the patterns, like `.github` of `.github/workflows`. */
static bool ends_inside_pattern(const struct patterns *patterns, const struct segments *segments, int start) {
  for (const struct entry *entry = candidates(patterns, segments, start); entry; entry = entry->next) {
    bool whole;
    int count = matched_segments(segments, start, entry->text, &whole);
    if (count > 0 && start + count == segments->count) return true;
  }
  return false;
}

/* Whether this segment is a direct entry of a git repository with any name. */
static bool is_in_git_directory(const char *path, const struct segments *segments, int start) {
  size_t length = (size_t)(segments->start[start] - path);
  while (length > 0 && path[length - 1] == '/') length--;
  return is_git_directory(path, length, segments->count - 1 - start);
}

/* Starts at the first segment, because the mounted directory itself may be the `.git` of `.git/hooks`. */
static bool has_inner_pattern(const char *path, const struct segments *segments, int root) {
  for (int start = 0; start < segments->count; start++) {
    if (has_pattern(&inner, segments, start, 0)) return true;
    if (start >= root && has_pattern(&in_repository, segments, start, 0) && is_in_git_directory(path, segments, start))
      return true;
  }
  return false;
}

/* The same rules as src/policy/paths/protect.ts; test/backends/bubblewrap.test.ts compares the two. */
bool is_protected(const char *path) {
  struct segments segments;
  int root = mount_depth(path);
  if (root < 0) return false;
  split(&segments, path);
  /* SECURITY: a path that is too deep to be checked is refused. */
  if (segments.count == MAX_SEGMENTS) return true;
  if (segments.count > root && is_listed(&protection.roots, &segments, segments.count - 1)) return true;
  if (is_pinned(path) || has_inner_pattern(path, &segments, root)) return true;
  /* The mounted directory may be the `.config` of `.config/git`. */
  int dependency = dependency_depth(&segments, root);
  for (int start = 0; start < segments.count && start <= dependency; start++)
    if (has_pattern(&names, &segments, start, root)) return true;
  return false;
}

static bool may_contain_pinned(const char *path) {
  size_t length = strlen(path);
  for (size_t i = 0; i < protection.pinned.count; i++)
    if (!strncmp(protection.pinned.items[i], path, length) && protection.pinned.items[i][length] == '/') return true;
  return false;
}

bool may_contain_protected(const char *path) {
  struct segments segments;
  int root = mount_depth(path);
  if (root < 0) return false;
  if (may_contain_pinned(path)) return true;
  split(&segments, path);
  for (int start = 0; start < segments.count; start++) {
    if (ends_inside_pattern(&inner, &segments, start)) return true;
    if (start >= root && ends_inside_pattern(&in_repository, &segments, start) &&
        is_in_git_directory(path, &segments, start))
      return true;
  }
  int dependency = dependency_depth(&segments, root);
  for (int start = 0; start < segments.count && start <= dependency && segments.count > root; start++)
    if (ends_inside_pattern(&names, &segments, start)) return true;
  return false;
}

bool is_in_dependency_directory(const char *path) {
  struct segments segments;
  int root = mount_depth(path);
  if (root < 0) return true;
  split(&segments, path);
  return dependency_depth(&segments, root) != INT_MAX;
}

bool names_dependency_directory(const char *path) {
  struct segments segments;
  split(&segments, path);
  for (int i = 0; i < segments.count; i++)
    if (is_listed(&protection.except, &segments, i)) return true;
  return segments.count == MAX_SEGMENTS;
}
