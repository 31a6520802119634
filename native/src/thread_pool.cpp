#include "thread_pool.h"

#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trivium {

namespace {

constexpr int64_t closed = int64_t{1} << 32;

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
    fetched_[static_cast<size_t>(worker)].set(memory, num_bytes);
}

ThreadPool::ThreadPool(int num_threads)
    : gate_(-closed), fetched_(std::make_unique<Fetched[]>(static_cast<size_t>(num_threads))), owner_(getpid()) {
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
    if (count <= 1 || helpers_.empty()) {
        for (int64_t i = 0; i < count; ++i) call(task, i, 0);
        return;
    }
    call_ = call;
    task_ = task;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    gate_.store(0, std::memory_order_release);
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
    work(0);
    gate_.fetch_sub(closed, std::memory_order_acq_rel);
    for (int spins = 0; gate_.load(std::memory_order_acquire) != -closed; ++spins) {
        if (fetched_[0].fetch_some()) continue;
        spins < spins_before_yield ? pause() : std::this_thread::yield();
    }
}

void ThreadPool::help(int worker) {
    Fetched& fetched = fetched_[static_cast<size_t>(worker)];
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
        if (enter()) {
            work(worker);
            leave();
        }
    }
}

void ThreadPool::work(int worker) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) call_(task_, i, worker);
}

bool ThreadPool::enter() {
    int64_t inside = gate_.load(std::memory_order_relaxed);
    while (inside >= 0)
        if (gate_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire, std::memory_order_relaxed))
            return true;
    return false;
}

void ThreadPool::leave() { gate_.fetch_sub(1, std::memory_order_release); }

}  // namespace trivium
