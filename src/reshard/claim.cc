#include "src/reshard/claim.h"

#include <algorithm>
#include <tuple>

#include <fmt/core.h>

#include "src/core/device/memory.h"

namespace hetcomm::reshard {
namespace {

std::string_view name_of(bool is_destination) { return is_destination ? "destination" : "source"; }

const char* reason_of(Meeting meeting) {
  return meeting == Meeting::kMeet ? "overlaps" : "cannot be told, in time, to lie apart from";
}

}  // namespace

Claim::Claim(const Program& program) : program_(program) {
  size_t uses = 0;
  for (const auto* sides : {&program.sources, &program.destinations}) {
    for (const ProgramSide& side : *sides) uses += side.boxes.boxes.empty() ? 0u : 1u;
  }
  bases_.resize(uses);
  uses_.reserve(uses);
  open_sources_.reserve(uses);
  open_destinations_.reserve(uses);
}

Claim::Base Claim::base_of(const hetcomm_buffer_t& buffer) {
  const auto* memory = reinterpret_cast<const Memory*>(buffer.memory);
  if (memory == nullptr) return {.offset = buffer.offset};
  const auto address = reinterpret_cast<uintptr_t>(memory->address());
  if (memory->host_accessible()) return {.offset = address + buffer.offset};
  const auto allocation = reinterpret_cast<uintptr_t>(memory->allocation());
  return {.device = 1 + memory->device_index(),
          .allocation = allocation,
          .offset = address - allocation + buffer.offset};
}

// Calls use(index, tensor, is_destination) for each source and destination that has boxes.
template <typename Call>
void Claim::for_each(Call&& use) const {
  size_t index = 0;
  for (const bool is_destination : {false, true}) {
    const auto& sides = is_destination ? program_.destinations : program_.sources;
    for (uint32_t i = 0; i < sides.size(); ++i) {
      if (!sides[i].boxes.boxes.empty()) use(index++, i, is_destination);
    }
  }
}

Code Claim::locate(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
                   const UserStream* stream, std::string* text) {
  stream_ = stream;
  bool is_known = is_known_;
  for_each([&](size_t index, uint32_t tensor, bool is_destination) {
    const Base base = base_of((is_destination ? destinations : sources)[tensor]);
    is_known = is_known && bases_[index] == base;
    bases_[index] = base;
  });
  if (is_known) return Code::kOk;
  uses_.clear();
  for_each([&](size_t index, uint32_t tensor, bool is_destination) {
    uses_.push_back({.base = bases_[index], .tensor = tensor, .is_destination = is_destination});
    Use& use = uses_.back();
    const Footprint& boxes = boxes_of(use);
    use.begin = use.base.offset + boxes.begin;
    use.end = use.base.offset + boxes.end;
  });
  std::sort(uses_.begin(), uses_.end(), [](const Use& one, const Use& other) {
    return std::tie(one.base.device, one.base.allocation, one.begin) <
           std::tie(other.base.device, other.base.allocation, other.begin);
  });
  is_known_ = is_apart(text);
  return is_known_ ? Code::kOk : Code::kInvalidArgument;
}

const Footprint& Claim::boxes_of(const Use& use) const {
  return (use.is_destination ? program_.destinations : program_.sources)[use.tensor].boxes;
}

// Returns whether two uses overlap. At least one of them is a destination. Elements that keep their
// addresses can be both in the source and in the destination of one tensor.
Meeting Claim::find_meeting(const Use& one, const Use& other) const {
  const bool may_stay = one.tensor == other.tensor && one.is_destination != other.is_destination &&
                        program_.sources[one.tensor].stays;
  return reshard::find_meeting(boxes_of(one), boxes_of(other),
                               static_cast<int64_t>(other.base.offset - one.base.offset), may_stay);
}

bool Claim::is_apart(std::string* text) {
  open_sources_.clear();
  open_destinations_.clear();
  for (const Use& use : uses_) {
    for (Open* open : {&open_sources_, &open_destinations_}) {
      std::erase_if(*open, [&](const Use* each) {
        return each->base.device != use.base.device ||
               each->base.allocation != use.base.allocation || each->end <= use.begin;
      });
      // Sources may share memory.
      if (open == &open_sources_ && !use.is_destination) continue;
      for (const Use* each : *open) {
        const Meeting meeting = find_meeting(*each, use);
        if (meeting == Meeting::kApart) continue;
        const Use& written = use.is_destination ? use : *each;
        const Use& other = use.is_destination ? *each : use;
        *text = fmt::format(
            "the destination of tensor {} {} the {} of tensor {} in this rank's memory; only what "
            "stays in its place may be in both",
            written.tensor, reason_of(meeting), name_of(other.is_destination), other.tensor);
        return false;
      }
    }
    (use.is_destination ? open_destinations_ : open_sources_).push_back(&use);
  }
  return true;
}

bool Claim::is_apart_from(const Claim& other, std::string* text) const {
  // The stream orders the executions, so they never overlap in time.
  if (stream_ != nullptr && stream_ == other.stream_) return true;
  const auto start_of = [](const Use& use) {
    return std::tie(use.base.device, use.base.allocation);
  };
  // All uses before |first| end before |use| begins, and so before all uses that follow |use|.
  auto first = other.uses_.begin();
  for (const Use& use : uses_) {
    const auto is_before = [&](const Use& each) {
      return start_of(each) < start_of(use) ||
             (start_of(each) == start_of(use) && each.end <= use.begin);
    };
    while (first != other.uses_.end() && is_before(*first)) ++first;
    for (auto each = first;
         each != other.uses_.end() && start_of(*each) == start_of(use) && each->begin < use.end;
         ++each) {
      if (is_before(*each) || (!use.is_destination && !each->is_destination)) continue;
      const Meeting meeting =
          reshard::find_meeting(boxes_of(use), other.boxes_of(*each),
                                static_cast<int64_t>(each->base.offset - use.base.offset));
      if (meeting == Meeting::kApart) continue;
      *text = fmt::format(
          "the {} of tensor {} {} the {} of tensor {} of an execution that is under way",
          name_of(use.is_destination), use.tensor, reason_of(meeting),
          name_of(each->is_destination), each->tensor);
      return false;
    }
  }
  return true;
}

Code Claims::enter(const Claim& claim, std::string* text) {
  const std::lock_guard lock(mutex_);
  for (const Claim* each : claims_) {
    if (!claim.is_apart_from(*each, text)) return Code::kInvalidArgument;
  }
  claims_.push_back(&claim);
  return Code::kOk;
}

void Claims::leave(const Claim& claim) {
  const std::lock_guard lock(mutex_);
  std::erase(claims_, &claim);
}

}  // namespace hetcomm::reshard
