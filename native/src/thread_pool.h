// Threads that outlive the calls they help with.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace trivium {

// Runs the tasks of one call at a time on the calling thread and on helpers. The caller never waits for a helper to
// wake: it works too, and at the end waits only for those that came. So a call cannot stall on a helper that the
// system does not schedule (a busy machine) or that does not exist (the child of a fork).
class ThreadPool {
public:
    explicit ThreadPool(int num_threads);  // counting the caller; at least 1
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

    // task(index, worker) for each index in [0, count), each once, in any order; worker in [0, num_threads()).
    // Tasks must not throw. One caller at a time.
    template <typename Task>
    void run(int64_t count, const Task& task) {
        run_erased(count, [](const void* t, int64_t i, int worker) { (*static_cast<const Task*>(t))(i, worker); }, &task);
    }

    // What the worker fetches into its caches while it waits for others: memory that it is likely to read next. It may be gone
    // by then.
    void fetch_while_waiting(int worker, const void* memory, int64_t num_bytes);

private:
    class alignas(64) Fetched {
    public:
        void set(const void* memory, int64_t num_bytes);
        bool fetch_some();  // false: all of it was

    private:
        std::atomic<const char*> begin_{nullptr}, end_{nullptr};
        // Of the worker alone.
        const char* began_ = nullptr;
        const char* at_ = nullptr;
    };

    using Erased = void (*)(const void* task, int64_t index, int worker);

    void run_erased(int64_t count, Erased call, const void* task);
    void help(int worker);
    void work(int worker);
    bool enter();
    void leave();

    // The call being run; written only while the gate is closed and nobody is inside.
    Erased call_ = nullptr;
    const void* task_ = nullptr;
    int64_t count_ = 0;

    alignas(64) std::atomic<int64_t> next_{0};   // first index not yet taken
    alignas(64) std::atomic<int64_t> gate_;      // helpers inside; less `closed` while the gate is closed
    alignas(64) std::atomic<uint32_t> calls_{0};  // counts calls; helpers sleep on it
    std::atomic<bool> stop_{false};
    const std::unique_ptr<Fetched[]> fetched_;  // by worker
    const int64_t owner_;  // the process that the helpers live in
    std::vector<std::thread> helpers_;
};

}  // namespace trivium
