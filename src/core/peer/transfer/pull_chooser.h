// PullChooser and PullRule decide which eager messages a rank pulls. To pull a message means to
// read it from the sender's memory while handling it. Otherwise, the sender copies the message into
// the connection, and the receiver copies it out.
//
// The receiver decides, for each size class. It measures the cost of copying a message out and the
// cost of reading one, and learns from the sender the cost of copying one in. Periodically it tries
// the alternative that is not in use (two_ways.h). The sender follows the receiver's latest
// decision.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/peer/transfer/two_ways.h"

namespace hetcomm {

// Size classes of eager messages that can be pulled.
struct PullClass {
  static constexpr uint64_t kMinBytes = 16 << 10;  // smaller messages are not pulled
  // Larger messages are not pulled, since a read cannot be interrupted.
  static constexpr uint64_t kMaxBytes = 512 << 10;
  static constexpr size_t kCount = 4;  // up to 32 KiB, 64 KiB, 128 KiB, more
  static size_t of(uint64_t bytes) {
    size_t c = 0;
    for (uint64_t limit = 32 << 10; c + 1 < kCount && bytes > limit; limit *= 2) ++c;
    return c;
  }
};

// The two extreme values of a size class's pause, in ns per KiB of a message. A message is pulled
// if it begins more than this pause after the previous one. With values in between, only isolated
// messages are pulled. In a stream of messages, both sides copy at the same time. For an isolated
// message, the receiver's copy has to wait for the sender's, which makes pulling faster in more
// cases.
inline constexpr uint64_t kPullAll = 0;
inline constexpr uint64_t kPullNone = UINT64_MAX;

// PullChooser is the receiver's half, which makes the decisions.
class PullChooser {
 public:
  // Returns whether the next message to be copied out should be measured. Only a few are, since
  // reading clocks costs time.
  bool samples_next(uint64_t bytes) HETCOMM_UNDER_BATON;
  // Records that a sampled message of |bytes| was copied out in |elapsed_ns|. The connection
  // carried it in |pieces| messages. took(), pulled(), failed() and insist() return true if the new
  // pause_of() of the class must be sent to the sender.
  bool took(uint64_t bytes, uint64_t elapsed_ns, uint64_t pieces) HETCOMM_UNDER_BATON;
  // Records that a message was read in |elapsed_ns|. |sender_ns_per_mib| is the cost of the
  // sender's copy, or 0 if it is unknown.
  bool pulled(uint64_t bytes, uint64_t elapsed_ns, uint64_t sender_ns_per_mib) HETCOMM_UNDER_BATON;
  // Records that a read failed. Messages of the size class are no longer pulled.
  bool failed(uint64_t bytes) HETCOMM_UNDER_BATON;
  // Switches the size class to pulling without trials, as the user requested. Has no effect if a
  // read has failed.
  bool insist(uint64_t bytes) HETCOMM_UNDER_BATON;

  uint64_t pause_of(size_t pull_class) const HETCOMM_UNDER_BATON {
    return classes_[pull_class].told;
  }

 private:
  static constexpr uint32_t kSampled = 16;  // one message in this many is measured
  // A trial of pulling ends once this many messages have been copied during it. In this case the
  // sender has not switched to pulling.
  static constexpr uint32_t kLongestTrial = 256;
  // After a trial, at most this many messages that still use the slower way count as its cost.
  static constexpr uint32_t kMaxAstray = 16;
  // The cost of the two additional short messages that pulling needs.
  static constexpr double kExtraNs = 300;

  struct Class {
    TwoWays ways;
    uint64_t told = kPullNone;
    uint64_t resolved = kPullNone;  // result of the last trial
    double sender_ns_per_byte = 0;
    double pieces = 1;
    uint32_t taken = 0;         // messages copied out so far; each kSampled-th is measured
    uint32_t beside_trial = 0;  // messages copied since a trial of pulling began
    uint32_t astray = 0;        // messages that used the wrong way since the last trial
    bool insisted = false;

    bool only_alone() const { return resolved != kPullAll && resolved != kPullNone; }
    Way in_use() const { return resolved == kPullAll ? Way::kPull : Way::kPush; }
    bool tell(uint64_t pause);
    bool begin_trial(Way way, bool hasty) HETCOMM_UNDER_BATON;
    bool end_trial() HETCOMM_UNDER_BATON;
    bool give_up_trial() HETCOMM_UNDER_BATON;
    uint64_t best_pause() const HETCOMM_UNDER_BATON;
    bool measured(Way way, double sample, double elapsed_ns, uint64_t bytes,
                  uint32_t count) HETCOMM_UNDER_BATON;
    // Return the cost of copying, in ns per byte, for a message in a stream and for an isolated
    // one.
    double in_stream() const HETCOMM_UNDER_BATON {
      return std::max(ways.cost(Way::kPush), sender_ns_per_byte);
    }
    double alone() const HETCOMM_UNDER_BATON;
    // Returns the additional cost of a message of |bytes| on the way other than |way|.
    double extra_ns(Way way, uint64_t bytes) const HETCOMM_UNDER_BATON;
  };

  std::array<Class, PullClass::kCount> classes_;
};

// PullRule is the sender's half, which follows the receiver's decisions.
class PullRule {
 public:
  void told(size_t pull_class, uint64_t pause) HETCOMM_UNDER_BATON;
  // Returns whether a message of |bytes| that begins now is pulled. |now| is called only if the
  // time matters.
  template <typename Now>
  bool pulls(uint64_t bytes, Now&& now) HETCOMM_UNDER_BATON {
    Class& c = classes_[PullClass::of(bytes)];
    if (c.pause == kPullNone) return false;
    if (c.pause != kPullAll) {
      const uint64_t at = now();
      const uint64_t since = at - std::exchange(last_ns_, at);
      if (static_cast<double>(since) * 1024 <=
          static_cast<double>(c.pause) * static_cast<double>(bytes)) {
        return false;
      }
    }
    if (c.to_copy == 0) return true;
    --c.to_copy;
    return false;
  }
  // Records that the receiver has read a message of |bytes|.
  void answered(uint64_t bytes) HETCOMM_UNDER_BATON {
    classes_[PullClass::of(bytes)].copied_next = kMinCopied;
  }
  // Records that the receiver has not read a message for a long time. The next messages are copied,
  // since the receiver seems to call the library rarely.
  void late(uint64_t bytes) HETCOMM_UNDER_BATON;

  // Returns whether the next message to be copied should be measured.
  bool samples_next(uint64_t bytes) HETCOMM_UNDER_BATON;
  void copied(uint64_t bytes, uint64_t elapsed_ns) HETCOMM_UNDER_BATON;
  // Returns the median cost of the last samples, in ns per MiB, or 0 if there are too few samples.
  uint64_t copy_ns_per_mib(uint64_t bytes) const HETCOMM_UNDER_BATON;

 private:
  static constexpr uint32_t kSampled = 16;  // one message in this many is measured
  static constexpr size_t kSamples = 3;
  static constexpr uint32_t kMinCopied = 16;  // minimum number of messages copied after a late one
  static constexpr uint32_t kMaxCopied = 1 << 16;

  struct Class {
    uint64_t pause = kPullNone;
    uint32_t to_copy = 0;
    uint32_t copied_next = kMinCopied;  // messages to copy after the next late one
    uint32_t to_sample = 0;             // messages until the next measured one
    uint32_t sampled = 0;
    std::array<uint64_t, kSamples> ns_per_mib{};
  };

  std::array<Class, PullClass::kCount> classes_;
  uint64_t last_ns_ = 0;
};

}  // namespace hetcomm
