// TaskCopies makes the copies that a collective operation needs in addition to its transfers if its
// buffers are on devices. Inputs are copied to the host and results to the devices, both while
// other parts of the data are transferred. Callers hold the baton.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/collectives/side_copies.h"
#include "src/core/collectives/slot_copies.h"
#include "src/core/collectives/task.h"
#include "src/core/memory/staging.h"

namespace hetcomm::collectives {

class TaskCopies {
 public:
  static constexpr uint64_t kAll = SideCopies::kAll;

  // Starts to load the data that |task| sends, which means to copy it to the host, and prepares to
  // store results on the devices. The sides of |task| must have stand-ins or be direct. If |cuts|
  // is true, the data is transferred part by part, so it is copied in slices. May throw
  // std::bad_alloc.
  void start(Task& task, Staging& staging, bool cuts,
             SideCopiesClient& client) HETCOMM_UNDER_BATON {
    slots_.start(staging, client, task.problem().ranks);
    stores_ = has_results(task);
    if (stores_) {
      store_.start(task.receive(), staging, StreamDirection::kFromHost, cuts, 0, client);
    }
    if (Side* const side = loaded_side(task)) {
      load_.start(*side, staging, StreamDirection::kToHost, cuts, kAll, client);
    }
  }
  // Returns the offset before which this rank's data of each block has been loaded.
  uint64_t loaded_to() const HETCOMM_UNDER_BATON { return load_.copied_to(); }
  // Records that the results before |offset| of each block are final.
  void final_to(uint64_t offset) HETCOMM_UNDER_BATON {
    if (stores_) store_.allow_to(offset);
  }
  bool stores() const HETCOMM_UNDER_BATON { return stores_; }
  // Returns whether all results have been stored.
  bool stored() const HETCOMM_UNDER_BATON { return !stores_ || store_.copied_to() == kAll; }
  // Returns the copies between direct sides and the slots of an arena. Call this only after
  // start().
  SlotCopies& slots() HETCOMM_UNDER_BATON { return slots_; }
  // Begins no more copies. Those in progress finish.
  void stop() HETCOMM_UNDER_BATON {
    load_.stop();
    store_.stop();
  }
  bool copying() const HETCOMM_UNDER_BATON {
    return load_.copying() || store_.copying() || slots_.copying();
  }
  void reset() HETCOMM_UNDER_BATON {
    load_.reset();
    store_.reset();
    slots_.reset();
    stores_ = false;
  }

 private:
  // Returns the side to load from a device, or null if no staged memory is sent.
  static Side* loaded_side(Task& task) HETCOMM_UNDER_BATON {
    const Problem& problem = task.problem();
    if (task.send().is_staged()) return &task.send();
    const bool sends_received = problem.kind == Kind::kBroadcast && problem.rank == problem.root;
    return sends_received && task.receive().is_staged() ? &task.receive() : nullptr;
  }
  static bool has_results(Task& task) HETCOMM_UNDER_BATON {
    const Problem& problem = task.problem();
    if (!task.receive().is_staged()) return false;
    if (problem.kind == Kind::kBroadcast) return problem.rank != problem.root;
    return problem.kind != Kind::kScan || !problem.exclusive || problem.rank != 0;
  }

  SideCopies load_;
  SideCopies store_;
  SlotCopies slots_;
  bool stores_ = false;
};

}  // namespace hetcomm::collectives
