// A stand-in for NCCL on hosts without GPUs. Ranks are threads of one process, each on a "GPU" of the
// stand-in driver; operations run on its streams, over the process's own memory, adding in rank order. It is
// strict about the order of calls: a call on a communicator that has not settled, or has ended, fails and is
// counted as misuse. It proves in which order this project calls NCCL and what it does with the answers. It
// proves nothing about NVIDIA's library.
//
// Settings, from the environment; an operation's number counts from 1 on each communicator:
//   STAND_IN_NCCL         the version code (22703)
//   STAND_IN_POLLS        how often a call is found in progress before it has effect (2)
//   STAND_IN_STUCK        the number of the operation that never ends on its stream
//   STAND_IN_UNSETTLED    the number of the operation that stays in progress
//   STAND_IN_ASYNC_ERROR  the number of the operation that never ends and later makes an asynchronous error
//   STAND_IN_CALL_FAILS   the number of the operation whose call fails
//   STAND_IN_FINALIZE     "hangs": finalizing stays in progress
//   STAND_IN_CONNECTS     the first operation of a communicator stays in progress until all of its ranks have called one, as
//                         NCCL connects ranks when they first need it
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum { UINT8_TYPE = 1, INT64_TYPE = 4, HALF_TYPE = 6, FLOAT_TYPE = 7, DOUBLE_TYPE = 8, BRAIN_TYPE = 9 };
enum { SUM_OP = 0, MAX_OP = 2 };
enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV };
#define RANKS 16

typedef struct { char internal[128]; } Id;
typedef struct { size_t size; unsigned magic, version; int blocking; int rest[3]; const char *net; int share; } Config;

typedef struct Op {
    int kind;
    const void *from;
    void *to;
    size_t count;
    int type, reduction, peer;
    void *stream;
    struct Op *next;
} Op;

// It is read where the sender has it, when the receiver takes it.
typedef struct Message { int from, to; const void *data; size_t bytes; int taken; struct Message *next; } Message;

// What ranks of a communicator share.
typedef struct Room {
    Id id;
    int size, joined, finalized, connected;
    // The collective that is being met for, and how many were.
    Op *offers[RANKS];
    int offered;
    unsigned long met;
    Message *messages;
    // The split that is being met for.
    int colors[RANKS], keys[RANKS], asked, answered;
    struct Comm *children[RANKS];
    struct Room *next;
} Room;

typedef struct Comm {
    Room *room;
    int rank;
    int polls;  // in progress for so many looks more
    int aborted, ended, error, finalizing, stuck, fails, connects;
    long operations;
    Op *pending, **last;  // in progress: not in a stream yet
    struct Comm **split_slot;
    int splitting;
} Comm;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Room *rooms;
static char last_error[256];
static long finalizes, destroys, aborts, misuses, inits;
static void (*enqueue)(void *, void (*)(void *), void *);
static void *(*current)(void);

long stand_in_count(const char *what) {
    pthread_mutex_lock(&lock);
    long found = !strcmp(what, "finalize") ? finalizes : !strcmp(what, "destroy") ? destroys :
                 !strcmp(what, "abort") ? aborts : !strcmp(what, "init") ? inits : misuses;
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

// ---- Arithmetic ----

static size_t size_of(int type) {
    return type == UINT8_TYPE ? 1 : type == HALF_TYPE || type == BRAIN_TYPE ? 2 : type == FLOAT_TYPE ? 4 : 8;
}

static float wide(uint16_t brain) {
    uint32_t bits = (uint32_t)brain << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define COMBINE(T)                                                                                     \
    for (size_t i = 0; i < count; i++) {                                                               \
        T *a = (T *)into + i, b = ((const T *)from)[i];                                                \
        *a = reduction == MAX_OP ? (b > *a ? b : *a) : (T)(*a + b);                                    \
    }

static void combine(void *into, const void *from, size_t count, int type, int reduction) {
    switch (type) {
        case UINT8_TYPE: COMBINE(uint8_t) break;
        case INT64_TYPE: COMBINE(int64_t) break;
        case HALF_TYPE: COMBINE(_Float16) break;
        case FLOAT_TYPE: COMBINE(float) break;
        case DOUBLE_TYPE: COMBINE(double) break;
        default:
            for (size_t i = 0; i < count; i++) {
                float a = wide(((uint16_t *)into)[i]), b = wide(((const uint16_t *)from)[i]);
                ((uint16_t *)into)[i] = narrow(reduction == MAX_OP ? (b > a ? b : a) : a + b);
            }
    }
}

// The last rank that comes does the work of all.
static void work(Room *room) {
    Op *first = room->offers[0];
    size_t bytes = first->count * size_of(first->type);
    size_t total = first->kind == REDUCE_SCATTER || first->kind == ALL_GATHER ? bytes * room->size : bytes;
    char *result = malloc(total + 1);
    switch (first->kind) {
        case ALL_REDUCE:
        case REDUCE_SCATTER:
            memcpy(result, first->from, total);
            for (int rank = 1; rank < room->size; rank++)
                combine(result, room->offers[rank]->from, total / size_of(first->type), first->type, first->reduction);
            break;
        case ALL_GATHER:
            for (int rank = 0; rank < room->size; rank++)
                memcpy(result + rank * bytes, room->offers[rank]->from, bytes);
            break;
        case BROADCAST: memcpy(result, room->offers[first->peer]->from, bytes); break;
    }
    for (int rank = 0; rank < room->size; rank++) {
        Op *op = room->offers[rank];
        if (op->kind == REDUCE_SCATTER) memcpy(op->to, result + rank * bytes, bytes);
        else memcpy(op->to, result, total);
    }
    free(result);
}

// ---- What runs on streams ----

typedef struct Launch { Comm *comm; Op *ops; int stuck, fails; } Launch;

static void collective(Comm *comm, Op *op) {
    Room *room = comm->room;
    while (room->offers[comm->rank] && !comm->aborted) pthread_cond_wait(&changed, &lock);
    if (comm->aborted) return;
    unsigned long met = room->met;
    room->offers[comm->rank] = op;
    if (++room->offered == room->size) {
        work(room);
        memset(room->offers, 0, sizeof room->offers);
        room->offered = 0;
        room->met++;
        pthread_cond_broadcast(&changed);
    }
    while (room->met == met && !comm->aborted) pthread_cond_wait(&changed, &lock);
    if (room->met == met) room->offers[comm->rank] = NULL, room->offered--;
}

static Message **message(Room *room, int from, int to) {
    for (Message **at = &room->messages; *at; at = &(*at)->next)
        if ((*at)->from == from && (*at)->to == to) return at;
    return NULL;
}

static void take_back(Room *room, Message *message) {
    for (Message **at = &room->messages; *at; at = &(*at)->next)
        if (*at == message) { *at = message->next; return; }
}

static void run(void *argument) {
    Launch *launch = argument;
    Comm *comm = launch->comm;
    Room *room = comm->room;
    Message *sent[64];
    int sends = 0;
    if (launch->fails) usleep(20000);  // the call has settled long before
    pthread_mutex_lock(&lock);
    if (launch->fails) {
        comm->error = REMOTE_ERROR;
        snprintf(last_error, sizeof last_error, "stand-in: a peer has gone");
    }
    while (launch->stuck && !comm->aborted) pthread_cond_wait(&changed, &lock);
    // All sends are offered before the first receive, so that both directions run at once.
    for (Op *op = launch->ops; op && !comm->aborted; op = op->next) {
        if (op->kind != SEND) continue;
        Message *made = calloc(1, sizeof *made), **end = &room->messages;
        *made = (Message){comm->rank, op->peer, op->from, op->count * size_of(op->type), 0, NULL};
        while (*end) end = &(*end)->next;
        *end = made;
        sent[sends++] = made;
        pthread_cond_broadcast(&changed);
    }
    for (Op *op = launch->ops; op && !comm->aborted; op = op->next) {
        if (op->kind == SEND) continue;
        if (op->kind != RECV) { collective(comm, op); continue; }
        Message **found = NULL;
        while (!comm->aborted && !(found = message(room, op->peer, comm->rank))) pthread_cond_wait(&changed, &lock);
        if (!found) break;
        Message *taken = *found;
        *found = taken->next;
        memcpy(op->to, taken->data, taken->bytes);
        taken->taken = 1;
        pthread_cond_broadcast(&changed);
    }
    for (int i = 0; i < sends; i++) {
        while (!sent[i]->taken && !comm->aborted) pthread_cond_wait(&changed, &lock);
        if (!sent[i]->taken) take_back(room, sent[i]);
        free(sent[i]);
    }
    pthread_mutex_unlock(&lock);
    for (Op *op = launch->ops, *next; op; op = next) next = op->next, free(op);
    free(launch);
}

static void launch(Comm *comm, Op *ops) {
    Launch *made = malloc(sizeof *made);
    *made = (Launch){comm, ops, comm->stuck, comm->fails};
    enqueue(ops->stream, run, made);
}

// ---- Calls ----

static int usable(Comm *comm) {
    if (comm->ended) return misuse("a call on a communicator that has ended");
    if (comm->finalizing) return misuse("a call on a communicator that is finalized");
    if (comm->polls) return misuse("a call before the last one has settled");
    return SUCCESS;
}

static __thread int group_depth;
static __thread Comm *group_comm;

static void begin(Comm *comm) { comm->polls = (int)setting("STAND_IN_POLLS", 2) + 1; }

static int put(Comm *comm, Op op) {
    pthread_mutex_lock(&lock);
    int code = usable(comm);
    comm->operations++;
    if (!code && comm->operations == setting("STAND_IN_CALL_FAILS", 0)) {
        snprintf(last_error, sizeof last_error, "stand-in: operation %ld was told to fail", comm->operations);
        code = INTERNAL_ERROR;
    }
    if (!code && !current()) code = misuse("an operation on a thread without a GPU");
    if (!code && (op.peer < 0 || op.peer >= comm->room->size)) {
        snprintf(last_error, sizeof last_error, "stand-in: no rank %d of %d", op.peer, comm->room->size);
        code = INVALID_ARGUMENT;
    }
    if (!code) {
        if (comm->operations == setting("STAND_IN_STUCK", 0)) comm->stuck = 1;
        if (comm->operations == setting("STAND_IN_ASYNC_ERROR", 0)) {
            comm->stuck = comm->fails = 1;
        }
        if (!comm->connects) comm->connects = 1, comm->room->connected++;
        Op *made = malloc(sizeof *made);
        *made = op;
        *comm->last = made;
        comm->last = &made->next;
        if (group_depth) group_comm = comm;
        else begin(comm), code = IN_PROGRESS;
        if (comm->operations == setting("STAND_IN_UNSETTLED", 0)) comm->polls = INT_MAX;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclGroupStart(void) { group_depth++; return SUCCESS; }
int ncclGroupEnd(void) {
    int code = SUCCESS;
    pthread_mutex_lock(&lock);
    if (--group_depth < 0) code = misuse("the end of a group that was not started");
    else if (!group_depth && group_comm && group_comm->polls != INT_MAX) begin(group_comm), code = IN_PROGRESS;
    if (!group_depth) group_comm = NULL;
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int reduction, Comm *comm, void *stream) {
    return put(comm, (Op){ALL_REDUCE, from, to, count, type, reduction, 0, stream, NULL});
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int reduction, Comm *comm, void *stream) {
    return put(comm, (Op){REDUCE_SCATTER, from, to, count, type, reduction, 0, stream, NULL});
}
int ncclAllGather(const void *from, void *to, size_t count, int type, Comm *comm, void *stream) {
    return put(comm, (Op){ALL_GATHER, from, to, count, type, 0, 0, stream, NULL});
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm, void *stream) {
    return put(comm, (Op){BROADCAST, from, to, count, type, 0, root, stream, NULL});
}
int ncclSend(const void *from, size_t count, int type, int peer, Comm *comm, void *stream) {
    return put(comm, (Op){SEND, from, NULL, count, type, 0, peer, stream, NULL});
}
int ncclRecv(void *to, size_t count, int type, int peer, Comm *comm, void *stream) {
    return put(comm, (Op){RECV, NULL, to, count, type, 0, peer, stream, NULL});
}

int ncclGetVersion(int *version) { *version = (int)setting("STAND_IN_NCCL", 22703); return SUCCESS; }
int ncclGetUniqueId(Id *id) {
    static long made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "stand-in %ld", ++made);
    id->internal[127] = -1;
    return SUCCESS;
}
const char *ncclGetLastError(Comm *comm) { (void)comm; return last_error; }
const char *ncclGetErrorString(int code) {
    return code == REMOTE_ERROR ? "remote process exited or there was a network error" : "stand-in: an error";
}

static Comm *new_comm(Room *room, int rank) {
    Comm *comm = calloc(1, sizeof *comm);
    *comm = (Comm){.room = room, .rank = rank};
    comm->last = &comm->pending;
    begin(comm);
    inits++;
    return comm;
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
        Room *room = rooms;
        while (room && memcmp(&room->id, &id, sizeof id)) room = room->next;
        if (!room) {
            room = calloc(1, sizeof *room);
            *room = (Room){.id = id, .size = size, .next = rooms};
            rooms = room;
        }
        room->joined++;
        *comm = new_comm(room, rank);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclCommSplit(Comm *comm, int color, int key, Comm **slot, Config *config) {
    if (config->magic != 0xcafebeef) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    int code = usable(comm);
    if (!code) {
        Room *room = comm->room;
        while (room->answered) pthread_mutex_unlock(&lock), usleep(100), pthread_mutex_lock(&lock);
        *slot = NULL;
        comm->split_slot = slot;
        comm->splitting = 1;
        room->colors[comm->rank] = color;
        room->keys[comm->rank] = key;
        room->children[comm->rank] = NULL;
        begin(comm);
        code = IN_PROGRESS;
        if (++room->asked == room->size) {
            // Each colour's ranks in order of key, then rank.
            for (int leader = 0; leader < room->size; leader++) {
                if (room->colors[leader] < 0 || room->children[leader]) continue;
                Room *made = calloc(1, sizeof *made);
                int members[RANKS];
                for (int rank = 0; rank < room->size; rank++)
                    if (room->colors[rank] == room->colors[leader]) {
                        int at = made->size++;
                        for (; at && room->keys[members[at - 1]] > room->keys[rank]; at--) members[at] = members[at - 1];
                        members[at] = rank;
                    }
                made->joined = made->size;
                for (int at = 0; at < made->size; at++) room->children[members[at]] = new_comm(made, at);
            }
            room->answered = room->size;
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int ncclCommCount(Comm *comm, int *size) { *size = comm->room->size; return SUCCESS; }
int ncclCommUserRank(Comm *comm, int *rank) { *rank = comm->rank; return SUCCESS; }

int ncclCommGetAsyncError(Comm *comm, int *error) {
    pthread_mutex_lock(&lock);
    int code = SUCCESS;
    Room *room = comm->room;
    int waits = room->joined < room->size
        || (comm->splitting && !room->answered)
        || (comm->pending && room->connected < room->size && getenv("STAND_IN_CONNECTS"))
        || (comm->finalizing && (room->finalized < room->size || getenv("STAND_IN_FINALIZE")));
    *error = IN_PROGRESS;
    if (comm->ended) code = misuse("a look at a communicator that has ended");
    else if (comm->error) *error = comm->error;
    else if (comm->polls && comm->polls != INT_MAX && !(comm->polls == 1 && waits) && !--comm->polls) {
        if (comm->pending) {
            launch(comm, comm->pending);
            comm->pending = NULL;
            comm->last = &comm->pending;
        }
        if (comm->splitting) {
            *comm->split_slot = room->children[comm->rank];
            comm->splitting = 0;
            if (!--room->answered) room->asked = 0;
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
        comm->room->finalized++;
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
    comm->ended = comm->aborted = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return code;
}
