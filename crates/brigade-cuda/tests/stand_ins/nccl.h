// What the parts of the stand-in for NCCL share.
#pragma GCC visibility push(hidden)

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
    struct Comm **slot;   // where a split puts what it makes; none when it has
    struct Comm **begun;  // where the thread of the last call keeps it
} Comm;

extern pthread_mutex_t lock;
extern pthread_cond_t changed;
extern char last_error[256];
// Of the stand-in of the driver.
extern void (*enqueue)(void *, void (*)(void *), void *);
extern void *(*current)(void);

// Puts operations of one communicator into their stream.
void launch(Comm *comm, Op *ops);

#pragma GCC visibility pop
