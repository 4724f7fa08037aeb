/* Writes what ran on the GPU and when, for machines without Nsight Systems: CUDA loads this library into a program by CUDA_INJECTION64_PATH.
 *
 *     gcc -shared -fPIC -O2 -I INCLUDE trace.c -o trace.so -L LIB -lcupti
 *     CUDA_INJECTION64_PATH=$PWD/trace.so TRACE=trace.csv brigade train …
 *
 * A line for each kernel, copy and fill, and for each call of the driver if TRACE_CALLS is set: kind, start and end in nanoseconds, stream or thread, bytes, name.
 */
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef KERNEL
#define KERNEL CUpti_ActivityKernel9
#endif

static FILE *out;

static void requested(uint8_t **buffer, size_t *size, size_t *most) {
    *size = 8 << 20;
    *most = 0;
    *buffer = aligned_alloc(8, *size);
}

static void completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        case CUPTI_ACTIVITY_KIND_KERNEL: {
            KERNEL *kernel = (KERNEL *)record;
            fprintf(out, "kernel,%llu,%llu,%u,0,%.120s\n", (unsigned long long)kernel->start, (unsigned long long)kernel->end, kernel->streamId, kernel->name);
            break;
        }
        case CUPTI_ACTIVITY_KIND_MEMCPY: {
            CUpti_ActivityMemcpy *copy = (CUpti_ActivityMemcpy *)record;
            fprintf(out, "copy,%llu,%llu,0,%llu,%d\n", (unsigned long long)copy->start, (unsigned long long)copy->end, (unsigned long long)copy->bytes, copy->copyKind);
            break;
        }
        case CUPTI_ACTIVITY_KIND_MEMSET: {
            CUpti_ActivityMemset *fill = (CUpti_ActivityMemset *)record;
            fprintf(out, "fill,%llu,%llu,0,%llu,\n", (unsigned long long)fill->start, (unsigned long long)fill->end, (unsigned long long)fill->bytes);
            break;
        }
        case CUPTI_ACTIVITY_KIND_DRIVER: {
            CUpti_ActivityAPI *call = (CUpti_ActivityAPI *)record;
            const char *name = "";
            cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, call->cbid, &name);
            fprintf(out, "call,%llu,%llu,%u,0,%s\n", (unsigned long long)call->start, (unsigned long long)call->end, call->threadId, name);
            break;
        }
        default:
            break;
        }
    }
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    fflush(out);
}

int InitializeInjection(void) {
    const char *path = getenv("TRACE");
    out = fopen(path ? path : "trace.csv", "w");
    if (!out)
        return 0;
    cuptiActivityRegisterCallbacks(requested, completed);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    if (getenv("TRACE_CALLS"))
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER);
    atexit(finish);
    return 1;
}
