// SideCopies copies one side of a collective operation between its devices and host memory, in
// slices, while the data is transferred. Data that has been copied to the host can be sent before
// the rest, and results can be copied to the devices as soon as they are final.
//
// A slice holds the same number of bytes of every block. Progress is an offset that is the same in
// all blocks. Callers hold the baton.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/collectives/side.h"
#include "src/core/memory/staging.h"

namespace hetcomm::collectives {

class SideCopiesClient {
 public:
  // Called when a slice was copied or its copy failed. After a failure no further slice starts, but
  // those in progress finish.
  virtual void on_slice(const Status& status) HETCOMM_UNDER_BATON = 0;
  // Returns a description for people of the operation that needs the copies.
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;

 protected:
  ~SideCopiesClient() = default;
};

class SideCopies {
 public:
  static constexpr uint64_t kAll = UINT64_MAX;

  SideCopies();
  SideCopies(const SideCopies&) = delete;
  SideCopies& operator=(const SideCopies&) = delete;

  // Begins to copy |side| up to offset |allowed| (see allow_to()). |side| must have its stand-in,
  // and must not change. If |cuts| is true, copies in several slices instead of one. May throw
  // std::bad_alloc. The other functions do not throw.
  void start(Side& side, Staging& staging, StreamDirection direction, bool cuts, uint64_t allowed,
             SideCopiesClient& client) HETCOMM_UNDER_BATON;
  // Allows copies of the bytes before |offset| of each block, or of all bytes if |offset| is kAll.
  void allow_to(uint64_t offset) HETCOMM_UNDER_BATON;
  // Returns the offset before which the bytes of each block have been copied. Returns kAll if all
  // bytes have been copied or nothing was started.
  uint64_t copied_to() const HETCOMM_UNDER_BATON { return copied_to_; }
  // Begins no more copies.
  void stop() HETCOMM_UNDER_BATON { stopped_ = true; }
  bool copying() const HETCOMM_UNDER_BATON { return under_way_ > 0; }
  // Prepares for another operation. No copy may be in progress.
  void reset() HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kAtOnce = 4;
  class Slice final : public CopyHandler {
   public:
    void on_copied(const Status& status) override HETCOMM_UNDER_BATON {
      owner->finish(*this, status);
    }
    std::string copy_purpose() const override HETCOMM_UNDER_BATON {
      return owner->client_->describe();
    }
    SideCopies* owner = nullptr;
    CopyJob job;
    uint64_t number = 0;
    bool busy = false;
    bool copied = false;
  };

  void start_slices() HETCOMM_UNDER_BATON;
  void start_slice(Slice& slice) HETCOMM_UNDER_BATON;
  void finish(Slice& slice, const Status& status) HETCOMM_UNDER_BATON;

  Side* side_ = nullptr;
  Staging* staging_ = nullptr;
  SideCopiesClient* client_ = nullptr;
  StreamDirection direction_ = StreamDirection::kToHost;
  uint64_t slice_bytes_ = 0;  // bytes of each block per slice
  uint64_t slices_ = 0;
  uint64_t started_ = 0;
  uint64_t ended_ = 0;  // all slices before this one have been copied
  uint64_t allowed_ = 0;
  uint64_t copied_to_ = kAll;
  size_t under_way_ = 0;
  bool stopped_ = false;
  std::array<Slice, kAtOnce> at_once_;
  std::vector<StagedRows> rows_;
};

}  // namespace hetcomm::collectives
