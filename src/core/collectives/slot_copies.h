// SlotCopies copies between the devices of an operation and the long slots of an arena, for several
// chunks at once in each direction. Callers hold the baton.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/collectives/side_copies.h"
#include "src/core/device/stand_ins.h"
#include "src/core/memory/staging.h"

namespace hetcomm::collectives {

class SlotCopies {
 public:
  // The maximum number of chunks with copies in progress in one direction.
  static constexpr size_t kAtOnce = 4;

  SlotCopies() {
    for (auto& jobs : jobs_) {
      for (Job& job : jobs) job.owner = this;
    }
  }
  SlotCopies(const SlotCopies&) = delete;
  SlotCopies& operator=(const SlotCopies&) = delete;

  // Prepares for an operation whose chunks have at most |most_rows| rows. |client| is notified of
  // each copied chunk. May throw std::bad_alloc. The other functions do not throw.
  void start(Staging& staging, SideCopiesClient& client, size_t most_rows) HETCOMM_UNDER_BATON {
    rows_.clear();
    rows_.reserve(most_rows);
    staging_ = &staging;
    client_ = &client;
  }
  // Returns the list of rows for the next call of begin(). Its capacity is sufficient.
  std::vector<StagedRows>& rows() HETCOMM_UNDER_BATON { return rows_; }
  // Begins to copy rows(), which are the rows of |chunk| and may be empty. Then empties rows().
  void begin(StreamDirection direction, uint64_t chunk) HETCOMM_UNDER_BATON {
    if (rows_.empty()) return;
    Job& job = job_of(direction, chunk);
    job.busy = true;
    ++under_way_;
    staging_->start(job.copy, direction, rows_, job);
    rows_.clear();
  }
  // Returns |size| bytes of memory for this operation, or null if out of memory.
  std::byte* take_memory(uint64_t size) HETCOMM_UNDER_BATON {
    memory_ = staging_->stand_in(size, {});
    return memory_.get();
  }
  // Prepares for another operation. No copy may be in progress.
  void reset() HETCOMM_UNDER_BATON {
    memory_.reset();
    staging_ = nullptr;
    client_ = nullptr;
  }
  // Returns whether the copies of |chunk| have ended. No later chunk that uses the same job may
  // have begun.
  bool ended(StreamDirection direction, uint64_t chunk) HETCOMM_UNDER_BATON {
    return !job_of(direction, chunk).busy;
  }
  bool copying() const HETCOMM_UNDER_BATON { return under_way_ > 0; }

 private:
  class Job final : public CopyHandler {
   public:
    void on_copied(const Status& status) override HETCOMM_UNDER_BATON {
      busy = false;
      --owner->under_way_;
      owner->client_->on_slice(status);
    }
    std::string copy_purpose() const override HETCOMM_UNDER_BATON {
      return owner->client_->describe();
    }
    SlotCopies* owner = nullptr;
    CopyJob copy;
    bool busy = false;
  };

  Job& job_of(StreamDirection direction, uint64_t chunk) HETCOMM_UNDER_BATON {
    return jobs_[direction == StreamDirection::kToHost ? 0 : 1][chunk % kAtOnce];
  }

  Staging* staging_ = nullptr;
  SideCopiesClient* client_ = nullptr;
  std::array<std::array<Job, kAtOnce>, 2> jobs_;
  std::vector<StagedRows> rows_;
  StandIns::Memory memory_;
  size_t under_way_ = 0;
};

}  // namespace hetcomm::collectives
