// StepSums runs the steps that combine or reduce data. A step runs on the host or, if that is
// faster, on the device whose memory the operation sends. Callers hold the baton.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/collectives/runner.h"
#include "src/core/collectives/segments.h"
#include "src/core/collectives/task.h"
#include "src/core/memory/device_sums.h"

namespace hetcomm::collectives {

class StepSumsClient {
 public:
  // Called when the device has finished the step of segment slot |slot|.
  virtual void on_step(size_t slot, const Status& status) HETCOMM_UNDER_BATON = 0;
  // Returns a description for people of the operation to which the step belongs.
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;

 protected:
  ~StepSumsClient() = default;
};

class StepSums {
 public:
  StepSums();
  StepSums(const StepSums&) = delete;
  StepSums& operator=(const StepSums&) = delete;

  // Runs |step| of segment slot |slot|. Returns false if a device runs the step, in which case
  // |client| is notified when it ends. If the call throws std::bad_alloc, the step has not begun.
  bool run(size_t slot, const Task& task, const Steps& steps, const Step& step,
           const Addresses& addresses, DeviceSums& sums,
           StepSumsClient& client) HETCOMM_UNDER_BATON;

 private:
  // The device work of one segment.
  class Slot final : public CopyHandler {
   public:
    void on_copied(const Status& status) override HETCOMM_UNDER_BATON;
    std::string copy_purpose() const override HETCOMM_UNDER_BATON { return client->describe(); }
    size_t number = 0;
    StepSumsClient* client = nullptr;
    DeviceSums* sums = nullptr;
    CopyJob job;
    std::vector<SumOperand> operands;
    DeviceSum sum;
    uint64_t started_ns = 0;
  };

  static bool describe(const Task& task, const Steps& steps, const Step& step,
                       const Addresses& addresses, Slot& slot) HETCOMM_UNDER_BATON;
  void run_on_host(const Task& task, const Steps& steps, const Step& step,
                   const Addresses& addresses) HETCOMM_UNDER_BATON;

  std::array<Slot, Runner::kSegmentsAtOnce> slots_;
  std::vector<const std::byte*> inputs_;  // inputs of a step
};

}  // namespace hetcomm::collectives
