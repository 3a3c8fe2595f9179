#include "src/reshard/execution_memory.h"

#include <algorithm>
#include <utility>

#include "src/reduce/reduce.h"

namespace hetcomm::reshard {

bool is_same_memory(const SideMemory& one, const Region& first, const SideMemory& other,
                    const Region& second) {
  return one.named_memory() == other.named_memory() &&
         one.piece().offset + first.offset == other.piece().offset + second.offset &&
         first.row_bytes == second.row_bytes && first.dimensions == second.dimensions &&
         first.extents == second.extents && first.strides == second.strides;
}

ExecutionMemory::ExecutionMemory(const Program& program)
    : program_(program),
      sources_(program.tensors.size()),
      destinations_(program.tensors.size()),
      copies_between_(program.tensors.size()) {}

void ExecutionMemory::bind(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
                           std::vector<BufferPiece>& pieces) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (program_.sources[i].bytes > 0) sources_[i].bind(sources[i], program_.sources[i]);
    if (program_.destinations[i].bytes > 0) {
      destinations_[i].bind(destinations[i], program_.destinations[i]);
    }
    copies_between_[i] =
        program_.sources[i].bytes > 0 && program_.destinations[i].bytes > 0 &&
        sources_[i].is_staged() && destinations_[i].is_staged() &&
        can_copy_between(*sources_[i].named_memory(), *destinations_[i].named_memory());
  }
  for (const auto* side : {&sources_, &destinations_}) {
    for (const SideMemory& memory : *side) {
      if (memory.named_memory() != nullptr) pieces.push_back(memory.piece());
    }
  }
}

void ExecutionMemory::take_scratch(HostBlocks& blocks) {
  if (program_.scratch_bytes > 0) scratch_ = blocks.take(program_.scratch_bytes);
}

void ExecutionMemory::give_scratch(HostBlocks& blocks) {
  if (scratch_.memory != nullptr) blocks.give(std::exchange(scratch_, {}));
}

void ExecutionMemory::leave_to(AbandonedCopies& abandoned) noexcept {
  for (auto* const sides : {&sources_, &destinations_}) {
    for (SideMemory& side : *sides) side.leave_to(abandoned);
  }
}

CopySide ExecutionMemory::copy_side_of(const Region& region, std::byte* sums) const {
  const ElementType type = program_.tensors[region.tensor].type_of(region.memory);
  if (region.memory == Space::kSum) return {sums, &region, type};
  if (region.memory == Space::kScratch) return {scratch_.memory.get(), &region, type};
  return {side_of(region)->host(), &region, type};
}

const SideMemory* ExecutionMemory::side_of(const Region& region) const {
  if (region.memory == Space::kScratch || region.memory == Space::kSum) return nullptr;
  return region.memory == Space::kSource ? &sources_[region.tensor] : &destinations_[region.tensor];
}

const SideMemory* ExecutionMemory::staged_side_of(const Region& region) const {
  const SideMemory* const side = side_of(region);
  return side != nullptr && side->is_staged() ? side : nullptr;
}

bool ExecutionMemory::converts(const Region& region) const {
  return program_.tensors[region.tensor].converts(region.memory);
}

uint64_t ExecutionMemory::packed_bytes(const Region& region) const {
  if (!converts(region)) return region.bytes();
  const TypePair& types = program_.tensors[region.tensor].types;
  return region.bytes() / reduce::size_of(types.source) * reduce::size_of(types.destination);
}

bool ExecutionMemory::stays_on_device(const ProgramArrival& arrival, CommonRows* rows) const {
  return arrival.receive < 0 && !arrival.adds && arrival.from.memory == Space::kSource &&
         arrival.to.memory == Space::kDestination && copies_between_[arrival.to.tensor] &&
         !converts(arrival.from) && find_common_rows(arrival.from, arrival.to, rows);
}

uint64_t ExecutionMemory::room_of(const ProgramArrival& arrival) const {
  if (arrival.receive >= 0) return 0;
  const SideMemory* const from = staged_side_of(arrival.from);
  const SideMemory* const to = staged_side_of(arrival.to);
  if (from == nullptr) return to == nullptr ? 0 : arrival.to.bytes();
  if (to != nullptr && !converts(arrival.from) &&
      is_same_memory(*from, arrival.from, *to, arrival.to)) {
    return 0;
  }
  CommonRows rows;
  if (stays_on_device(arrival, &rows)) return 0;
  return std::max(arrival.from.bytes(), arrival.to.bytes());
}

}  // namespace hetcomm::reshard
