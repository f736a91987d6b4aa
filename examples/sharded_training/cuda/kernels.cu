// What cuBLAS does not do. Compiled when the program starts, once for each element type: `BF16` chooses
// that of compute copies, and the constants of Adam and the number of classes are given like it.
//
// Every sum is made in one order: a thread adds its elements from the first to the last, and threads
// add theirs as a tree. So equal inputs give equal bits.

typedef unsigned long long Count;

#ifdef BF16
typedef unsigned short Copy;

__device__ float widened(Copy value) { return __uint_as_float((unsigned)value << 16); }

// To the nearest, and from the middle to the even one; what is not a number stays that.
__device__ Copy narrowed(float value) {
    unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (Copy)((bits >> 16) | 0x40u);
    return (Copy)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#else
typedef float Copy;

__device__ float widened(Copy value) { return value; }
__device__ Copy narrowed(float value) { return value; }
#endif

#define THREADS 256
#define EACH(index, count) \
    for (Count index = (Count)blockIdx.x * blockDim.x + threadIdx.x; index < (count); \
         index += (Count)gridDim.x * blockDim.x)

// The nearest multiple of a unit up to a limit, where there is a unit.
__device__ float on_grid(float value, float unit, float limit) {
    if (unit == 0.0f) return value;
    value = value > limit ? limit : value < -limit ? -limit : value;
    return rintf(value / unit) * unit;
}

__device__ double on_grid_f64(double value, double unit, double limit) {
    if (unit == 0.0) return value;
    value = value > limit ? limit : value < -limit ? -limit : value;
    return rint(value / unit) * unit;
}

// The sum of one number of each thread of a block, for the first of them.
__device__ double block_sum(double mine) {
    __shared__ double sums[THREADS];
    sums[threadIdx.x] = mine;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    return sums[0];
}

// A compute copy of `count` values, and zeros up to `total`.
extern "C" __global__ void narrow(Copy *to, const float *from, Count count, Count total, float unit,
                                  float limit) {
    EACH(i, total) to[i] = narrowed(i < count ? on_grid(from[i], unit, limit) : 0.0f);
}

extern "C" __global__ void activate(Copy *outputs, const float *sums, const Copy *biases, Count count,
                                    unsigned columns, unsigned cut) {
    EACH(i, count) {
        float value = sums[i] + widened(biases[i % columns]);
        outputs[i] = narrowed(cut && value < 0.0f ? 0.0f : value);
    }
}

extern "C" __global__ void cut_gradient(Copy *gradient, const Copy *outputs, Count count) {
    EACH(i, count) {
        if (!(widened(outputs[i]) > 0.0f)) gradient[i] = narrowed(0.0f);
    }
}

// One block for 32 columns, whose threads take turns in the rows.
extern "C" __global__ void column_sums(float *sums, const Copy *values, unsigned rows,
                                       unsigned columns) {
    __shared__ float parts[8][32];
    unsigned column = blockIdx.x * 32 + threadIdx.x % 32, lane = threadIdx.x / 32;
    float sum = 0.0f;
    if (column < columns) {
        for (unsigned row = lane; row < rows; row += 8) {
            sum += widened(values[(Count)row * columns + column]);
        }
    }
    parts[lane][threadIdx.x % 32] = sum;
    for (unsigned half = 4; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            parts[lane][threadIdx.x % 32] += parts[lane + half][threadIdx.x % 32];
        }
    }
    if (lane == 0 && column < columns) sums[column] = parts[0][threadIdx.x];
}

// One block: the mean loss of all rows, and its gradient by the outputs.
extern "C" __global__ void cross_entropy(double *report, Copy *gradient, const Copy *outputs,
                                         const unsigned *labels, unsigned rows, double unit,
                                         double limit) {
    double total = 0.0;
    for (unsigned row = threadIdx.x; row < rows; row += THREADS) {
        float values[CLASSES], largest = __int_as_float(0xff800000), sum = 0.0f, labelled = 0.0f;
        for (unsigned class_ = 0; class_ < CLASSES; class_ += 1) {
            float value = widened(outputs[row * CLASSES + class_]);
            if (class_ == labels[row]) labelled = value;
            largest = value > largest ? value : largest;
            values[class_] = value;
        }
        for (unsigned class_ = 0; class_ < CLASSES; class_ += 1) {
            values[class_] = expf(values[class_] - largest);
            sum += values[class_];
        }
        total += (double)(logf(sum) + largest - labelled);
        for (unsigned class_ = 0; class_ < CLASSES; class_ += 1) {
            float target = class_ == labels[row] ? 1.0f : 0.0f;
            gradient[row * CLASSES + class_] = narrowed((values[class_] / sum - target) / rows);
        }
    }
    total = block_sum(total);
    if (threadIdx.x == 0) report[0] = on_grid_f64(total / rows, unit, limit);
}

extern "C" __global__ void widen(float *to, const Copy *from, Count count, float divide_by,
                                 unsigned add) {
    EACH(i, count) {
        float value = widened(from[i]);
        to[i] = (add ? to[i] + value : value) / divide_by;
    }
}

extern "C" __global__ void divide(float *values, Count count, float by) {
    EACH(i, count) values[i] /= by;
}

// As many parts as there are blocks.
extern "C" __global__ void square_parts(double *parts, const float *values, Count count) {
    double sum = 0.0;
    EACH(i, count) sum += (double)values[i] * (double)values[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// One block.
extern "C" __global__ void square_total(double *report, const double *parts, unsigned count,
                                        double unit, double limit) {
    double sum = 0.0;
    for (unsigned part = threadIdx.x; part < count; part += THREADS) sum += parts[part];
    sum = block_sum(sum);
    if (threadIdx.x == 0) report[1] = on_grid_f64(sum, unit, limit);
}

// One thread of one block: another step, and what its moments are divided by.
extern "C" __global__ void tick(unsigned *steps, float *corrections) {
    if (threadIdx.x > 0) return;
    *steps += 1;
    corrections[0] = (float)(1.0 - pow((double)BETA1, (double)*steps));
    corrections[1] = (float)(1.0 - pow((double)BETA2, (double)*steps));
}

extern "C" __global__ void adam(float *parameters, float *first, float *second,
                                const float *gradients, Count count, const float *corrections) {
    float correct1 = corrections[0], correct2 = corrections[1];
    EACH(i, count) {
        float gradient = gradients[i];
        first[i] = BETA1 * first[i] + (1.0f - BETA1) * gradient;
        second[i] = BETA2 * second[i] + (1.0f - BETA2) * gradient * gradient;
        float scale = sqrtf(second[i] / correct2) + EPSILON;
        parameters[i] -= RATE * (first[i] / correct1) / scale;
    }
}
