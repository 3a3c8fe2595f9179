#include "src/core/memory/device_access.h"

#include <algorithm>

#include <fmt/core.h>

#include "transports/variables.h"

namespace hetcomm {
namespace {

// The first pause after a temporary failure is this time, or kPauses times the duration of the
// trial if that is longer.
constexpr uint64_t kFirstPauseNs = 100'000'000;
constexpr uint64_t kPauses = 50;
constexpr uint32_t kMaxDoublings = 8;

bool is_on_device(const BufferPiece& piece) {
  return piece.memory != nullptr && !piece.memory->host_accessible() && piece.length > 0;
}

}  // namespace

DeviceAccess::DeviceAccess(DeviceSet& devices, const Config& config, Log& log)
    : devices_(devices),
      log_(log),
      staged_(config.text(variable::kDevicePath) == "staged"),
      insists_(config.text(variable::kDevicePath) == "direct") {}

void DeviceAccess::add(DeviceAttacher* attacher, const std::string& name, uint64_t far_devices) {
  if (paths_.empty()) devices_.add_user(*this);
  paths_.push_back({attacher, name, far_devices, {}, 0, {}});
  if (attacher != nullptr && !staged_) devices_.set_reachable();
}

void DeviceAccess::set_far(size_t index, size_t device, bool far) {
  if (device >= 64) return;
  const uint64_t bit = uint64_t{1} << device;
  uint64_t& known = paths_[index].far_devices;
  known = far ? known | bit : known & ~bit;
}

DeviceAccess::Verdict& DeviceAccess::known_verdict(Path& path, size_t device) {
  if (device >= path.verdicts.size()) path.verdicts.resize(device + 1);
  return path.verdicts[device];
}

const Status& DeviceAccess::verdict(Path& path, size_t device) {
  Verdict& known = known_verdict(path, device);
  if (known.status && known.again_ns == kForever) return *known.status;
  const uint64_t begin = now_ns();
  if (begin < path.resume_ns) return known.status ? *known.status : path.failure;
  if (known.status && begin < known.again_ns) return *known.status;
  const NoHolds none(devices_.calls());
  const bool may_try = none && !devices_.abandoned().use(devices_.device(device));
  if (!may_try && has_to_try(path, devices_.device(device))) {
    return known.status ? *known.status : held_back_;
  }
  bool hangs = false;
  known.status = try_device(path, devices_.device(device), &hangs);
  known.again_ns = kForever;
  if (may_pass(*known.status)) {
    const uint64_t end = now_ns();
    const uint64_t pause = std::max(kFirstPauseNs, kPauses * (end - begin));
    known.again_ns = end + (pause << std::min(known.failures++, kMaxDoublings));
    if (!hangs) {
      path.resume_ns = known.again_ns;
      path.failure = *known.status;
    }
  }
  return *known.status;
}

Status DeviceAccess::try_device(Path& path, const Device& device, bool* out_hangs) {
  if (path.attacher == nullptr || device.table->host_accessible) {
    return {Code::kUnsupported, "it moves host memory only"};
  }
  HangingCopy hanging;
  Status verdict = staged_ ? Status(Code::kUnsupported, "HETCOMM_DEVICE_PATH=staged")
                           : path.attacher->check_device(device, &hanging);
  *out_hangs = hanging.event != nullptr;
  // Until the copy has ended, calls to the device may wait for it.
  if (hanging.event != nullptr) {
    devices_.abandoned().add({.device = &device,
                              .event = hanging.event,
                              .host = HostRange::of(hanging.host, hanging.bytes)});
  }
  log_.info("memory of {} over {}: {} ({})", device.table->kind, path.name,
            verdict.ok()        ? "direct"
            : may_pass(verdict) ? "staged for now"
                                : "staged",
            verdict.text());
  return verdict;
}

void DeviceAccess::close() {
  if (!paths_.empty()) devices_.remove_user(*this);
  paths_.clear();
  memories_.clear();
}

DeviceAccess::State& DeviceAccess::state_of(const Memory& memory, size_t index) {
  std::vector<State>& states = memories_[&memory];
  if (states.size() < paths_.size()) states.resize(paths_.size(), State::kUnknown);
  return states[index];
}

bool DeviceAccess::reaches(Memory& memory, size_t index) {
  if (memory.host_accessible()) return true;
  std::byte* const placeholder = memory.placeholder();
  if (placeholder == nullptr || !verdict(paths_[index], memory.device_index()).ok()) return false;
  State& state = state_of(memory, index);
  if (state == State::kUnknown) {
    const Status status = paths_[index].attacher->attach(
        {memory.device(), memory.address(), memory.size(), placeholder});
    state = status.ok() ? State::kAttached : State::kRefused;
    if (!status.ok()) {
      log_.info("memory of {} ({} bytes) is staged over {}: {}", memory.device().table->kind,
                memory.size(), paths_[index].name, status.text());
    }
  }
  return state == State::kAttached;
}

bool DeviceAccess::reaches(const Operation& operation, size_t index) {
  if (!operation.buffers.has_placeholders) return false;
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (is_on_device(piece) && !reaches(*piece.memory, index)) return false;
  }
  return true;
}

// Operations in flight on the memory run to completion. Later operations on this path are staged.
void DeviceAccess::give_up(const Operation& operation, size_t index, const Status& why) {
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (!is_on_device(piece)) continue;
    state_of(*piece.memory, index) = State::kRefused;
    log_.info("memory of {} ({} bytes) is staged over {} from now on: {}",
              piece.memory->device().table->kind, piece.memory->size(), paths_[index].name,
              why.text());
  }
}

Status DeviceAccess::flush_remote_writes(const Operation& operation) {
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (is_on_device(piece)) HETCOMM_RETURN_IF_ERROR(piece.memory->flush_remote_writes());
  }
  return {};
}

std::string DeviceAccess::refusal(const Operation& operation, size_t index) {
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (!is_on_device(piece)) continue;
    const Status& tried = verdict(paths_[index], piece.memory->device_index());
    const auto known = memories_.find(piece.memory);
    const bool refused = known != memories_.end() && known->second[index] == State::kRefused;
    if (tried.ok() && !refused) continue;
    return fmt::format(
        "HETCOMM_DEVICE_PATH=direct, and {} does not reach memory of {}: {}; "
        "HETCOMM_DEVICE_PATH=auto stages it",
        paths_[index].name, piece.memory->device().table->kind,
        tried.ok() ? "it refused this memory (HETCOMM_LOG=info says why)" : tried.text());
  }
  return "HETCOMM_DEVICE_PATH=direct, and no addresses could be reserved that stand for the "
         "operation's device memory; HETCOMM_DEVICE_PATH=auto stages it";
}

void DeviceAccess::prepare_for_holds(const NearTransports& near) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (!devices_.has_user_streams(i) && !insists_) continue;
    for (size_t index = 0; index < paths_.size(); ++index) {
      const bool is_near = index >= 64 || (near.of_device(i) >> index & 1) != 0;
      if (is_near && has_to_try(paths_[index], devices_.device(i))) {
        static_cast<void>(verdict(paths_[index], i));
      }
    }
  }
}

std::string DeviceAccess::explain(const NearTransports& near) {
  std::string text;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const DeviceTable& table = *devices_.device(i).table;
    if (table.host_accessible) continue;
    for (size_t index = 0; index < paths_.size(); ++index) {
      Path& path = paths_[index];
      if (path.name == "self") continue;
      const bool is_elsewhere = index < 64 && (near.of_device(i) >> index & 1) == 0;
      if (is_elsewhere && !known_verdict(path, i).status) {
        text += fmt::format("  memory of {} (device {}) over {}: not tried (others are nearer)\n",
                            table.kind, i, path.name);
        continue;
      }
      const Status& tried = verdict(path, i);
      const bool has_choice = tried.ok() && is_far(i, index);
      text += fmt::format(
          "  memory of {} (device {}) over {}: {} ({}{})\n", table.kind, i, path.name,
          has_choice        ? "direct or staged"
          : tried.ok()      ? "direct"
          : may_pass(tried) ? "staged for now"
                            : "staged",
          has_choice ? "beyond one root complex, what is faster counts; " : "", tried.text());
    }
  }
  return text;
}

void DeviceAccess::forget(const Memory& memory) {
  const auto known = memories_.find(&memory);
  if (known == memories_.end()) return;
  for (Path& path : paths_) {
    if (path.attacher != nullptr) path.attacher->detach(memory.known_placeholder());
  }
  memories_.erase(known);
}

}  // namespace hetcomm
