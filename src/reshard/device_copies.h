// Device copies: what one execution copies between device memory and host memory, in jobs of many
// rows. Jobs are used again. Under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/host_blocks.h"
#include "src/core/memory/staging.h"
#include "src/reshard/region.h"
#include "src/reshard/side_memory.h"

namespace hetcomm::reshard {

// What a job is for.
struct DeviceCopyUse {
  enum class Kind : uint8_t {
    kPack,      // the regions of message |index| that is sent
    kUnpack,    // what messages have brought
    kFetchOwn,  // the source of arrival |index|, into the job's block
    kStoreOwn,  // from there
  };
  Kind kind{};
  uint32_t phase = 0;
  uint32_t index = 0;
};

class DeviceCopyHandler {
 public:
  // A job is over. |block| is its own.
  virtual void on_device_copied(const DeviceCopyUse& use, HostBlocks::Block block,
                                const Status& status) HETCOMM_UNDER_BATON = 0;

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

  // |region| of |side|, which is staged, and the host memory where its rows lie behind each other,
  // belong to the next job. May throw std::bad_alloc.
  void add(const SideMemory& side, const Region& region, std::byte* host) HETCOMM_UNDER_BATON;
  bool has_rows() const HETCOMM_UNDER_BATON { return !rows_.empty(); }
  // Forgets what was added.
  void clear() HETCOMM_UNDER_BATON { rows_.clear(); }
  // Starts it. The handler hears of its end later. May throw std::bad_alloc, and has started
  // nothing then; |block| stays.
  void start(StreamDirection direction, const DeviceCopyUse& use,
             HostBlocks::Block&& block = {}) HETCOMM_UNDER_BATON;

 private:
  struct Job;
  void end(Job& job, const Status& status) HETCOMM_UNDER_BATON;

  Staging& staging_;
  DeviceCopyHandler& handler_;
  std::vector<StagedRows> rows_;  // of the next job
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<Job*> spare_;  // has room for all
};

}  // namespace hetcomm::reshard
