// DeviceSums calculates sums on devices. The operands are in host memory, or in memory of the
// device itself. The result is written to host memory. Reductions other than sums work in the same
// way.
//
// Operands in host memory are copied into scratch memory of the device. The device then reduces the
// operands, and the result is copied back. All of this uses one stream, so the parts of a large
// sum, and different sums, can use the same scratch memory in turn. Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/device/memory.h"
#include "src/core/memory/staging.h"

namespace hetcomm {

// An operand: elements in host memory or, if |host| is null, in memory of the device that
// calculates the sum.
struct SumOperand {
  const std::byte* host = nullptr;
  const Memory* memory = nullptr;
  uint64_t offset = 0;
};

// A sum is out = operands[0] op operands[1] op ..., evaluated from left to right, divided by
// |divisor|. See hetcomm_device_reduction_t.
struct DeviceSum {
  size_t device = 0;
  int32_t datatype = 0;
  int32_t reduction = 0;
  uint32_t divisor = 1;
  bool rounds = false;                   // intermediate sums have type float32
  bool first_is_wide = false;            // operands[0] has type float32
  bool out_is_wide = false;              // the result has type float32
  std::span<const SumOperand> operands;  // at least two
  std::byte* out = nullptr;
  uint64_t elements = 0;
};

class DeviceSums {
 public:
  // kMeasured: use the side that was faster recently.
  enum class Mode : uint8_t { kMeasured, kHost, kDevice };
  // With kMeasured, shorter results are always calculated on the host.
  static constexpr uint64_t kMinBytes = 128u << 10;
  // The number of sums after which the slower side is tried again, at first and at most. Each trial
  // that changes nothing doubles the number, because a sum on the slower side can take ten times as
  // long, and delays all ranks of its operation.
  static constexpr uint32_t kMinTrialDistance = 256;
  static constexpr uint32_t kMaxTrialDistance = 4096;

  // The devices and |staging| outlive this object.
  DeviceSums(DeviceSet& devices, Staging& staging, Mode mode);
  // No sum may be in progress.
  ~DeviceSums();
  DeviceSums(const DeviceSums&) = delete;
  DeviceSums& operator=(const DeviceSums&) = delete;

  // Returns whether device |index| can calculate sums, and the mode allows it.
  bool serves(size_t index) const {
    return mode_ != Mode::kHost && devices_.device(index).table->reduce != nullptr;
  }
  // Returns whether the device can and should calculate |sum|. May throw std::bad_alloc.
  bool takes(const DeviceSum& sum) HETCOMM_UNDER_BATON;
  // Starts a sum that takes() has accepted. The staging's progress() later calls on_copied(); |job|
  // and all memory must live until then. Returns false if the device has failed before anything was
  // written. The host can then calculate the sum.
  bool start(CopyJob& job, const DeviceSum& sum, CopyHandler& handler) HETCOMM_UNDER_BATON;
  // Records that |sum| took |ns|, on the device or on the host.
  void note(const DeviceSum& sum, bool on_device, uint64_t ns) HETCOMM_UNDER_BATON;
  // Makes scratch memory on device |index| before its users' streams are held back, since nothing
  // can be allocated while they are.
  void prepare_for_holds(size_t index) HETCOMM_UNDER_BATON;

 private:
  // Positions of a part's elements in scratch memory, in bytes, and their number.
  struct Layout {
    uint64_t elements;  // number of elements in a part
    uint64_t narrow;    // position of the first operand, and of the result
    uint64_t next;      // position of the other operands
    uint64_t wide;      // position of float32 data
  };
  struct Speed {
    double host = 0;  // seconds per byte of the operands; 0: unknown
    double device = 0;
    bool has_warmed_up = false;  // the device has calculated a sum
    uint32_t since_trial = 0;
    uint32_t trial_distance = kMinTrialDistance;
    bool is_trying = false;  // the slower side is being tried; its time is not known yet
    bool is_device_quicker() const { return device != 0 && device < host; }
  };
  // The properties of a sum that decide whether a device supports it: device, datatype, reduction,
  // divisor, first_is_wide, out_is_wide, and the number of operands (3 also stands for more).
  using Question = std::tuple<size_t, int32_t, int32_t, uint32_t, bool, bool, size_t>;
  struct Scratch {
    void* address = nullptr;  // null: not allocated
    bool has_failed = false;  // allocation failed; it is not tried again
  };
  class Work;

  void* scratch(size_t index) HETCOMM_UNDER_BATON;
  bool can_make(const DeviceSum& sum) HETCOMM_UNDER_BATON;
  bool prefers_device(const DeviceSum& sum) HETCOMM_UNDER_BATON;
  static uint64_t size_of_out(const DeviceSum& sum);
  static uint64_t size_of_operands(const DeviceSum& sum);
  static Layout layout_of(const DeviceSum& sum);

  DeviceSet& devices_;
  Staging& staging_;
  const Mode mode_;
  std::vector<Scratch> scratch_;                        // by device
  std::map<std::pair<size_t, int32_t>, Speed> speeds_;  // by device and type
  std::set<Question> known_;                            // sums that the device supports
};

}  // namespace hetcomm
