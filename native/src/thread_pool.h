// Threads that outlive the calls they help with.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace trivium {

// Runs the tasks of one call at a time on the calling thread and on helpers. The caller never waits for a helper to
// wake: it works too, and at the end waits only for tasks that others took. So a call cannot stall on a helper that the
// system does not schedule (a busy machine) or that does not exist (the child of a fork).
//
// Cores that share no cache take some 0.2 µs to hand a line over, and a decoding step makes some hundred calls. So what a call
// needs is on three lines: one that the caller alone writes, the counter that tasks are taken from, and one for what was done.
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

    // The worker's next task, taken before the one that it runs has ended, or `none`. The same as long as that runs.
    int64_t take_ahead(int worker);
    static constexpr int64_t none = -1;

    // What the worker fetches into its caches while it waits for others: memory that it is likely to read next. It may be gone
    // by then.
    void fetch_while_waiting(int worker, const void* memory, int64_t num_bytes);

private:
    class Fetched {
    public:
        void set(const void* memory, int64_t num_bytes);
        bool fetch_some();  // false: all of it was

    private:
        std::atomic<const char*> begin_{nullptr}, end_{nullptr};
        const char* began_ = nullptr;
        const char* at_ = nullptr;
    };

    using Erased = void (*)(const void* task, int64_t index, int worker);

    // Of one worker, who alone touches what is no atomic.
    struct alignas(64) Worker {
        Fetched fetched;
        std::optional<int64_t> next;  // taken ahead; `none`: there is none
    };

    void run_erased(int64_t count, Erased call, const void* task);
    void help(int worker);
    int64_t work(int worker);  // how many tasks it did

    alignas(64) std::atomic<uint32_t> calls_{0};  // counts calls; helpers sleep on it
    std::atomic<bool> stop_{false};
    // The call's. Who took one of its tasks may read them: they stay until that is done.
    Erased call_ = nullptr;
    const void* task_ = nullptr;

    // How many tasks the call has, in the upper half, and how often one was taken, in the lower: so who comes late, to a call
    // that has ended or that began meanwhile, learns at once which task it took, if any.
    alignas(64) std::atomic<uint64_t> taken_{0};
    alignas(64) std::atomic<int64_t> done_{0};  // tasks of the call, by helpers
    alignas(64) const std::unique_ptr<Worker[]> workers_;
    const int64_t owner_;  // the process that the helpers live in
    std::vector<std::thread> helpers_;
};

}  // namespace trivium
