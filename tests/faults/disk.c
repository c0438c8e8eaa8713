/* A disk that fails: preloaded, it lets one chosen write inside a folder fail, or kills the process there.

   Every call that changes something inside the folder is an event; events are counted from 1. The chosen event fails
   with an error of the system, once or from then on, or ends the process by SIGKILL. A chosen `write` first writes half
   of its bytes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { DESCRIPTORS = 4096 };

static char folder[PATH_MAX];
static long chosen, events;
static int error, lasting; /* error 0: kill */
static char watched[DESCRIPTORS];

void fault_arm(const char *where, long event, int number, int from_then_on) {
    snprintf(folder, sizeof folder, "%s/", where);
    chosen = event;
    error = number;
    lasting = from_then_on;
    events = 0;
    memset(watched, 0, sizeof watched);
}

long fault_events(void) { return events; }

static int inside(const char *path) {
    char whole[2 * PATH_MAX];
    if (!folder[0] || !path) return 0;
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        if (!getcwd(whole, PATH_MAX)) return 0;
        size_t length = strlen(whole);
        snprintf(whole + length, sizeof whole - length, "/%s", path);
    }
    return strncmp(whole, folder, strlen(folder)) == 0;
}

/* Count an event; return whether it must fail. A full disk still deletes files. */
static int fails(int deletes) {
    events++;
    int hit = chosen && (events == chosen || (lasting && events > chosen));
    if (!hit || (deletes && error == ENOSPC)) return 0;
    return 1;
}

static int refuse(void) {
    if (!error) kill(getpid(), SIGKILL);
    errno = error;
    return -1;
}

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(name)                                                                    \
    int name(const char *path, int flags, ...) {                                      \
        va_list rest;                                                                 \
        va_start(rest, flags);                                                        \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;       \
        va_end(rest);                                                                 \
        int writes = flags & (O_CREAT | O_WRONLY | O_RDWR) && inside(path);           \
        if (writes && fails(0)) return refuse();                                      \
        int file = NEXT(name)(path, flags, mode);                                     \
        if (file >= 0 && file < DESCRIPTORS) watched[file] = (char)(writes != 0);     \
        return file;                                                                  \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int file, const void *data, size_t size) {
    if (file >= 0 && file < DESCRIPTORS && watched[file] && fails(0)) {
        if (size > 1) NEXT(write)(file, data, size / 2);
        return refuse();
    }
    return NEXT(write)(file, data, size);
}

int close(int file) {
    if (file >= 0 && file < DESCRIPTORS) watched[file] = 0;
    return NEXT(close)(file);
}

#define ON_DESCRIPTOR(name, arguments, call)                                                       \
    int name arguments {                                                                           \
        if (file >= 0 && file < DESCRIPTORS && watched[file] && fails(0)) return refuse();         \
        return NEXT(name) call;                                                                    \
    }
ON_DESCRIPTOR(fsync, (int file), (file))
ON_DESCRIPTOR(ftruncate, (int file, off_t size), (file, size))
ON_DESCRIPTOR(ftruncate64, (int file, off64_t size), (file, size))

#define ON_PATH(name, deletes, arguments, call)                    \
    int name arguments {                                           \
        if (inside(path) && fails(deletes)) return refuse();       \
        return NEXT(name) call;                                    \
    }
ON_PATH(rename, 0, (const char *path, const char *target), (path, target))
ON_PATH(mkdir, 0, (const char *path, mode_t mode), (path, mode))
ON_PATH(unlink, 1, (const char *path), (path))
ON_PATH(rmdir, 1, (const char *path), (path))
