// DeviceCopies copies data of one execution between device memory and host memory, and between
// device memories. Each job copies many rows. Job objects are reused. Callers hold the baton.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/staging.h"
#include "src/reshard/common_rows.h"
#include "src/reshard/region.h"
#include "src/reshard/side_memory.h"

namespace hetcomm::reshard {

// The purpose of a job.
struct DeviceCopyUse {
  enum class Kind : uint8_t {
    kPack,      // copies the data of outgoing message |index| to host memory
    kUnpack,    // copies the arrivals [index, end) to device memory
    kFetchOwn,  // copies arrivals [index, end) from this rank's devices to host memory
  };
  Kind kind{};
  uint32_t phase = 0;
  uint32_t index = 0;
  uint32_t end = 0;
  std::byte* memory = nullptr;  // host memory that only this job uses, or null
};

class DeviceCopyHandler {
 public:
  virtual void on_device_copied(DeviceCopyUse use, const Status& status) HETCOMM_UNDER_BATON = 0;
  // Describes the execution, for log lines and errors.
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;

 protected:
  ~DeviceCopyHandler() = default;
};

class DeviceCopies {
 public:
  // Both arguments outlive this object. No job may be in progress when it is destroyed.
  DeviceCopies(Staging& staging, DeviceCopyHandler& handler);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Returns the number of device copies needed for |region| of |side|.
  static uint64_t count(const SideMemory& side, const Region& region);
  // Adds |region| of |side|, which is staged, to the next job in |direction|. |host| is the memory
  // that holds the rows contiguously. May throw std::bad_alloc.
  void add(StreamDirection direction, const SideMemory& side, const Region& region,
           std::byte* host) HETCOMM_UNDER_BATON;
  // Adds a copy of |from| in |source| to |to| in |target| to the next job between devices. The
  // devices can copy the bytes directly. |rows| are the common rows of the two regions.
  void add(const SideMemory& source, const Region& from, const SideMemory& target, const Region& to,
           const CommonRows& rows) HETCOMM_UNDER_BATON;
  bool has_rows_between() const HETCOMM_UNDER_BATON { return !between_.empty(); }
  // Starts the job between devices, with the same rules as start().
  void start_between(const DeviceCopyUse& use) HETCOMM_UNDER_BATON;
  bool has_rows(StreamDirection direction) const HETCOMM_UNDER_BATON {
    return !rows_[static_cast<size_t>(direction)].empty();
  }
  // Discards the added rows.
  void clear() HETCOMM_UNDER_BATON {
    for (auto& rows : rows_) rows.clear();
    between_.clear();
  }
  // Starts the next job in |direction|. The handler is notified when the job has ended, but not
  // during this call. If this call throws std::bad_alloc, the job has not been started.
  void start(StreamDirection direction, const DeviceCopyUse& use) HETCOMM_UNDER_BATON;

 private:
  struct Job;
  Job& take_job(const DeviceCopyUse& use) HETCOMM_UNDER_BATON;
  void end(Job& job, const Status& status) HETCOMM_UNDER_BATON;

  Staging& staging_;
  DeviceCopyHandler& handler_;
  std::array<std::vector<StagedRows>, 2> rows_;  // rows of the next job in each direction
  std::vector<RowsBetween> between_;             // rows of the next job between devices
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<Job*> spare_;  // jobs that are not in progress; its capacity suffices for all jobs
};

}  // namespace hetcomm::reshard
