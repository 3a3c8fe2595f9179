#include "src/core/memory/device_sums.h"

#include <algorithm>
#include <utility>

#include <hetcomm/datatype.h>

namespace hetcomm {
namespace {

constexpr uint64_t kScratchBytes = 4u << 20;
constexpr double kNever = 1;  // seconds per byte, so slow that the device is not preferred

}  // namespace

// A sum that the device calculates in parts.
class DeviceSums::Work final : public DeviceWork {
 public:
  Work(const DeviceSum& sum, void* scratch)
      : sum_(sum), scratch_(scratch), layout_(layout_of(sum)), size_(element_bytes(sum.datatype)) {}

  // Queries whether the device can carry out all steps.
  hetcomm_status_t ask(const Device& device) { return run(device, nullptr, 0, 0); }
  HostRange host() const override {
    HostRange all = HostRange::of(sum_.out, size_of_out(sum_));
    for (const SumOperand& operand : sum_.operands) {
      if (operand.host == nullptr) continue;
      const bool is_wide = &operand == &sum_.operands.front() && sum_.first_is_wide;
      all.extend(HostRange::of(operand.host, sum_.elements * width(is_wide)));
    }
    return all;
  }
  bool has_begun_to_write() const override { return has_begun_to_write_; }

  hetcomm_status_t start(const Device& device, void* stream) override {
    hetcomm_status_t status = HETCOMM_OK;
    for (uint64_t done = 0; done < sum_.elements && status == HETCOMM_OK;
         done += layout_.elements) {
      status = run(device, stream, done, std::min(layout_.elements, sum_.elements - done));
    }
    return status;
  }

 private:
  struct Location {
    const void* address = nullptr;
    uint64_t offset = 0;
  };
  uint64_t width(bool is_wide) const { return is_wide ? sizeof(float) : size_; }

  // Copies |elements| of |operand| to |offset| of the scratch memory, unless they are on the
  // device.
  hetcomm_status_t load(const Device& device, void* stream, const SumOperand& operand,
                        uint64_t done, uint64_t elements, bool is_wide, uint64_t offset,
                        Location* out_location) const {
    const uint64_t before = done * width(is_wide);
    if (operand.host == nullptr) {
      *out_location = {operand.memory->address(), operand.offset + before};
      return HETCOMM_OK;
    }
    *out_location = {scratch_, offset};
    if (elements == 0) return HETCOMM_OK;
    return device.table->copy_from_host(device.instance, stream, scratch_, offset,
                                        operand.host + before, elements * width(is_wide));
  }

  hetcomm_status_t run(const Device& device, void* stream, uint64_t done, uint64_t elements) {
    const DeviceTable& table = *device.table;
    bool is_wide = sum_.first_is_wide;
    Location so_far;
    hetcomm_status_t status = load(device, stream, sum_.operands[0], done, elements, is_wide,
                                   is_wide ? layout_.wide : layout_.narrow, &so_far);
    for (size_t i = 1; i < sum_.operands.size() && status == HETCOMM_OK; ++i) {
      const bool is_last = i + 1 == sum_.operands.size();
      const bool widens = is_last ? sum_.out_is_wide : sum_.rounds;
      Location next;
      status = load(device, stream, sum_.operands[i], done, elements, false, layout_.next, &next);
      if (status != HETCOMM_OK) break;
      const Location out{scratch_, widens ? layout_.wide : layout_.narrow};
      const DeviceReduction what{.first = so_far.address,
                                 .first_offset = so_far.offset,
                                 .second = next.address,
                                 .second_offset = next.offset,
                                 .out = scratch_,
                                 .out_offset = out.offset,
                                 .elements = elements,
                                 .reduction = sum_.reduction,
                                 .datatype = sum_.datatype,
                                 .first_datatype = is_wide ? HETCOMM_FLOAT32 : sum_.datatype,
                                 .out_datatype = widens ? HETCOMM_FLOAT32 : sum_.datatype,
                                 .divisor = is_last ? sum_.divisor : 1,
                                 .reserved = 0};
      status = table.reduce(device.instance, stream, &what);
      so_far = out;
      is_wide = widens;
    }
    if (status != HETCOMM_OK || elements == 0) return status;
    const uint64_t size = width(sum_.out_is_wide);
    has_begun_to_write_ = true;
    return table.copy_to_host(device.instance, stream, sum_.out + done * size, scratch_,
                              so_far.offset, elements * size);
  }

  const DeviceSum& sum_;
  void* const scratch_;
  const Layout layout_;
  const uint64_t size_;  // bytes of an element
  bool has_begun_to_write_ = false;
};

DeviceSums::DeviceSums(DeviceSet& devices, Staging& staging, Mode mode)
    : devices_(devices), staging_(staging), mode_(mode) {}

DeviceSums::~DeviceSums() {
  for (size_t i = 0; i < scratch_.size(); ++i) {
    if (scratch_[i].address == nullptr) continue;
    devices_.calls().make_or_put_off({.kind = EndingCall::Kind::kFree,
                                      .device = &devices_.device(i),
                                      .object = scratch_[i].address});
  }
}

// Returns scratch memory; null if there is none, perhaps because a user's stream is held back.
void* DeviceSums::scratch(size_t index) {
  if (index >= scratch_.size()) scratch_.resize(index + 1);
  Scratch& own = scratch_[index];
  if (own.address != nullptr || own.has_failed) return own.address;
  const Device& device = devices_.device(index);
  const NoHolds none(devices_.calls());
  if (!none) return nullptr;
  void* address = nullptr;
  own.has_failed = device.table->allocate(device.instance, kScratchBytes, &address) != HETCOMM_OK;
  if (!own.has_failed) own.address = address;
  return own.address;
}

void DeviceSums::prepare_for_holds(size_t index) {
  if (serves(index)) static_cast<void>(scratch(index));
}

uint64_t DeviceSums::size_of_out(const DeviceSum& sum) {
  return sum.elements * (sum.out_is_wide ? sizeof(float) : element_bytes(sum.datatype));
}

uint64_t DeviceSums::size_of_operands(const DeviceSum& sum) {
  return sum.elements * element_bytes(sum.datatype) * sum.operands.size();
}

DeviceSums::Layout DeviceSums::layout_of(const DeviceSum& sum) {
  constexpr uint64_t kAlignment = 1024;  // in elements, so that all locations are aligned
  const uint64_t size = element_bytes(sum.datatype);
  const uint64_t each = 2 * size + (sum.rounds ? sizeof(float) : 0);
  const uint64_t elements = kScratchBytes / each / kAlignment * kAlignment;
  return {.elements = elements, .narrow = 0, .next = elements * size, .wide = 2 * elements * size};
}

bool DeviceSums::takes(const DeviceSum& sum) {
  if (!serves(sum.device) || sum.elements == 0 || devices_.is_abandoned(sum.device)) return false;
  if (mode_ != Mode::kMeasured) return can_make(sum);
  if (size_of_out(sum) < kMinBytes || !prefers_device(sum)) return false;
  if (can_make(sum)) return true;
  // A due trial of the device is postponed until the next sum that the device can calculate.
  Speed& speed = speeds_[{sum.device, sum.datatype}];
  if (!speed.is_device_quicker()) speed.since_trial = speed.trial_distance;
  return false;
}

bool DeviceSums::can_make(const DeviceSum& sum) {
  void* const memory = scratch(sum.device);
  if (memory == nullptr) return false;
  // The first query for a kind of sum may compile and load kernels. With some vendors this waits
  // for work behind a held user's stream, so the query is made only if there are no holds.
  const Question question{sum.device,
                          sum.datatype,
                          sum.reduction,
                          sum.divisor,
                          sum.first_is_wide,
                          sum.out_is_wide,
                          std::min<size_t>(sum.operands.size(), 3)};
  const bool is_known = known_.count(question) != 0;
  const Device& device = devices_.device(sum.device);
  if (is_known) return Work(sum, memory).ask(device) == HETCOMM_OK;
  const NoHolds none(devices_.calls());
  if (!none || Work(sum, memory).ask(device) != HETCOMM_OK) return false;
  known_.insert(question);
  return true;
}

// Returns whether the device should calculate |sum|. The host and the device are both measured
// first. Later, the slower one is tried again from time to time.
bool DeviceSums::prefers_device(const DeviceSum& sum) {
  Speed& speed = speeds_[{sum.device, sum.datatype}];
  if (speed.host == 0) return false;
  if (speed.device == 0) return true;
  if (++speed.since_trial < speed.trial_distance) return speed.is_device_quicker();
  speed.since_trial = 0;
  speed.is_trying = true;
  return !speed.is_device_quicker();
}

void DeviceSums::note(const DeviceSum& sum, bool on_device, uint64_t ns) {
  constexpr double kNew = 0.25;  // weight of the latest measurement
  if (mode_ != Mode::kMeasured || size_of_out(sum) < kMinBytes) return;
  Speed& speed = speeds_[{sum.device, sum.datatype}];
  // A device's first sum creates streams and loads kernels, so it is not measured.
  if (on_device && !std::exchange(speed.has_warmed_up, true)) return;
  const bool was_quicker = speed.is_device_quicker();
  const bool is_other_side = on_device != was_quicker;
  double& known = on_device ? speed.device : speed.host;
  const double latest = static_cast<double>(ns) * 1e-9 / static_cast<double>(size_of_operands(sum));
  known = known == 0 || is_other_side ? latest : known + kNew * (latest - known);
  if (speed.is_device_quicker() != was_quicker) {
    speed.trial_distance = kMinTrialDistance;
  } else if (is_other_side && speed.is_trying) {
    speed.trial_distance = std::min(2 * speed.trial_distance, kMaxTrialDistance);
  }
  if (is_other_side) speed.is_trying = false;
}

bool DeviceSums::start(CopyJob& job, const DeviceSum& sum, CopyHandler& handler) {
  Work work(sum, scratch_[sum.device].address);
  if (staging_.try_start(job, sum.device, size_of_out(sum), work, handler)) return true;
  // The device counts as slow from now on, so another sum tries it only after a while.
  if (mode_ == Mode::kMeasured) {
    Speed& speed = speeds_[{sum.device, sum.datatype}];
    speed.device = kNever;
    speed.has_warmed_up = true;
  }
  return false;
}

}  // namespace hetcomm
