/* Preloaded into a broker: syncs fail while the file named by FAULT_SYNC exists, and the time of day is FAULT_CLOCK_S
   seconds off. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int fails(void)
{
    const char *path = getenv("FAULT_SYNC");
    if (path == NULL || access(path, F_OK) != 0)
        return 0;
    errno = EIO;
    return 1;
}

int fsync(int fd)
{
    int (*next)(int) = dlsym(RTLD_NEXT, "fsync");
    return fails() ? -1 : next(fd);
}

int fdatasync(int fd)
{
    int (*next)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return fails() ? -1 : next(fd);
}

int msync(void *address, size_t length, int flags)
{
    int (*next)(void *, size_t, int) = dlsym(RTLD_NEXT, "msync");
    return fails() ? -1 : next(address, length, flags);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*next)(clockid_t, struct timespec *);
    if (next == NULL)
        next = dlsym(RTLD_NEXT, "clock_gettime");
    int status = next(clock, now);
    const char *seconds = getenv("FAULT_CLOCK_S");
    if (status == 0 && clock == CLOCK_REALTIME && seconds != NULL)
        now->tv_sec += atol(seconds);
    return status;
}
