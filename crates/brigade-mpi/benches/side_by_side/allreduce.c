// Times MPI_Allreduce in a loop, as a plain program does: one line of JSON a size, as the program beside it.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int exponent = 12; exponent <= 26; exponent += 2) {
        size_t bytes = (size_t)1 << exponent;
        float *buffer = malloc(bytes);
        for (size_t i = 0; i < bytes / sizeof(float); i++) buffer[i] = 1.0f;
        int repetitions = exponent < 22 ? 200 : 20;
        double start = 0.0;
        for (int i = 0; i < repetitions + 2; i++) {
            if (i == 2) {
                MPI_Barrier(MPI_COMM_WORLD);
                start = MPI_Wtime();
            }
            MPI_Allreduce(MPI_IN_PLACE, buffer, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        }
        double seconds = (MPI_Wtime() - start) / repetitions;
        if (rank == 0) {
            double bus = (double)bytes * 2.0 * (size - 1) / size / seconds / 1e9;
            printf(
                "{\"mode\": \"c\", \"world\": %d, \"bytes\": %zu, \"micros\": %.1f, \"bus_gb_per_second\": %.3f}\n",
                size, bytes, seconds * 1e6, bus);
        }
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
