// The part of the DLPack 1.x C interface that we read: a producer's non-owning view of a tensor, without a call into
// the interpreter (`type(tensor).__dlpack_c_exchange_api__`).
#pragma once

#include <cstdint>

namespace trivium::dlpack {

enum DeviceType : int32_t { cpu = 1 };
enum TypeCode : uint8_t { int_code = 0, uint_code = 1, float_code = 2, bfloat_code = 4 };

struct Device {
    int32_t type;
    int32_t id;
};

struct DataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    int32_t ndim;
    DataType dtype;
    int64_t* shape;
    int64_t* strides;  // in elements; null: contiguous
    uint64_t byte_offset;
};

struct Version {
    uint32_t major;
    uint32_t minor;
};

struct ExchangeApi {
    Version version;
    ExchangeApi* previous;
    void* allocate;
    void* managed_from_object;
    void* managed_to_object;
    int (*view_of_object)(void* object, Tensor* out);  // 0, or -1 with a Python exception set
    void* current_stream;
};

constexpr uint32_t major_version = 1;
constexpr const char* capsule_name = "dlpack_exchange_api";

}  // namespace trivium::dlpack
