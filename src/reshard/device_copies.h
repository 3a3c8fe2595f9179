// Device copies: what one execution copies between device memory and host memory, and between
// memories of devices, in jobs of many rows. Jobs are used again. Under the baton.
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
#include "src/reshard/region.h"
#include "src/reshard/side_memory.h"

namespace hetcomm::reshard {

// A job is for one of these.
struct DeviceCopyUse {
  enum class Kind : uint8_t {
    kPack,      // of message |index|, which is sent
    kUnpack,    // of the arrivals [index, end), or of this rank's own memory
    kFetchOwn,  // the sources of those of them that are from this rank's own memory
  };
  Kind kind{};
  uint32_t phase = 0;
  uint32_t index = 0;
  uint32_t end = 0;
  std::byte* memory = nullptr;  // that the job uses, and nothing else does
};

class DeviceCopyHandler {
 public:
  virtual void on_device_copied(DeviceCopyUse use, const Status& status) HETCOMM_UNDER_BATON = 0;
  // The execution, for people.
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;

 protected:
  ~DeviceCopyHandler() = default;
};

class DeviceCopies {
 public:
  // Both outlive this, which has no job under way when it goes.
  DeviceCopies(Staging& staging, DeviceCopyHandler& handler);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // How many copies |region| of |side| is for its device.
  static uint64_t count(const SideMemory& side, const Region& region);
  // |region| of |side|, which is staged, and the host memory where its rows lie behind each other,
  // belong to the next job of this direction. May throw std::bad_alloc.
  void add(StreamDirection direction, const SideMemory& side, const Region& region,
           std::byte* host) HETCOMM_UNDER_BATON;
  // The bytes of |from| of |source| go to |to| of |target|, whose devices can copy them by
  // themselves; |rows| are the regions' own. They belong to the next job of that kind.
  void add(const SideMemory& source, const Region& from, const SideMemory& target, const Region& to,
           const CommonRows& rows) HETCOMM_UNDER_BATON;
  bool has_rows_between() const HETCOMM_UNDER_BATON { return !between_.empty(); }
  // Starts it, as start() does.
  void start_between(const DeviceCopyUse& use) HETCOMM_UNDER_BATON;
  bool has_rows(StreamDirection direction) const HETCOMM_UNDER_BATON {
    return !rows_[static_cast<size_t>(direction)].empty();
  }
  // Forgets what was added.
  void clear() HETCOMM_UNDER_BATON {
    for (auto& rows : rows_) rows.clear();
    between_.clear();
  }
  // Starts it. The handler hears of its end later. May throw std::bad_alloc, and has started
  // nothing then.
  void start(StreamDirection direction, const DeviceCopyUse& use) HETCOMM_UNDER_BATON;

 private:
  struct Job;
  Job& take_job(const DeviceCopyUse& use) HETCOMM_UNDER_BATON;
  void end(Job& job, const Status& status) HETCOMM_UNDER_BATON;

  Staging& staging_;
  DeviceCopyHandler& handler_;
  std::array<std::vector<StagedRows>, 2> rows_;  // of the next job of each direction
  std::vector<RowsBetween> between_;             // of the next job that copies these
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<Job*> spare_;  // has room for all
};

}  // namespace hetcomm::reshard
