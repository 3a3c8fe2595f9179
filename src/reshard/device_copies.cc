#include "src/reshard/device_copies.h"

#include <utility>

#include "src/base/room.h"

namespace hetcomm::reshard {

struct DeviceCopies::Job final : CopyHandler {
  explicit Job(DeviceCopies& jobs) : owner(jobs) {}
  void on_copied(const Status& status) override HETCOMM_UNDER_BATON { owner.end(*this, status); }
  std::string copy_purpose() const override HETCOMM_UNDER_BATON {
    return owner.handler_.describe();
  }

  DeviceCopies& owner;
  CopyJob job;
  DeviceCopyUse use;
};

DeviceCopies::DeviceCopies(Staging& staging, DeviceCopyHandler& handler)
    : staging_(staging), handler_(handler) {}

DeviceCopies::~DeviceCopies() = default;

uint64_t DeviceCopies::count(const SideMemory& side, const Region& region) {
  return side.copies_rows() ? region.planes() : region.rows;
}

// Adds the rows of |region|. If they have more than two dimensions, several device copies are
// needed.
void DeviceCopies::add(StreamDirection direction, const SideMemory& side, const Region& region,
                       std::byte* host) {
  const size_t outer = region.dimensions > 2 ? region.dimensions - 2 : 0;
  std::vector<StagedRows>& rows = rows_[static_cast<size_t>(direction)];
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
    rows.push_back(piece);
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

void DeviceCopies::add(const SideMemory& source, const Region& from, const SideMemory& target,
                       const Region& to, const CommonRows& rows) {
  const size_t outer = rows.dimensions > 2 ? rows.dimensions - 2 : 0;
  RowsBetween piece{.from = source.named_memory(),
                    .from_rows = one_row(source.piece().offset + from.offset, rows.row_bytes),
                    .to = target.named_memory(),
                    .to_rows = one_row(target.piece().offset + to.offset, rows.row_bytes)};
  for (size_t d = outer; d < rows.dimensions; ++d) {
    const size_t inner = d + 2 - rows.dimensions;
    piece.from_rows.extents[inner] = piece.to_rows.extents[inner] = rows.extents[d];
    piece.from_rows.strides[inner] = rows.from_strides[d];
    piece.to_rows.strides[inner] = rows.to_strides[d];
  }
  CommonRows::Sizes at{};
  while (true) {
    between_.push_back(piece);
    size_t d = outer;
    while (d > 0 && ++at[d - 1] == rows.extents[d - 1]) {
      --d;
      piece.from_rows.offset -= (rows.extents[d] - 1) * rows.from_strides[d];
      piece.to_rows.offset -= (rows.extents[d] - 1) * rows.to_strides[d];
      at[d] = 0;
    }
    if (d == 0) return;
    piece.from_rows.offset += rows.from_strides[d - 1];
    piece.to_rows.offset += rows.to_strides[d - 1];
  }
}

DeviceCopies::Job& DeviceCopies::take_job(const DeviceCopyUse& use) {
  if (spare_.empty()) {
    make_room(spare_, jobs_.size() + 1);
    jobs_.push_back(std::make_unique<Job>(*this));
    spare_.push_back(jobs_.back().get());
  }
  Job& job = *spare_.back();
  spare_.pop_back();
  job.use = use;
  return job;
}

void DeviceCopies::start(StreamDirection direction, const DeviceCopyUse& use) {
  Job& job = take_job(use);
  std::vector<StagedRows>& rows = rows_[static_cast<size_t>(direction)];
  staging_.start(job.job, direction, rows, job);
  rows.clear();
}

void DeviceCopies::start_between(const DeviceCopyUse& use) {
  Job& job = take_job(use);
  staging_.start(job.job, between_, job);
  between_.clear();
}

void DeviceCopies::end(Job& job, const Status& status) {
  const DeviceCopyUse use = job.use;
  spare_.push_back(&job);
  handler_.on_device_copied(use, status);
}

}  // namespace hetcomm::reshard
