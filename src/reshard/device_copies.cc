#include "src/reshard/device_copies.h"

#include <utility>

namespace hetcomm::reshard {

struct DeviceCopies::Job final : CopyHandler {
  explicit Job(DeviceCopies& jobs) : owner(jobs) {}
  void on_copied(const Status& status) override { owner.end(*this, status); }

  DeviceCopies& owner;
  CopyJob job;
  DeviceCopyUse use;
  HostBlocks::Block block;
};

DeviceCopies::DeviceCopies(Staging& staging, DeviceCopyHandler& handler)
    : staging_(staging), handler_(handler) {}

DeviceCopies::~DeviceCopies() = default;

// A device knows two dimensions of rows; what has more is more than one of its copies.
void DeviceCopies::add(const SideMemory& side, const Region& region, std::byte* host) {
  const size_t outer = region.dimensions > 2 ? region.dimensions - 2 : 0;
  StagedRows piece{
      .memory = side.named_memory(), .rows = one_row(0, region.row_bytes), .host = host};
  for (size_t d = outer; d < region.dimensions; ++d) {
    const size_t inner = d + 2 - region.dimensions;
    piece.rows.extents[inner] = region.extents[d];
    piece.rows.strides[inner] = region.strides[d];
  }
  Numbers at{};
  uint64_t offset = side.piece().offset + region.offset;
  while (true) {
    piece.rows.offset = offset;
    rows_.push_back(piece);
    piece.host += bytes_of(piece.rows);
    size_t d = outer;
    while (d > 0 && ++at[d - 1] == region.extents[d - 1]) {
      --d;
      offset -= (region.extents[d] - 1) * region.strides[d];
      at[d] = 0;
    }
    if (d == 0) return;
    offset += region.strides[d - 1];
  }
}

void DeviceCopies::start(StreamDirection direction, const DeviceCopyUse& use,
                         HostBlocks::Block&& block) {
  if (spare_.empty()) {
    spare_.reserve(jobs_.size() + 1);
    jobs_.push_back(std::make_unique<Job>(*this));
    spare_.push_back(jobs_.back().get());
  }
  Job& job = *spare_.back();
  spare_.pop_back();
  job.use = use;
  job.block = std::move(block);
  staging_.start(job.job, direction, rows_, job);
  rows_.clear();
}

void DeviceCopies::end(Job& job, const Status& status) {
  HostBlocks::Block block = std::move(job.block);
  spare_.push_back(&job);
  handler_.on_device_copied(job.use, std::move(block), status);
}

}  // namespace hetcomm::reshard
