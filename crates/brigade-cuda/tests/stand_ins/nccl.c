// A stand-in for NCCL on hosts without GPUs. Ranks are threads of one process, each on a "GPU" of the stand-in for the driver.
// Operations run on its streams, over the process's own memory, and add in rank order. It is strict about the order of calls: a
// call on a communicator whose last call is still in progress, or which has ended, fails and counts as misuse. It shows in which
// order this project calls NCCL and what it does with the results, and nothing about NVIDIA's library.
//
// Settings, from the environment, with their defaults; operations are numbered from 1 on each communicator:
//   STAND_IN_NCCL         the version code (22703)
//   STAND_IN_FILE         NAME=VALUE, the content of NCCL's configuration file
//   STAND_IN_POLLS        how often a call is found in progress before it takes effect (2)
//   STAND_IN_STUCK        the number of the operation that never finishes on its stream
//   STAND_IN_IN_PROGRESS  the number of the operation whose call stays in progress
//   STAND_IN_ASYNC_ERROR  the number of the operation that never finishes and later causes an asynchronous error
//   STAND_IN_CALL_FAILS   the number of the operation whose call fails
//   STAND_IN_LAST_ERROR   how long ncclGetLastError takes, in milliseconds (0)
//   STAND_IN_FINALIZE     "hangs": finalizing stays in progress
//   STAND_IN_CONNECTS     if set, the first operation of a communicator stays in progress until all of its ranks have called one,
//                         as in NCCL, which connects ranks when they first need it
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

#define NEWEST 22703

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Group *groups;
char last_error[256];
static long finalizes, destroys, aborts, misuses, inits, failures;
void (*enqueue)(void *, void (*)(void *), void *);
void *(*current)(void);

long stand_in_count(const char *what) {
    pthread_mutex_lock(&lock);
    long found = !strcmp(what, "finalize") ? finalizes : !strcmp(what, "destroy") ? destroys :
                 !strcmp(what, "abort") ? aborts : !strcmp(what, "init") ? inits : !strcmp(what, "failure") ? failures : misuses;
    pthread_mutex_unlock(&lock);
    return found;
}

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int misuse(const char *what) {
    misuses++;
    snprintf(last_error, sizeof last_error, "stand-in: %s", what);
    fprintf(stderr, "%s\n", last_error);
    return INVALID_USAGE;
}

static int find_driver(void) {
    if (enqueue) return 1;
    void *driver = dlopen("libcuda.so", RTLD_NOW);
    if (!driver) return 0;
    current = (void *(*)(void))dlsym(driver, "stand_in_current");
    enqueue = (void (*)(void *, void (*)(void *), void *))dlsym(driver, "stand_in_enqueue");
    return enqueue && current;
}

// ---- Calls ----

static __thread int group_depth;
static __thread Comm *group_comm;
static __thread Comm *begun;

// The calling thread may now start a call on another communicator.
static void release_thread(Comm *comm) {
    if (comm->begun) *comm->begun = NULL;
    comm->begun = NULL;
}

static int completed(Comm *comm) {
    if (comm->ended) return misuse("a call on a communicator that has ended");
    if (comm->polls) return misuse("a call while the last one is in progress");
    release_thread(comm);
    return SUCCESS;
}

static int usable(Comm *comm) {
    int code = completed(comm);
    if (!code && comm->finalizing) code = misuse("a call on a communicator that is finalized");
    // Before 2.26, NCCL needs more than a query of the error.
    if (!code && begun) code = misuse("a call while the thread's last one, on another communicator, has not been seen to complete");
    return code;
}

static void begin(Comm *comm) {
    comm->polls = (int)setting("STAND_IN_POLLS", 2) + 1;
    if (setting("STAND_IN_NCCL", NEWEST) < 22600) begun = comm, comm->begun = &begun;
}

static int add_operation(Comm *comm, Op op) {
    pthread_mutex_lock(&lock);
    int code = usable(comm);
    comm->operations++;
    if (!code && comm->operations == setting("STAND_IN_CALL_FAILS", 0)) {
        snprintf(last_error, sizeof last_error, "stand-in: operation %ld is set to fail", comm->operations);
        failures++;
        code = INTERNAL_ERROR;
    }
    if (!code && !current()) code = misuse("an operation on a thread without a GPU");
    if (!code && (op.peer < 0 || op.peer >= comm->group->size)) {
        snprintf(last_error, sizeof last_error, "stand-in: no rank %d of %d", op.peer, comm->group->size);
        code = INVALID_ARGUMENT;
    }
    if (!code) {
        if (comm->operations == setting("STAND_IN_STUCK", 0)) comm->stuck = 1;
        if (comm->operations == setting("STAND_IN_ASYNC_ERROR", 0)) {
            comm->stuck = comm->fails = 1;
        }
        if (!comm->connects) comm->connects = 1, comm->group->connected++;
        Op *made = malloc(sizeof *made);
        *made = op;
        *comm->last = made;
        comm->last = &made->next;
        if (group_depth) group_comm = comm;
        else begin(comm), code = IN_PROGRESS;
        if (comm->operations == setting("STAND_IN_IN_PROGRESS", 0)) comm->polls = INT_MAX;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclGroupStart(void) { group_depth++; return SUCCESS; }
int ncclGroupEnd(void) {
    int code = SUCCESS;
    pthread_mutex_lock(&lock);
    if (--group_depth < 0) code = misuse("the end of a group that was not started");
    else if (!group_depth && group_comm) {
        if (group_comm->polls != INT_MAX) begin(group_comm);
        code = IN_PROGRESS;
    }
    if (!group_depth) group_comm = NULL;
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int reduction, Comm *comm, void *stream) {
    return add_operation(comm, (Op){ALL_REDUCE, from, to, count, type, reduction, 0, stream, NULL});
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int reduction, Comm *comm, void *stream) {
    return add_operation(comm, (Op){REDUCE_SCATTER, from, to, count, type, reduction, 0, stream, NULL});
}
int ncclAllGather(const void *from, void *to, size_t count, int type, Comm *comm, void *stream) {
    return add_operation(comm, (Op){ALL_GATHER, from, to, count, type, 0, 0, stream, NULL});
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm, void *stream) {
    return add_operation(comm, (Op){BROADCAST, from, to, count, type, 0, root, stream, NULL});
}
int ncclSend(const void *from, size_t count, int type, int peer, Comm *comm, void *stream) {
    return add_operation(comm, (Op){SEND, from, NULL, count, type, 0, peer, stream, NULL});
}
int ncclRecv(void *to, size_t count, int type, int peer, Comm *comm, void *stream) {
    return add_operation(comm, (Op){RECV, NULL, to, count, type, 0, peer, stream, NULL});
}

int ncclGetVersion(int *version) { *version = (int)setting("STAND_IN_NCCL", NEWEST); return SUCCESS; }
int ncclGetUniqueId(Id *id) {
    static long made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "stand-in %ld", ++made);
    id->internal[127] = -1;
    return SUCCESS;
}
const char *ncclGetLastError(Comm *comm) {
    usleep((useconds_t)setting("STAND_IN_LAST_ERROR", 0) * 1000);
    pthread_mutex_lock(&lock);
    if (comm->ended) misuse("a query of the last error of a communicator that has ended");
    pthread_mutex_unlock(&lock);
    return last_error;
}
const char *ncclGetErrorString(int code) {
    return code == REMOTE_ERROR ? "remote process exited or there was a network error" : "stand-in: an error";
}

static Comm *new_comm(Group *group, int rank) {
    Comm *comm = calloc(1, sizeof *comm);
    *comm = (Comm){.group = group, .rank = rank};
    comm->last = &comm->pending;
    inits++;
    return comm;
}

// As NCCL does with its configuration files when it starts.
static void read_file(void) {
    char name[128] = "";
    const char *file = getenv("STAND_IN_FILE"), *value = file ? strchr(file, '=') : NULL;
    if (value) setenv(strncpy(name, file, value - file), value + 1, 0);
}

int ncclCommInitRankConfig(Comm **comm, int size, Id id, int rank, Config *config) {
    if (config->magic != 0xcafebeef || config->size < sizeof *config || config->blocking || config->share != INT_MIN) {
        snprintf(last_error, sizeof last_error, "stand-in: a configuration that was not initialised");
        return INVALID_ARGUMENT;
    }
    pthread_mutex_lock(&lock);
    int code = IN_PROGRESS;
    if (!find_driver() || !current()) code = CUDA_ERROR;
    else {
        Group *group = groups;
        while (group && memcmp(&group->id, &id, sizeof id)) group = group->next;
        if (!group) {
            group = calloc(1, sizeof *group);
            *group = (Group){.id = id, .size = size, .next = groups};
            groups = group;
        }
        group->joined++;
        *comm = new_comm(group, rank);
        begin(*comm);
        read_file();
    }
    pthread_mutex_unlock(&lock);
    return code;
}

// Makes a group of the ranks of each colour, in order of key, then rank.
static void make_children(Group *group) {
    for (int leader = 0; leader < group->size; leader++) {
        if (group->colors[leader] < 0 || group->children[leader]) continue;
        Group *made = calloc(1, sizeof *made);
        int members[RANKS];
        for (int rank = 0; rank < group->size; rank++)
            if (group->colors[rank] == group->colors[leader]) {
                int at = made->size++;
                for (; at && group->keys[members[at - 1]] > group->keys[rank]; at--) members[at] = members[at - 1];
                members[at] = rank;
            }
        made->joined = made->size;
        for (int at = 0; at < made->size; at++) group->children[members[at]] = new_comm(made, at);
    }
    group->splits_pending = group->size;
    pthread_cond_broadcast(&changed);
}

// The thread of a split. It writes the result once all ranks have called, even after an abort.
static void *finish_split(void *argument) {
    Comm *comm = argument;
    Group *group = comm->group;
    usleep(3000);
    pthread_mutex_lock(&lock);
    while (!group->splits_pending && !comm->aborted) pthread_cond_wait(&changed, &lock);
    *comm->slot = group->splits_pending ? group->children[comm->rank] : NULL;
    comm->slot = NULL;
    if (group->splits_pending && !--group->splits_pending) group->splits_called = 0;
    pthread_mutex_unlock(&lock);
    return NULL;
}

// Like NCCL's, it reports success at once.
int ncclCommSplit(Comm *comm, int color, int key, Comm **slot, Config *config) {
    if (config->magic != 0xcafebeef) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    int code = usable(comm);
    if (!code) {
        Group *group = comm->group;
        while (group->splits_pending) pthread_mutex_unlock(&lock), usleep(100), pthread_mutex_lock(&lock);
        *slot = NULL;
        comm->slot = slot;
        group->colors[comm->rank] = color;
        group->keys[comm->rank] = key;
        group->children[comm->rank] = NULL;
        begin(comm);
        if (++group->splits_called == group->size) make_children(group);
        pthread_t thread;
        pthread_create(&thread, NULL, finish_split, comm);
        pthread_detach(thread);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int attribute(Comm *comm, int *into, int value) {
    pthread_mutex_lock(&lock);
    int code = completed(comm);
    *into = value;
    pthread_mutex_unlock(&lock);
    return code;
}
int ncclCommCount(Comm *comm, int *size) { return attribute(comm, size, comm->group->size); }
int ncclCommUserRank(Comm *comm, int *rank) { return attribute(comm, rank, comm->rank); }

int ncclCommGetAsyncError(Comm *comm, int *error) {
    pthread_mutex_lock(&lock);
    int code = SUCCESS;
    Group *group = comm->group;
    int waits = group->joined < group->size || comm->slot
        || (comm->pending && group->connected < group->size && getenv("STAND_IN_CONNECTS"))
        || (comm->finalizing && (group->finalized < group->size || getenv("STAND_IN_FINALIZE")));
    *error = IN_PROGRESS;
    if (comm->ended) code = misuse("a query of a communicator that has ended");
    else if (comm->error) *error = comm->error;
    else if (comm->polls && comm->polls != INT_MAX && !(comm->polls == 1 && waits) && !--comm->polls) {
        if (comm->pending) {
            launch(comm, comm->pending);
            comm->pending = NULL;
            comm->last = &comm->pending;
        }
        *error = SUCCESS;
    } else if (!comm->polls) *error = SUCCESS;
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclCommFinalize(Comm *comm) {
    pthread_mutex_lock(&lock);
    int code = usable(comm);
    if (!code) {
        finalizes++;
        comm->finalizing = 1;
        comm->group->finalized++;
        begin(comm);
        code = IN_PROGRESS;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclCommDestroy(Comm *comm) {
    pthread_mutex_lock(&lock);
    int code = comm->ended ? misuse("destroyed after its end") : !comm->finalizing ? misuse("destroyed before finalized") :
               comm->polls ? misuse("destroyed while finalizing") :
               !current() ? misuse("destroyed on a thread without a GPU") : SUCCESS;
    destroys++;
    comm->ended = 1;
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclCommAbort(Comm *comm) {
    pthread_mutex_lock(&lock);
    int code = comm->ended ? misuse("aborted after its end") :
               !current() ? misuse("aborted on a thread without a GPU") : SUCCESS;
    aborts++;
    release_thread(comm);
    comm->ended = comm->aborted = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return code;
}
