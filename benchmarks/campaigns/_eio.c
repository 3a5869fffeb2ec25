/* Makes file operations fail with EIO, below CAMPAIGN_EIO_BELOW, from the CAMPAIGN_EIO_FIRST-th
 * to the CAMPAIGN_EIO_LAST-th of a process. For LD_PRELOAD; does nothing without these variables. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long operations;

static int path_fails(const char *path) {
  const char *below = getenv("CAMPAIGN_EIO_BELOW");
  if (below == NULL || strncmp(path, below, strlen(below)) != 0) return 0;
  long number = __atomic_add_fetch(&operations, 1, __ATOMIC_SEQ_CST);
  const char *first = getenv("CAMPAIGN_EIO_FIRST"), *last = getenv("CAMPAIGN_EIO_LAST");
  if (first == NULL || last == NULL || number < atol(first) || number > atol(last)) return 0;
  errno = EIO;
  return 1;
}

static int file_fails(int descriptor) {
  char link[64], path[4096];
  if (getenv("CAMPAIGN_EIO_BELOW") == NULL) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return path_fails(path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *data, size_t size) {
  return file_fails(descriptor) ? -1 : NEXT(write)(descriptor, data, size);
}

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  return file_fails(fileno(file)) ? 0 : NEXT(fwrite)(data, size, count, file);
}

int fflush(FILE *file) {
  return file != NULL && file_fails(fileno(file)) ? EOF : NEXT(fflush)(file);
}

int fsync(int descriptor) { return file_fails(descriptor) ? -1 : NEXT(fsync)(descriptor); }

int rename(const char *from, const char *to) { return path_fails(to) ? -1 : NEXT(rename)(from, to); }

int mkdir(const char *path, mode_t mode) { return path_fails(path) ? -1 : NEXT(mkdir)(path, mode); }
