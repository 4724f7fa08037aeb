// Declarations that the parts of the stand-in for NCCL share.
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

// Its data stays in the sender's memory until the receiver copies it.
typedef struct Message { int from, to; const void *data; size_t bytes; int taken; struct Message *next; } Message;

// The state that the ranks of a communicator share.
typedef struct Group {
    Id id;
    int size, joined, finalized, connected;
    // The collective that is under way: the operation of each rank that has got to it, and how many have; and the number of
    // collectives that are done.
    Op *contributions[RANKS];
    int contributed;
    unsigned long generation;
    Message *messages;
    // The split that is under way.
    int colors[RANKS], keys[RANKS], splits_called, splits_pending;
    struct Comm *children[RANKS];
    struct Group *next;
} Group;

typedef struct Comm {
    Group *group;
    int rank;
    int polls;  // how many more times it is found in progress
    int aborted, ended, error, finalizing, stuck, fails, connects;
    long operations;
    Op *pending, **last;  // called, but not on a stream yet
    struct Comm **slot;   // where a split writes its result; NULL once it has
    struct Comm **begun;  // the thread-local variable of the last call's thread that points here
} Comm;

extern pthread_mutex_t lock;
extern pthread_cond_t changed;
extern char last_error[256];
// From the stand-in for the driver.
extern void (*enqueue)(void *, void (*)(void *), void *);
extern void *(*current)(void);

// Enqueues the operations of one communicator on their stream.
void launch(Comm *comm, Op *ops);

#pragma GCC visibility pop
