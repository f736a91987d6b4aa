/* The same measurement as the Rust ranks make, on somebody else's MPI: batches of back-to-back
 * operations, inputs rewritten before each of them outside the timed region, the slowest rank of
 * each batch, the 25th percentile over batches. Prints one line: "FIGURE <nanoseconds>".
 *
 * peer OPERATION DTYPE BYTES OPERATIONS BATCHES WARM_UP LIMIT_SECONDS
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static float widen(uint16_t bits)
{
	uint32_t wide = (uint32_t)bits << 16;
	float value;
	memcpy(&value, &wide, 4);
	return value;
}

/* Rounds to nearest even; the inputs are never NaN. */
static uint16_t narrow(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, 4);
	return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

/* MPI has no bfloat16, so its sum is an operation of ours that accumulates in binary32. */
static void sum_bf16(void *in, void *inout, int *count, MPI_Datatype *type)
{
	const uint16_t *restrict a = in;
	uint16_t *restrict b = inout;
	(void)type;
	for (int i = 0; i < *count; i++)
		b[i] = narrow(widen(a[i]) + widen(b[i]));
}

static void fill(void *memory, size_t bytes, int bf16, float value)
{
	if (bf16) {
		uint16_t *elements = memory, element = narrow(value);
		for (size_t i = 0; i < bytes / 2; i++)
			elements[i] = element;
	} else {
		float *elements = memory;
		for (size_t i = 0; i < bytes / 4; i++)
			elements[i] = value;
	}
}

static int ascending(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

int main(int argc, char **argv)
{
	int rank, ranks, wrong = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc != 8) {
		fprintf(stderr, "peer: 7 arguments, please\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	const char *operation = argv[1];
	int bf16 = !strcmp(argv[2], "bf16");
	size_t bytes = strtoull(argv[3], 0, 10);
	int operations = atoi(argv[4]), batches = atoi(argv[5]), warm_up = atoi(argv[6]);
	/* Whoever started this may be gone; then nobody else ends it. */
	alarm(atoi(argv[7]));

	MPI_Datatype type = bf16 ? MPI_UINT16_T : MPI_FLOAT;
	MPI_Op sum = MPI_SUM;
	if (bf16)
		MPI_Op_create(sum_bf16, 1, &sum);
	int count = bytes / (bf16 ? 2 : 4), part = count / ranks;
	size_t stride = (bytes + 63) / 64 * 64;
	char *main_operand = 0, *result = 0;
	double *times = malloc(batches * sizeof *times), *slowest = malloc(batches * sizeof *slowest);
	if (bytes && (posix_memalign((void **)&main_operand, 4096, stride * operations) ||
		      posix_memalign((void **)&result, 4096, stride * operations)))
		MPI_Abort(MPI_COMM_WORLD, 3);
	if (bytes) {
		memset(main_operand, 0, stride * operations);
		memset(result, 0, stride * operations);
	}

	double first = 0;
	for (int batch = -warm_up; batch < batches; batch++) {
		/* Ranks that spin while others need their core take milliseconds for every operation;
		 * all ranks then agree to do less of it. */
		if (batch == 1 - warm_up) {
			MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
			if (first > 1e6 && first * operations > 2e7)
				operations = first > 2e7 ? 1 : 2e7 / first;
			int affordable = 2e9 / (first * operations + 1) + 5;
			if (affordable < batches)
				batches = affordable;
		}
		float value = 1 + rank + (batch + warm_up) % 3;
		for (int i = 0; i < operations; i++) {
			char *at = main_operand + i * stride;
			if (!strcmp(operation, "all_gather"))
				fill(at + bytes / ranks * rank, bytes / ranks, bf16, value);
			else if (strcmp(operation, "broadcast") || rank == 0)
				fill(at, bytes, bf16, value);
		}
		MPI_Barrier(MPI_COMM_WORLD);
		double begun = now();
		if (!strcmp(operation, "all_reduce"))
			for (int i = 0; i < operations; i++)
				MPI_Allreduce(MPI_IN_PLACE, main_operand + i * stride, count, type, sum,
					      MPI_COMM_WORLD);
		else if (!strcmp(operation, "reduce_scatter"))
			for (int i = 0; i < operations; i++)
				MPI_Reduce_scatter_block(main_operand + i * stride, result + i * stride,
							 part, type, sum, MPI_COMM_WORLD);
		else if (!strcmp(operation, "all_gather"))
			for (int i = 0; i < operations; i++)
				MPI_Allgather(MPI_IN_PLACE, 0, type, main_operand + i * stride, part, type,
					      MPI_COMM_WORLD);
		else if (!strcmp(operation, "broadcast"))
			for (int i = 0; i < operations; i++)
				MPI_Bcast(main_operand + i * stride, count, type, 0, MPI_COMM_WORLD);
		else
			for (int i = 0; i < operations; i++)
				MPI_Barrier(MPI_COMM_WORLD);
		double taken = now() - begun;
		if (batch == -warm_up)
			first = taken / operations;
		if (batch >= 0)
			times[batch] = taken / operations;
		if (!strcmp(operation, "all_reduce")) {
			float expected = ranks * (1 + (batch + warm_up) % 3) + ranks * (ranks - 1) / 2;
			for (int i = 0; i < operations; i++) {
				char *at = main_operand + i * stride;
				float last = bf16 ? widen(((uint16_t *)at)[count - 1])
						  : ((float *)at)[count - 1];
				wrong += last != expected;
			}
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}

	MPI_Allreduce(times, slowest, batches, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	qsort(slowest, batches, sizeof *slowest, ascending);
	if (rank == 0 && wrong)
		fprintf(stderr, "peer: %d wrong results\n", wrong);
	else if (rank == 0)
		printf("FIGURE %.1f\n", slowest[(batches - 1) / 4]);
	MPI_Finalize();
	return wrong != 0;
}
