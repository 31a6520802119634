// A caller's tensor, seen without owning it, and the checks that make a wrong call an exception.
#pragma once

#include <Python.h>

#include <cstdint>
#include <initializer_list>

namespace trivium {

enum class DType : uint8_t { f32, f64, f16, bf16, i32, i64, u8, i8 };

const char* name_of(DType dtype);

struct Tensor {
    static constexpr int max_ndim = 6;

    const char* name;  // of the argument, for messages
    void* data;
    DType dtype;
    int ndim;
    int64_t shape[max_ndim];
    int64_t strides[max_ndim];  // in elements

    template <typename T>
    T* as() const {
        return static_cast<T*>(data);
    }
    int64_t num_elements() const;
    bool is_contiguous() const { return has_contiguous_tail(0); }
    bool has_contiguous_tail(int first_dim) const;  // dimensions from `first_dim` on lie densely

    // Each throws std::invalid_argument unless it holds.
    void require_dtype(DType wanted) const;
    void require_shape(std::initializer_list<int64_t> wanted) const;  // -1: any
    void require_contiguous() const;
    void require_contiguous_tail(int first_dim) const;
    void require_no_overlap() const;  // distinct indices are distinct elements: fit to be written
};

// The view of a tensor on the CPU that speaks DLPack's C exchange interface; throws for anything else.
Tensor view(PyObject* object, const char* name);

}  // namespace trivium
