#include "tensor.h"

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "dlpack.h"

namespace trivium {

namespace {

const dlpack::ExchangeApi* exchange_api(PyTypeObject* type, const char* name) {
    nanobind::object capsule = nanobind::steal(
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
    if (!capsule.is_valid()) {
        PyErr_Clear();
        throw nanobind::type_error((std::string(name) + " must be a tensor, not " + type->tp_name).c_str());
    }
    auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::capsule_name));
    if (!api) throw nanobind::python_error();
    while (api && api->version.major != dlpack::major_version) api = api->previous;
    if (!api) throw nanobind::type_error("the tensor's library speaks another version of DLPack");
    return api;
}

DType dtype_of(const dlpack::DataType& t, const char* name) {
    if (t.lanes == 1) {
        if (t.code == dlpack::float_code && t.bits == 32) return DType::f32;
        if (t.code == dlpack::float_code && t.bits == 64) return DType::f64;
        if (t.code == dlpack::float_code && t.bits == 16) return DType::f16;
        if (t.code == dlpack::bfloat_code && t.bits == 16) return DType::bf16;
        if (t.code == dlpack::int_code && t.bits == 32) return DType::i32;
        if (t.code == dlpack::int_code && t.bits == 64) return DType::i64;
        if (t.code == dlpack::uint_code && t.bits == 8) return DType::u8;
        if (t.code == dlpack::int_code && t.bits == 8) return DType::i8;
    }
    throw std::invalid_argument(std::string(name) + " has a dtype that no kernel takes");
}

std::string shape_text(const int64_t* shape, int ndim) {
    std::string text = "[";
    for (int i = 0; i < ndim; ++i) text += (i ? ", " : "") + (shape[i] < 0 ? "any" : std::to_string(shape[i]));
    return text + "]";
}

}  // namespace

const char* name_of(DType dtype) {
    constexpr const char* names[] = {"float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int8"};
    return names[static_cast<int>(dtype)];
}

Tensor view(PyObject* object, const char* name) {
    // All tensors of a call are of one or two types; looking the interface up anew would cost more than most checks.
    thread_local std::pair<PyTypeObject*, const dlpack::ExchangeApi*> last{};
    PyTypeObject* const type = Py_TYPE(object);
    if (last.first != type) last = {type, exchange_api(type, name)};

    dlpack::Tensor t;
    if (last.second->view_of_object(object, &t) != 0) throw nanobind::python_error();
    if (t.device.type != dlpack::cpu) throw std::invalid_argument(std::string(name) + " is not on the CPU");
    if (t.ndim > Tensor::max_ndim) throw std::invalid_argument(std::string(name) + " has too many dimensions");
    Tensor result{name, static_cast<char*>(t.data) + t.byte_offset, dtype_of(t.dtype, name), t.ndim, {}, {}};
    int64_t dense = 1;
    for (int i = t.ndim - 1; i >= 0; --i) {
        result.shape[i] = t.shape[i];
        result.strides[i] = t.strides ? t.strides[i] : dense;
        dense *= t.shape[i];
    }
    return result;
}

int64_t Tensor::num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
}

bool Tensor::has_contiguous_tail(int first_dim) const {
    int64_t dense = 1;
    for (int i = ndim - 1; i >= first_dim; --i) {
        if (shape[i] == 0) return true;
        if (shape[i] != 1 && strides[i] != dense) return false;
        dense *= shape[i];
    }
    return true;
}

void Tensor::require_dtype(DType wanted) const {
    if (dtype != wanted)
        throw std::invalid_argument(std::string(name) + " must be " + name_of(wanted) + ", not " + name_of(dtype));
}

void Tensor::require_shape(std::initializer_list<int64_t> wanted) const {
    bool same = ndim == static_cast<int>(wanted.size());
    for (int i = 0; same && i < ndim; ++i) same = wanted.begin()[i] < 0 || wanted.begin()[i] == shape[i];
    if (!same)
        throw std::invalid_argument(std::string(name) + " must have shape " +
                                    shape_text(wanted.begin(), static_cast<int>(wanted.size())) + ", not " +
                                    shape_text(shape, ndim));
}

void Tensor::require_contiguous() const { require_contiguous_tail(0); }

void Tensor::require_contiguous_tail(int first_dim) const {
    if (!has_contiguous_tail(first_dim))
        throw std::invalid_argument(std::string(name) + " must be contiguous from dimension " +
                                    std::to_string(first_dim) + " on");
}

void Tensor::require_no_overlap() const {
    // From the densest dimension to the sparsest, each must step over all that the denser ones span.
    int order[max_ndim], num_dims = 0;
    for (int i = 0; i < ndim; ++i) {
        if (shape[i] == 0) return;
        if (shape[i] == 1) continue;
        int place = num_dims++;
        for (; place > 0 && strides[order[place - 1]] > strides[i]; --place) order[place] = order[place - 1];
        order[place] = i;
    }
    int64_t extent = 1;
    for (int i = 0; i < num_dims; ++i) {
        if (strides[order[i]] < extent) throw std::invalid_argument(std::string(name) + " overlaps itself");
        extent += strides[order[i]] * (shape[order[i]] - 1);
    }
}

}  // namespace trivium
