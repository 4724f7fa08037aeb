// A stand-in for libcuda on hosts without GPUs. The GPU's memory is the process's own. A stream is a thread that runs its tasks in
// order, and with a delay. It shows in which order this project calls the driver and what it does with the results, and nothing
// about NVIDIA's driver.
//
// Settings, from the environment, with their defaults:
//   STAND_IN_DRIVER     the version (12080)
//   STAND_IN_INIT       the result of cuInit (0)
//   STAND_IN_GPUS       the number of GPUs (2)
//   STAND_IN_SAME_UUID  if set, all GPUs have the same UUID
//   STAND_IN_LATE       the longest delay of a stream before a task, in microseconds (without it, 300 before each)
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_READY = 600 };

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

// ---- Counters, for tests ----

static long live_streams, live_events, retained;

long stand_in_live(const char *what) {
    if (!strcmp(what, "streams")) return __atomic_load_n(&live_streams, __ATOMIC_SEQ_CST);
    if (!strcmp(what, "events")) return __atomic_load_n(&live_events, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&retained, __ATOMIC_SEQ_CST);
}

static void count(long *counter, long by) { __atomic_add_fetch(counter, by, __ATOMIC_SEQ_CST); }

// ---- Streams and events. One lock for all. They are never freed, since late tasks may still use them; a stream's thread ends when
// the stream is destroyed and has no tasks left. ----

typedef struct Task { void (*run)(void *); void *argument; struct Task *next; } Task;
typedef struct Stream {
    struct Context *context;
    Task *first, **last;
    int busy, destroyed;
    pthread_cond_t pushed;
    unsigned jitter;  // the state of its random delays
    struct Stream *next;
} Stream;
typedef struct Event { struct Context *context; unsigned long recorded, done; } Event;
typedef struct Context { int device; Stream *streams; } Context;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t completed = PTHREAD_COND_INITIALIZER;
static Context contexts[64];
static unsigned seed = 1;

// Seeds the delays of streams that are created from now on.
void stand_in_seed(unsigned number) { __atomic_store_n(&seed, number * 2654435761u + 1, __ATOMIC_SEQ_CST); }

// Long enough that a missing wait shows.
static void delay_task(Stream *stream, long late) {
    if (late < 0) { usleep(300); return; }
    stream->jitter = stream->jitter * 1664525u + 1013904223u;
    // Mostly short, sometimes long.
    unsigned long part = stream->jitter >> 16;
    unsigned long delay = (part * part >> 16) * late >> 16;
    if (delay) usleep(delay);
}

static void *run_stream(void *argument) {
    Stream *stream = argument;
    long late = setting("STAND_IN_LATE", -1);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first && !stream->destroyed) pthread_cond_wait(&stream->pushed, &lock);
        Task *task = stream->first;
        if (!task) break;
        stream->first = task->next;
        if (!stream->first) stream->last = &stream->first;
        stream->busy = 1;
        pthread_mutex_unlock(&lock);
        delay_task(stream, late);
        task->run(task->argument);
        free(task);
        pthread_mutex_lock(&lock);
        stream->busy = 0;
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void push(Stream *stream, void (*run)(void *), void *argument) {
    Task *task = calloc(1, sizeof *task);
    task->run = run;
    task->argument = argument;
    *stream->last = task;
    stream->last = &task->next;
    pthread_cond_signal(&stream->pushed);
}

// For the stand-in for NCCL.
void stand_in_enqueue(void *stream, void (*run)(void *), void *argument) {
    pthread_mutex_lock(&lock);
    push(stream, run, argument);
    pthread_mutex_unlock(&lock);
}

// One recording of an event.
typedef struct Recording { Event *event; unsigned long number; } Recording;

static Recording *last_recording(Event *event) {
    Recording *made = malloc(sizeof *made);
    *made = (Recording){event, event->recorded};
    return made;
}

static void complete(void *argument) {
    Recording *at = argument;
    pthread_mutex_lock(&lock);
    if (at->event->done < at->number) at->event->done = at->number;
    pthread_cond_broadcast(&completed);
    pthread_mutex_unlock(&lock);
    free(at);
}

static void await_event(void *argument) {
    Recording *at = argument;
    pthread_mutex_lock(&lock);
    while (at->event->done < at->number) pthread_cond_wait(&completed, &lock);
    pthread_mutex_unlock(&lock);
    free(at);
}

typedef struct Value { volatile uint32_t *address; uint32_t value; } Value;

static void await_value(void *argument) {
    Value *wanted = argument;
    while ((int32_t)(__atomic_load_n(wanted->address, __ATOMIC_SEQ_CST) - wanted->value) < 0) usleep(100);
    free(wanted);
}

// ---- Contexts ----

static __thread Context *stack[16];
static __thread int depth;

// For the stand-in for NCCL, which also uses the GPU of the calling thread.
void *stand_in_current(void) { return depth ? stack[depth - 1] : NULL; }

int cuCtxPushCurrent_v2(Context *context) { stack[depth++] = context; return 0; }
int cuCtxPopCurrent_v2(Context **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = stack[--depth];
    return 0;
}
int cuCtxSetCurrent(Context *context) {
    if (!depth) depth = 1;
    stack[depth - 1] = context;
    return 0;
}
int cuDevicePrimaryCtxRetain(Context **context, int device) {
    contexts[device].device = device;
    *context = &contexts[device];
    count(&retained, 1);
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; count(&retained, -1); return 0; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }

int cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    Context *context = stand_in_current();
    if (!context) return INVALID_CONTEXT;
    if (flags != 1 || priority != -5) return INVALID_VALUE;
    Stream *made = calloc(1, sizeof *made);
    made->context = context;
    made->last = &made->first;
    pthread_cond_init(&made->pushed, NULL);
    made->jitter = __atomic_add_fetch(&seed, 0x9e3779b9u, __ATOMIC_SEQ_CST);
    pthread_t thread;
    pthread_create(&thread, NULL, run_stream, made);
    pthread_detach(thread);
    pthread_mutex_lock(&lock);
    made->next = context->streams;
    context->streams = made;
    pthread_mutex_unlock(&lock);
    count(&live_streams, 1);
    *stream = made;
    return 0;
}
int cuStreamDestroy_v2(Stream *stream) {
    pthread_mutex_lock(&lock);
    Stream **at = &stream->context->streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    stream->destroyed = 1;
    pthread_cond_signal(&stream->pushed);
    pthread_mutex_unlock(&lock);
    count(&live_streams, -1);
    return 0;
}
int cuLaunchHostFunc(Stream *stream, void (*run)(void *), void *argument) {
    if (!run) return INVALID_VALUE;
    stand_in_enqueue(stream, run, argument);
    return 0;
}
int cuStreamQuery(Stream *stream) {
    pthread_mutex_lock(&lock);
    int busy = stream->busy || stream->first;
    pthread_mutex_unlock(&lock);
    return busy ? NOT_READY : 0;
}
int cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    if (flags) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    push(stream, await_event, last_recording(event));
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuStreamWaitValue32_v2(Stream *stream, uint64_t address, uint32_t value, unsigned flags) {
    if (flags || !address || address % 4) return INVALID_VALUE;
    Value *wanted = malloc(sizeof *wanted);
    *wanted = (Value){(volatile uint32_t *)address, value};
    stand_in_enqueue(stream, await_value, wanted);
    return 0;
}
// All later work of the GPU waits, including that on NCCL's streams.
int cuCtxWaitEvent(Context *context, Event *event) {
    pthread_mutex_lock(&lock);
    for (Stream *stream = context->streams; stream; stream = stream->next) push(stream, await_event, last_recording(event));
    pthread_mutex_unlock(&lock);
    return 0;
}

// The event completes after all tasks of all streams of the context, including NCCL's.
typedef struct ContextRecording { Recording *recording; int streams; } ContextRecording;

static void complete_after_all(void *argument) {
    ContextRecording *all = argument;
    if (__atomic_sub_fetch(&all->streams, 1, __ATOMIC_SEQ_CST)) return;
    complete(all->recording);
    free(all);
}

int cuCtxRecordEvent(Context *context, Event *event) {
    if (event->context != context) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    event->recorded++;
    ContextRecording *all = malloc(sizeof *all);
    *all = (ContextRecording){last_recording(event), 0};
    for (Stream *stream = context->streams; stream; stream = stream->next) all->streams++;
    for (Stream *stream = context->streams; stream; stream = stream->next) push(stream, complete_after_all, all);
    if (!context->streams) event->done = event->recorded, free(all->recording), free(all);
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuEventCreate(Event **event, unsigned flags) {
    if (!stand_in_current()) return INVALID_CONTEXT;
    if (flags != 2) return INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    (*event)->context = stand_in_current();
    count(&live_events, 1);
    return 0;
}
int cuEventDestroy_v2(Event *event) { (void)event; count(&live_events, -1); return 0; }
int cuEventRecord(Event *event, Stream *stream) {
    if (event->context != stream->context) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    event->recorded++;
    push(stream, complete, last_recording(event));
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuEventQuery(Event *event) {
    pthread_mutex_lock(&lock);
    int done = event->done >= event->recorded;
    pthread_mutex_unlock(&lock);
    return done ? 0 : NOT_READY;
}

// The first version of this function: drivers before 12.8 have no other.
int cuEventElapsedTime(float *milliseconds, Event *start, Event *end) {
    (void)start, (void)end;
    *milliseconds = 1.5f;
    return 0;
}

// ---- The driver and its GPUs ----

int cuDriverGetVersion(int *version) { *version = (int)setting("STAND_IN_DRIVER", 12080); return 0; }
int cuInit(unsigned flags) { (void)flags; return (int)setting("STAND_IN_INIT", 0); }
int cuGetErrorName(int code, const char **name) {
    *name = code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : code == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE" :
            code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : NULL;
    return *name ? 0 : INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
    *text = code == NO_DEVICE ? "no CUDA-capable device is detected" :
            code == INVALID_DEVICE ? "invalid device ordinal" : NULL;
    return *text ? 0 : INVALID_VALUE;
}
int cuDeviceGetCount(int *gpus) { *gpus = (int)setting("STAND_IN_GPUS", 2); return 0; }
int cuDeviceGet(int *device, int index) {
    if (index < 0 || index >= setting("STAND_IN_GPUS", 2)) return INVALID_DEVICE;
    *device = index;
    return 0;
}
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Stand-in %d", device); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) {
    memset(uuid, getenv("STAND_IN_SAME_UUID") ? 0x11 : 0x11 * (device + 1), 16);
    return 0;
}
int cuDeviceGetPCIBusId(char *name, int length, int device) {
    snprintf(name, length, "0000:%02x:00.0", device + 1);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)80 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : 0;
    return 0;
}
// Each GPU can access the next one's memory, and the last one none.
int cuDeviceCanAccessPeer(int *can, int from, int to) { *can = to == from + 1; return 0; }
