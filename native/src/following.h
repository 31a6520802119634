// What workers multiply next, for the kernels that fetch it.
#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace trivium {

inline WeightBytes bytes_of(const LinearPart& part) {
    const int64_t tile_bytes = packed_tile_bytes(part.weight.type, part.weight.columns);
    return {part.weight.data + part.first_tile * tile_bytes, (part.last_tile - part.first_tile) * tile_bytes};
}

class FollowingPart final : public Following {
public:
    explicit FollowingPart(const LinearPart& part) : part_(part) {}
    WeightBytes weights() override { return bytes_of(part_); }

private:
    const LinearPart& part_;
};

// The worker's next task of the call that runs. weights_of(task): where it begins; also after the last one, ThreadPool::none.
template <typename WeightsOf>
class FollowingTask final : public Following {
public:
    FollowingTask(ThreadPool& pool, int worker, const WeightsOf& weights_of)
        : pool_(pool), worker_(worker), weights_of_(weights_of) {}
    WeightBytes weights() override { return weights_of_(pool_.take_ahead(worker_)); }

private:
    ThreadPool& pool_;
    const int worker_;
    const WeightsOf& weights_of_;
};

}  // namespace trivium
