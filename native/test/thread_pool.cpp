// Calls of a thread pool, some of few tasks, some of many, of which some are taken ahead, by helpers
// that come in time, late or not at all: each task is done once, with what belongs to its call, before the call ends. Prints how many were not.
#include "../src/thread_pool.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    std::mt19937 random(static_cast<unsigned>(std::atoi(argv[1])));
    int64_t wrong = 0;
    const std::vector<char> memory(1 << 16);
    for (const int num_threads : {1, 2, 3, 7}) {
        trivium::ThreadPool pool(num_threads);
        for (int call = 0; call < 3000; ++call) {
            const int64_t count = random() % 8 == 0 ? 100 : random() % 7;
            std::vector<int> done(static_cast<size_t>(count));
            std::vector<int> lengths(static_cast<size_t>(count));
            for (int& length : lengths) length = static_cast<int>(random() % 300);
            std::vector<int64_t> ahead(static_cast<size_t>(num_threads), trivium::ThreadPool::none);
            const unsigned asks = random() % 3;
            pool.fetch_while_waiting(static_cast<int>(random() % static_cast<unsigned>(num_threads)), memory.data(), 1 << 16);
            std::atomic<int64_t> unexpected{0};
            pool.run(count, [&](int64_t task, int worker) {
                int64_t& expected = ahead[static_cast<size_t>(worker)];
                if (expected != trivium::ThreadPool::none && expected != task) ++unexpected;
                expected = trivium::ThreadPool::none;
                done[static_cast<size_t>(task)] += 1;  // by one thread, or a sanitizer tells
                for (std::atomic<int> spins = lengths[static_cast<size_t>(task)]; spins > 0;) --spins;
                if (asks == 0) return;
                expected = pool.take_ahead(worker);
                if (asks == 2 && pool.take_ahead(worker) != expected) ++unexpected;
            });
            for (const int times : done) wrong += times != 1;
            for (const int64_t expected : ahead) wrong += expected != trivium::ThreadPool::none;
            wrong += unexpected;
        }
    }
    std::printf("%lld wrong\n", static_cast<long long>(wrong));
}
