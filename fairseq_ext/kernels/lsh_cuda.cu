// CUDA kernels of LSH softmax; lsh_cuda.py launches these. Volta and newer.
// Definition: kernels/lsh_torch.py.
//
// X. Shi, S. Xu and K. Knight. Fast Locality Sensitive Hashing for Beam Search on GPU. 2018, https://arxiv.org/abs/1806.00588
//
// Shapes: n rows, V words, D dimensions, K dimensions a hash function, u codes a band, W bands. Row-major, no padding.
// A name that ends in _naive is the form the paper compares with (its Table 4).

#define FULL 0xffffffffu

// Band codes of rows x (n, D): grid (ceil(W / block), n), D floats of shared memory. A block reads its row once, coalesced, and every
// thread makes one band: the place of the largest of K dimensions, u times.
extern "C" __global__ void wta_hash(const float* x, const int* dimensions, int* codes, int D, int K, int u, int bits, int W) {
    extern __shared__ float row[];
    for (int i = threadIdx.x; i < D; i += blockDim.x) row[i] = x[(long long)blockIdx.y * D + i];
    __syncthreads();
    int band = blockIdx.x * blockDim.x + threadIdx.x;
    if (band >= W) return;
    int code = 0;
    for (int i = 0; i < u; i++) {
        const int* drawn = dimensions + ((long long)band * u + i) * K;
        float best = row[drawn[0]];
        int winner = 0;
        for (int k = 1; k < K; k++) {
            float value = row[drawn[k]];
            if (value > best) { best = value; winner = k; }  // the first of equals stays
        }
        code = (code << bits) | winner;
    }
    codes[(long long)blockIdx.y * W + band] = code;
}

// Start and length of each code's span, a thread a (row, band). offsets (W x B + 1,), B codes a band
extern "C" __global__ void lookup(const int* codes, const int* offsets, int* out_start, int* out_length, int n, int W, int B) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * W) return;
    long long at = (long long)(i % W) * B + codes[i];
    int start = offsets[at];
    out_start[i] = start;
    out_length[i] = offsets[at + 1] - start;
}

// Eq. 9, a thread a (row, band), each through its own span: the threads of a warp wait for the longest.
extern "C" __global__ void count_hits_naive(const int* start, const int* length, const int* words, int* hits, int n, int W, int V) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * W) return;
    int* row = hits + (long long)(i / W) * V;
    for (int p = start[i], end = p + length[i]; p < end; p++) atomicAdd(row + words[p], 1);
}

// Eq. 9 with the paper's re-arrangement (Figure 4b): the 32 threads of a warp go through the first one's span together, then
// through the second one's, and so on. Neighbouring threads read neighbouring words.
extern "C" __global__ void count_hits(const int* start, const int* length, const int* words, int* hits, int n, int W, int V) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int lane = threadIdx.x & 31;
    bool in = i < n * W;
    int my_start = in ? start[i] : 0, my_length = in ? length[i] : 0, my_row = in ? i / W : 0;
    for (int turn = 0; turn < 32; turn++) {
        int from = __shfl_sync(FULL, my_start, turn), many = __shfl_sync(FULL, my_length, turn), row = __shfl_sync(FULL, my_row, turn);
        int* out = hits + (long long)row * V;
        for (int p = lane; p < many; p += 32) atomicAdd(out + words[from + p], 1);
    }
}

__device__ __forceinline__ bool is_listed(const int* hits, const unsigned char* always, int n, int V, int t, int word) {
    if (word >= V) return false;
    if (always[word]) return true;
    for (int r = 0; r < n; r++)  // neighbouring threads read neighbouring words
        if (hits[(long long)r * V + word] >= t) return true;
    return false;
}

// Stream compaction, first pass: how many words of each block are listed.
extern "C" __global__ void compact_count(const int* hits, const unsigned char* always, int* counts, int n, int V, int t) {
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    unsigned listed = __ballot_sync(FULL, is_listed(hits, always, n, V, t, blockIdx.x * blockDim.x + threadIdx.x));
    if ((threadIdx.x & 31) == 0) atomicAdd(&total, __popc(listed));
    __syncthreads();
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// Second pass: the listed words of a block are collected in shared memory, in order, and written coalesced after those of
// earlier blocks. before: inclusive sums of counts.
extern "C" __global__ void compact_write(const int* hits, const unsigned char* always, const long long* before, long long* ids, int n,
                                         int V, int t) {
    __shared__ int warp_total[32];
    extern __shared__ int buffer[];
    int word = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    bool mine = is_listed(hits, always, n, V, t, word);
    unsigned listed = __ballot_sync(FULL, mine);
    if (lane == 0) warp_total[warp] = __popc(listed);
    __syncthreads();
    int at = 0, total = 0;
    for (int w = 0; w < (blockDim.x >> 5); w++) {
        if (w < warp) at += warp_total[w];
        total += warp_total[w];
    }
    if (mine) buffer[at + __popc(listed & ((1u << lane) - 1))] = word;
    __syncthreads();
    long long first = blockIdx.x ? before[blockIdx.x - 1] : 0;
    for (int i = threadIdx.x; i < total; i += blockDim.x) ids[first + i] = buffer[i];
}

// The naive form: every listed word takes the next place of one counter, in whatever order the threads come.
extern "C" __global__ void compact_naive(const int* hits, const unsigned char* always, int* counter, long long* ids, int n, int V, int t) {
    int word = blockIdx.x * blockDim.x + threadIdx.x;
    if (is_listed(hits, always, n, V, t, word)) ids[atomicAdd(counter, 1)] = word;
}

// Gather the rows ids (C,) of weight (V, units), each of `units` 4-byte units: a block a row.
extern "C" __global__ void gather_rows(const unsigned* weight, const long long* ids, unsigned* out, int units) {
    const unsigned* from = weight + ids[blockIdx.x] * units;
    unsigned* to = out + (long long)blockIdx.x * units;
    for (int i = threadIdx.x; i < units; i += blockDim.x) to[i] = from[i];
}
