// Task holds the checked arguments and the memory of one collective operation on this rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/collective.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/collectives/call.h"
#include "src/core/collectives/problem.h"
#include "src/core/collectives/side.h"
#include "src/reduce/reduce.h"

namespace hetcomm::collectives {

// The arguments of a C ABI call. All handles must be valid.
struct Arguments {
  Kind kind = Kind::kBarrier;
  int32_t root = 0;
  int32_t datatype = HETCOMM_UINT8;
  int32_t reduction = -1;
  const hetcomm_buffer_t* sends = nullptr;
  size_t send_count = 0;
  const hetcomm_buffer_t* receives = nullptr;
  size_t receive_count = 0;
  const hetcomm_collective_options_t* options = nullptr;  // null: defaults
  bool splits = false;  // the call is a split, which is implemented by an allgather
};

// Any thread can call set_up(), which fills the task once. All other use is under the baton.
class Task {
 public:
  // Fills a fresh task of rank |rank| in a communicator of |size| ranks. Checks everything that
  // this rank can check alone. On failure, |*text| describes the problem, and the task must be
  // reset.
  Code set_up(int32_t rank, int32_t size, const Arguments& arguments, std::string* text);
  void reset() HETCOMM_UNDER_BATON;

  // Returns the ranks of the communicator that take part. An empty list means all ranks.
  const std::vector<int32_t>& list() const { return list_; }
  const Problem& problem() const { return problem_; }
  const Call& call() const { return call_; }
  // Returns whether a monitored barrier reports all missing ranks.
  bool waits_for_all() const { return wait_all_; }
  reduce::Type type() const { return static_cast<reduce::Type>(call_.datatype); }
  // Returns the description of how the inputs of all ranks are combined into the result.
  reduce::Reduction reduction() const;
  uint64_t sequence() const { return sequence_; }
  // Sets the operation's number within its team, which is the same on all ranks.
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }
  // Returns a hash of this call, all earlier calls of its team, and the refusals between them.
  // Returns 0 if calls are not compared.
  uint64_t history() const { return history_; }
  void set_history(uint64_t history) { history_ = history; }
  // Sets the hash of the link model used to choose algorithms.
  void set_links(uint64_t hash) { call_.links = hash; }
  // Chooses the algorithm unless the caller requested one.
  void choose_algorithm(const RankPlacement& placement);

  Side& send() { return send_; }
  Side& receive() { return receive_; }
  const Side& send() const { return send_; }
  const Side& receive() const { return receive_; }
  // Returns whether devices copy directly from or to a side.
  bool is_direct() const { return send_.is_direct() || receive_.is_direct(); }
  std::byte* send_address(uint32_t block) const { return send_.address(block); }
  // Returns the location on a device of a block to send. The memory is null if the block is not on
  // a device.
  BufferPiece send_piece(uint32_t block) const { return send_.device_piece(block); }
  std::byte* receive_address(uint32_t block) const { return receive_.address(block); }
  // Returns the address within the stand-in for the result at which the data to send can be placed,
  // as in an in-place operation. Returns null if there is none. Call this only if both sides are
  // staged.
  std::byte* room_in_result() const;

 private:
  Code set_up_list(int32_t rank, int32_t size, const Arguments& arguments, std::string* text);
  Code set_up_options(const Arguments& arguments, std::string* text);
  Code set_up_buffers(const Arguments& arguments, std::string* text);
  Code check_sizes(std::string* text);

  Problem problem_;
  Call call_;
  std::vector<int32_t> list_;
  bool wait_all_ = false;
  uint64_t sequence_ = 0;
  uint64_t history_ = 0;
  Side send_;
  Side receive_;
};

}  // namespace hetcomm::collectives
