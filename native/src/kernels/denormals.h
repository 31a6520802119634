// Numbers below the smallest normal one.
#pragma once

#include "vector.h"

namespace trivium::TRIVIUM_ISA {

// While it lives, this thread takes and gives such numbers as 0, which is how AMX computes and cannot be told not to.
class FlushDenormals {
public:
#if defined(__x86_64__)
    FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | flush_to_zero | denormals_are_zero); }
    ~FlushDenormals() { _mm_setcsr(before_); }

private:
    static constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
    const unsigned before_;
#elif defined(__aarch64__)
    FlushDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" : : "r"(before_ | flush_to_zero));
    }
    ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

private:
    static constexpr uint64_t flush_to_zero = uint64_t{1} << 24;  // what is taken and what is given
    uint64_t before_;
#else
    FlushDenormals() {}
    ~FlushDenormals() {}
#endif
};

}  // namespace trivium::TRIVIUM_ISA
