// ChannelTable holds the channels of one rank. The header of each message contains a channel
// number, by which the table finds the message's channel.
//
// Every rank numbers its own channels, and sends the number of a communicator's channel to the
// other members. It opens the channel first, so a message with an unknown number can only be for a
// communicator that this rank has destroyed. Numbers are assigned in increasing order, modulo 2^32.
// A late message with an old number therefore finds no channel, and the numbers are not exhausted
// when communicators are created and destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/peer/matching/match.h"
#include "src/core/peer/matching/reshard_board.h"

namespace hetcomm {

// A Channel holds the match tables and the reshard plans of one communicator.
struct Channel {
  explicit Channel(uint32_t own_id) : id(own_id) {}
  const uint32_t id;
  bool closed HETCOMM_GUARDED_BY_BATON = false;  // aborted: messages are dropped
  MatchTable point_to_point HETCOMM_GUARDED_BY_BATON;
  MatchTable collective HETCOMM_GUARDED_BY_BATON;
  ReshardBoard plans HETCOMM_GUARDED_BY_BATON;
  Status aborted HETCOMM_GUARDED_BY_BATON;  // why the communicator was aborted; kOk if it was not
  std::atomic<bool> was_aborted{false};     // [any-thread]
  // The reason why collective operations have failed; kOk if they have not. Other operations
  // continue.
  Status collectives_failed HETCOMM_GUARDED_BY_BATON;
};

class ChannelTable {
 public:
  // Assigns numbers starting at |first|.
  explicit ChannelTable(uint32_t first = 0) : next_(first) {}

  // Returns the channel with number |id|, or null if it does not exist.
  Channel* find(uint32_t id) const HETCOMM_UNDER_BATON {
    Channel* found = slots_[id & mask()].get();
    return found != nullptr && found->id == id ? found : nullptr;
  }
  // Returns the table in which a message is matched. Returns null if the message will never be
  // received because its channel is closed or gone, or because the collective operations of the
  // channel have failed.
  MatchTable* match_table(uint32_t id, bool collective) const HETCOMM_UNDER_BATON {
    Channel* found = find(id);
    if (found == nullptr || found->closed) return nullptr;
    if (collective && !found->collectives_failed.ok()) return nullptr;
    return collective ? &found->collective : &found->point_to_point;
  }
  bool is_aborted(uint32_t id) const HETCOMM_UNDER_BATON {
    const Channel* found = find(id);
    return found != nullptr && !found->aborted.ok();
  }
  // Opens a channel with the next number whose slot is free. The first channel gets the
  // constructor's |first|.
  Channel& open() HETCOMM_UNDER_BATON {
    if (2 * (count_ + 1) > slots_.size()) grow();
    while (slots_[next_ & mask()] != nullptr) ++next_;
    auto& slot = slots_[next_ & mask()];
    slot = std::make_unique<Channel>(next_);
    ++next_;
    ++count_;
    return *slot;
  }
  // Removes channel |id|, if it exists. Its tables must be empty.
  void close(uint32_t id) HETCOMM_UNDER_BATON {
    if (find(id) == nullptr) return;
    slots_[id & mask()].reset();
    --count_;
  }
  bool empty() const HETCOMM_UNDER_BATON { return count_ == 0; }

  template <typename Use>
  void for_each(Use&& use) const HETCOMM_UNDER_BATON {
    for (const auto& channel : slots_) {
      if (channel != nullptr) use(*channel);
    }
  }
  // Calls use(MatchTable&) for every table.
  template <typename Use>
  void for_each_table(Use&& use) const HETCOMM_UNDER_BATON {
    for_each([&](Channel& channel) HETCOMM_UNDER_BATON {
      use(channel.point_to_point);
      use(channel.collective);
    });
  }

 private:
  size_t mask() const HETCOMM_UNDER_BATON { return slots_.size() - 1; }
  // Doubles the table. Each channel still gets a slot of its own, since the numbers already differ
  // in the low bits that the smaller table used.
  void grow() HETCOMM_UNDER_BATON {
    std::vector<std::unique_ptr<Channel>> bigger(2 * slots_.size());
    for (auto& channel : slots_) {
      if (channel != nullptr) bigger[channel->id & (bigger.size() - 1)] = std::move(channel);
    }
    slots_.swap(bigger);
  }

  // The index of a channel is its number modulo the size, which is a power of two and at least
  // twice |count_|.
  std::vector<std::unique_ptr<Channel>> slots_ = std::vector<std::unique_ptr<Channel>>(8);
  size_t count_ = 0;
  uint32_t next_;
};

}  // namespace hetcomm
