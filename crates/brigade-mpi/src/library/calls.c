// The calls of MPI that the crate makes, with handles as integers: handles are pointers in one library and integers in another, and
// many names are macros, so that only C can name them. Each function gives MPI's error code.

#include <limits.h>
#include <mpi.h>
#include <stdint.h>
#include <string.h>

_Static_assert(sizeof(MPI_Comm) <= sizeof(uint64_t), "communicators fit");
_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "requests fit");

static MPI_Comm comm_of(uint64_t handle) {
    MPI_Comm comm;
    memcpy(&comm, &handle, sizeof comm);
    return comm;
}

static uint64_t handle_of_comm(MPI_Comm comm) {
    uint64_t handle = 0;
    memcpy(&handle, &comm, sizeof comm);
    return handle;
}

static MPI_Request request_of(uint64_t handle) {
    MPI_Request request;
    memcpy(&request, &handle, sizeof request);
    return request;
}

static int started(int code, MPI_Request request, uint64_t *handle) {
    *handle = 0;
    memcpy(handle, &request, sizeof request);
    return code;
}

// The numbers of `MpiDtype` in ffi.rs.
static MPI_Datatype type_of(int number) {
    switch (number) {
    case 1: return MPI_FLOAT;
    case 2: return MPI_DOUBLE;
    case 3: return MPI_UINT64_T;
    default: return MPI_BYTE;
    }
}

static MPI_Op op_of(int number) {
    return number == 1 ? MPI_MAX : MPI_SUM;
}

// The level of threads' support: 0 is MPI_THREAD_SINGLE, 3 MPI_THREAD_MULTIPLE.
int brigade_mpi_init(int *level) {
    int provided = MPI_THREAD_SINGLE;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    *level = provided == MPI_THREAD_MULTIPLE     ? 3
             : provided == MPI_THREAD_SERIALIZED ? 2
             : provided == MPI_THREAD_FUNNELED   ? 1
                                                 : 0;
    return code;
}

int brigade_mpi_is_initialized(int *flag) {
    return MPI_Initialized(flag);
}

int brigade_mpi_finalize(void) {
    return MPI_Finalize();
}

// The library's name and version, cut to `size` bytes.
int brigade_mpi_version(char *text, int size, int *length) {
    char whole[MPI_MAX_LIBRARY_VERSION_STRING];
    int code = MPI_Get_library_version(whole, length);
    if (code == MPI_SUCCESS) {
        *length = *length < size ? *length : size;
        memcpy(text, whole, (size_t)*length);
    }
    return code;
}

int brigade_mpi_error_string(int error, char *text, int size, int *length) {
    char whole[MPI_MAX_ERROR_STRING];
    int code = MPI_Error_string(error, whole, length);
    if (code == MPI_SUCCESS) {
        *length = *length < size ? *length : size;
        memcpy(text, whole, (size_t)*length);
    }
    return code;
}

// A communicator of all processes, whose errors are returned.
int brigade_mpi_world(uint64_t *comm, int *rank, int *size) {
    MPI_Comm own;
    int code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, size);
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &own);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) *comm = handle_of_comm(own);
    return code;
}

int brigade_mpi_split(uint64_t comm, int color, int key, uint64_t *part) {
    MPI_Comm own;
    int code = MPI_Comm_split(comm_of(comm), color, key, &own);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) *part = handle_of_comm(own);
    return code;
}

int brigade_mpi_all_reduce(uint64_t comm, void *buffer, int count, int type, int op, uint64_t *request) {
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Iallreduce(MPI_IN_PLACE, buffer, count, type_of(type), op_of(op), comm_of(comm), &own);
    return started(code, own, request);
}

// `count` is that of each rank's slice.
int brigade_mpi_reduce_scatter(
    uint64_t comm, const void *from, void *into, int count, int type, uint64_t *request) {
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Ireduce_scatter_block(from, into, count, type_of(type), MPI_SUM, comm_of(comm), &own);
    return started(code, own, request);
}

// Slices of `bytes` bytes each, of which MPI counts at most INT_MAX.
int brigade_mpi_all_gather(uint64_t comm, void *buffer, int64_t bytes, uint64_t *request) {
    MPI_Request own = MPI_REQUEST_NULL;
    if (bytes <= INT_MAX) {
        int count = (int)bytes;
        int code =
            MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, buffer, count, MPI_BYTE, comm_of(comm), &own);
        return started(code, own, request);
    }
    enum { UNIT = 1 << 20 };
    int lengths[2] = {(int)(bytes / UNIT), (int)(bytes % UNIT)};
    MPI_Aint places[2] = {0, (MPI_Aint)lengths[0] * UNIT};
    MPI_Datatype unit, parts[2], slice;
    int code = MPI_Type_contiguous(UNIT, MPI_BYTE, &unit);
    if (code != MPI_SUCCESS) return started(code, own, request);
    parts[0] = unit;
    parts[1] = MPI_BYTE;
    code = MPI_Type_create_struct(2, lengths, places, parts, &slice);
    if (code == MPI_SUCCESS) {
        code = MPI_Type_commit(&slice);
        if (code == MPI_SUCCESS)
            code = MPI_Iallgather(MPI_IN_PLACE, 0, slice, buffer, 1, slice, comm_of(comm), &own);
        // What is in flight keeps it.
        MPI_Type_free(&slice);
    }
    MPI_Type_free(&unit);
    return started(code, own, request);
}

// Slices of `counts` bytes, which begin `places` bytes after the buffer's start. Both live until the request is complete.
int brigade_mpi_all_gather_v(
    uint64_t comm, void *buffer, const int *counts, const int *places, uint64_t *request) {
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Iallgatherv(
        MPI_IN_PLACE, 0, MPI_BYTE, buffer, counts, places, MPI_BYTE, comm_of(comm), &own);
    return started(code, own, request);
}

int brigade_mpi_broadcast(uint64_t comm, void *buffer, int count, int root, uint64_t *request) {
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Ibcast(buffer, count, MPI_BYTE, root, comm_of(comm), &own);
    return started(code, own, request);
}

int brigade_mpi_send(uint64_t comm, const void *from, int count, int to, int tag, uint64_t *request) {
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Isend(from, count, MPI_BYTE, to, tag, comm_of(comm), &own);
    return started(code, own, request);
}

int brigade_mpi_receive(uint64_t comm, void *into, int count, int from, int tag, uint64_t *request) {
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Irecv(into, count, MPI_BYTE, from, tag, comm_of(comm), &own);
    return started(code, own, request);
}

// Whether it is complete. An error ends it as well.
int brigade_mpi_test(uint64_t *request, int *done) {
    MPI_Request own = request_of(*request);
    int code = MPI_Test(&own, done, MPI_STATUS_IGNORE);
    return started(code, own, request);
}
