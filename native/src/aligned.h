// Memory that begins with a cache line, so that no vector that lies in order in it reaches into two.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace trivium {

template <typename T>
struct LineAllocator {
    using value_type = T;

    LineAllocator() = default;
    template <typename U>
    LineAllocator(const LineAllocator<U>&) {}

    T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), line)); }
    void deallocate(T* memory, size_t) { ::operator delete(memory, line); }
    bool operator==(const LineAllocator&) const = default;

private:
    static constexpr std::align_val_t line{64};
};

using AlignedFloats = std::vector<float, LineAllocator<float>>;

}  // namespace trivium
