// The stand-in for NCCL: its operations, as they run on streams.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

// ---- Arithmetic ----

static size_t size_of(int type) {
    return type == UINT8_TYPE ? 1 : type == HALF_TYPE || type == BRAIN_TYPE ? 2 : type == FLOAT_TYPE ? 4 : 8;
}

static float bf16_to_float(uint16_t brain) {
    uint32_t bits = (uint32_t)brain << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t float_to_bf16(float value) {
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
                float a = bf16_to_float(((uint16_t *)into)[i]), b = bf16_to_float(((const uint16_t *)from)[i]);
                ((uint16_t *)into)[i] = float_to_bf16(reduction == MAX_OP ? (b > a ? b : a) : a + b);
            }
    }
}

// Computes the results of all ranks, on the stream of the last one that gets there.
static void work(Group *group) {
    Op *first = group->contributions[0];
    size_t bytes = first->count * size_of(first->type);
    size_t total = first->kind == REDUCE_SCATTER || first->kind == ALL_GATHER ? bytes * group->size : bytes;
    char *result = malloc(total + 1);
    switch (first->kind) {
        case ALL_REDUCE:
        case REDUCE_SCATTER:
            memcpy(result, first->from, total);
            for (int rank = 1; rank < group->size; rank++)
                combine(result, group->contributions[rank]->from, total / size_of(first->type), first->type, first->reduction);
            break;
        case ALL_GATHER:
            for (int rank = 0; rank < group->size; rank++)
                memcpy(result + rank * bytes, group->contributions[rank]->from, bytes);
            break;
        case BROADCAST: memcpy(result, group->contributions[first->peer]->from, bytes); break;
    }
    for (int rank = 0; rank < group->size; rank++) {
        Op *op = group->contributions[rank];
        if (op->kind == REDUCE_SCATTER) memcpy(op->to, result + rank * bytes, bytes);
        else memcpy(op->to, result, total);
    }
    free(result);
}

// ---- Tasks of streams ----

typedef struct Launch { Comm *comm; Op *ops; int stuck, fails; } Launch;

static void collective(Comm *comm, Op *op) {
    Group *group = comm->group;
    while (group->contributions[comm->rank] && !comm->aborted) pthread_cond_wait(&changed, &lock);
    if (comm->aborted) return;
    unsigned long generation = group->generation;
    group->contributions[comm->rank] = op;
    if (++group->contributed == group->size) {
        work(group);
        memset(group->contributions, 0, sizeof group->contributions);
        group->contributed = 0;
        group->generation++;
        pthread_cond_broadcast(&changed);
    }
    while (group->generation == generation && !comm->aborted) pthread_cond_wait(&changed, &lock);
    if (group->generation == generation) group->contributions[comm->rank] = NULL, group->contributed--;
}

static Message **message(Group *group, int from, int to) {
    for (Message **at = &group->messages; *at; at = &(*at)->next)
        if ((*at)->from == from && (*at)->to == to) return at;
    return NULL;
}

static void withdraw(Group *group, Message *message) {
    for (Message **at = &group->messages; *at; at = &(*at)->next)
        if (*at == message) { *at = message->next; return; }
}

static void run(void *argument) {
    Launch *launch = argument;
    Comm *comm = launch->comm;
    Group *group = comm->group;
    Message *sent[64];
    int sends = 0;
    if (launch->fails) usleep(20000);  // long after the call has completed
    pthread_mutex_lock(&lock);
    if (launch->fails) {
        comm->error = REMOTE_ERROR;
        snprintf(last_error, sizeof last_error, "stand-in: a peer has gone");
    }
    while (launch->stuck && !comm->aborted) pthread_cond_wait(&changed, &lock);
    // All sends are contributed before the first receive, so that both directions run at once.
    for (Op *op = launch->ops; op && !comm->aborted; op = op->next) {
        if (op->kind != SEND) continue;
        Message *made = calloc(1, sizeof *made), **end = &group->messages;
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
        while (!comm->aborted && !(found = message(group, op->peer, comm->rank))) pthread_cond_wait(&changed, &lock);
        if (!found) break;
        Message *taken = *found;
        *found = taken->next;
        memcpy(op->to, taken->data, taken->bytes);
        taken->taken = 1;
        pthread_cond_broadcast(&changed);
    }
    for (int i = 0; i < sends; i++) {
        while (!sent[i]->taken && !comm->aborted) pthread_cond_wait(&changed, &lock);
        if (!sent[i]->taken) withdraw(group, sent[i]);
        free(sent[i]);
    }
    pthread_mutex_unlock(&lock);
    for (Op *op = launch->ops, *next; op; op = next) next = op->next, free(op);
    free(launch);
}

void launch(Comm *comm, Op *ops) {
    Launch *made = malloc(sizeof *made);
    *made = (Launch){comm, ops, comm->stuck, comm->fails};
    enqueue(ops->stream, run, made);
}
