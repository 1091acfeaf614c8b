/* Makes the wall clock of a process step, and its disk slow; other clocks and sleeps stay as they are.

   STEP_FILE: a file whose size, in minutes less 100000, is added to the wall clock. SLOW_MS: what each fsync takes more, of files whose
   path has SLOW_FILE in it, or of all. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_s(void) {
    const char *path = getenv("STEP_FILE");
    struct stat found;
    if (path == NULL || stat(path, &found) != 0) return 0;
    return ((long)found.st_size - 100000) * 60;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, now);
    if (which == CLOCK_REALTIME) now->tv_sec += offset_s();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    now->tv_sec += offset_s();
    return result;
}

static int is_slow(int file) {
    const char *wanted = getenv("SLOW_FILE");
    char link[64], path[4096];
    if (wanted == NULL) return 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, wanted) != NULL;
}

static void wait_for_disk(int file) {
    const char *text = getenv("SLOW_MS");
    if (text == NULL || !is_slow(file)) return;
    long ms = atol(text);
    struct timespec pause = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

int fsync(int file) {
    static int (*real)(int);
    if (real == NULL) real = dlsym(RTLD_NEXT, "fsync");
    wait_for_disk(file);
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (real == NULL) real = dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk(file);
    return real(file);
}
