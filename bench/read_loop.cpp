// How fast threads of this machine read memory: read_loop BYTES THREADS, bytes a second of the best pass.
// Each thread is pinned and sums a share of its own, as wide as the compiler's target allows.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#endif

namespace {

constexpr int num_passes = 12;
constexpr size_t line_words = 8, lines_at_once = 8;

uint64_t sum(const uint64_t* words, size_t count) {
    constexpr size_t step = line_words * lines_at_once;
    uint64_t sums[step] = {};
    for (size_t i = 0; i + step <= count; i += step)
        for (size_t j = 0; j < step; ++j) sums[j] += words[i + j];
    uint64_t total = 0;
    for (const uint64_t one : sums) total += one;
    return total;
}

double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void pin([[maybe_unused]] int index) {
#if defined(__linux__)
    cpu_set_t allowed, mine;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &allowed) && index-- == 0) {
            CPU_ZERO(&mine);
            CPU_SET(cpu, &mine);
            pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
            return;
        }
#endif
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const size_t bytes = std::strtoull(argv[1], nullptr, 10) / 4096 * 4096;
    const int num_threads = std::atoi(argv[2]);
    auto* memory = static_cast<uint64_t*>(std::aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) >> 21 << 21));
#if defined(__linux__)
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    std::memset(memory, 1, bytes);
    std::barrier barrier(num_threads);
    std::vector<uint64_t> sums(static_cast<size_t>(num_threads) * line_words);
    std::vector<std::thread> threads;
    // By the clock, of passes that all threads make at the same time: alone, each may read as fast as all together.
    std::vector<double> ended(static_cast<size_t>(num_threads));
    double best = 0, began = 0;
    for (int t = 0; t < num_threads; ++t)
        threads.emplace_back([&, t = static_cast<size_t>(t)] {
            pin(static_cast<int>(t));
            const size_t share = bytes / sizeof(uint64_t) / static_cast<size_t>(num_threads);
            for (int pass = 0; pass < num_passes; ++pass) {
                barrier.arrive_and_wait();
                if (t == 0) began = seconds();
                sums[t * line_words] += sum(memory + t * share, share);
                ended[t] = seconds();
                barrier.arrive_and_wait();
                if (t == 0 && pass > 0)
                    best = std::max(best, static_cast<double>(bytes) / (*std::max_element(ended.begin(), ended.end()) - began));
            }
        });
    for (std::thread& thread : threads) thread.join();
    uint64_t total = 0;
    for (const uint64_t one : sums) total += one;
    std::printf("%.0f %llu\n", best, static_cast<unsigned long long>(total));  // the sum, so that it is computed
}
