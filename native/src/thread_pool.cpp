#include "thread_pool.h"

#include <unistd.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trivium {

namespace {

// A helper looks for the next call this often before it sleeps: about a hundred microseconds, longer than between two
// ops of a model, so that decoding keeps its helpers awake and an idle engine burns nothing.
constexpr int spins_before_yield = 4000;
constexpr int yields_before_sleep = 20;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void ThreadPool::Fetched::set(const void* memory, int64_t num_bytes) {
    end_.store(static_cast<const char*>(memory) + num_bytes, std::memory_order_relaxed);
    begin_.store(static_cast<const char*>(memory), std::memory_order_relaxed);
}

// Who reads both while they are set may find the one of other memory: fetching does no harm, and ends when both are known.
bool ThreadPool::Fetched::fetch_some() {
    constexpr int lines = 4, line_bytes = 64;
    const char* const begin = begin_.load(std::memory_order_relaxed);
    if (began_ != begin) began_ = at_ = begin;
    if (at_ >= end_.load(std::memory_order_relaxed)) return false;
    for (int i = 0; i < lines; ++i) __builtin_prefetch(at_ + i * line_bytes, 0, 2);
    at_ += lines * line_bytes;
    return true;
}

void ThreadPool::fetch_while_waiting(int worker, const void* memory, int64_t num_bytes) {
    workers_[static_cast<size_t>(worker)].fetched.set(memory, num_bytes);
}

int64_t ThreadPool::take_ahead(int worker) {
    std::optional<int64_t>& next = workers_[static_cast<size_t>(worker)].next;
    if (!next) {
        const uint64_t taken = taken_.fetch_add(1, std::memory_order_acquire);
        const uint64_t index = static_cast<uint32_t>(taken), count = taken >> 32;
        next = index < count ? static_cast<int64_t>(index) : none;
    }
    return *next;
}

ThreadPool::ThreadPool(int num_threads)
    : workers_(std::make_unique<Worker[]>(static_cast<size_t>(std::max(1, num_threads)))), owner_(getpid()) {
    for (int worker = 1; worker < num_threads; ++worker) helpers_.emplace_back([this, worker] { help(worker); });
}

ThreadPool::~ThreadPool() {
    if (getpid() != owner_) {
        for (std::thread& helper : helpers_) helper.detach();
        return;
    }
    stop_ = true;
    calls_.fetch_add(1);
    calls_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run_erased(int64_t count, Erased call, const void* task) {
    call_ = call;
    task_ = task;
    done_.store(0, std::memory_order_relaxed);
    taken_.store(static_cast<uint64_t>(count) << 32, std::memory_order_release);
    if (count > 1 && !helpers_.empty()) {
        calls_.fetch_add(1, std::memory_order_release);
        calls_.notify_all();
    }
    const int64_t by_others = count - work(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) != by_others; ++spins) {
        if (workers_[0].fetched.fetch_some()) continue;
        spins < spins_before_yield ? pause() : std::this_thread::yield();
    }
}

void ThreadPool::help(int worker) {
    Fetched& fetched = workers_[static_cast<size_t>(worker)].fetched;
    for (uint32_t seen = 0;;) {
        for (int tries = 0; calls_.load(std::memory_order_acquire) == seen; ++tries) {
            if (fetched.fetch_some()) continue;
            if (tries < spins_before_yield) {
                pause();
            } else if (tries < spins_before_yield + yields_before_sleep) {
                std::this_thread::yield();
            } else {
                calls_.wait(seen, std::memory_order_acquire);
            }
        }
        seen = calls_.load(std::memory_order_acquire);
        if (stop_) return;
        if (const int64_t count = work(worker)) done_.fetch_add(count, std::memory_order_release);
    }
}

int64_t ThreadPool::work(int worker) {
    std::optional<int64_t>& next = workers_[static_cast<size_t>(worker)].next;
    for (int64_t count = 0;; ++count) {
        const int64_t task = take_ahead(worker);
        next.reset();
        if (task == none) return count;
        call_(task_, task, worker);
    }
}

}  // namespace trivium
