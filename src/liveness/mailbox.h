// Mail from the control thread to the thread that works on a job: a list that one side pushes to
// and the other empties, without a lock. Looking whether something waits is a relaxed load; a
// sleeper is woken by a descriptor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "src/base/status.h"

namespace hetcomm::liveness {

struct Mail {
  enum class Type : uint8_t {
    kReady,         // all neighbours are connected
    kDead,          // |rank|, |text|
    kLeft,          // |rank|
    kDeclaredDead,  // this rank, by the others; |text|
    kAborted,       // |rank| has aborted |communicator|; |text|
    kFailed,        // the collective operations of |communicator| on |rank|; |code|, |text|
    kKnock,         // from |rank|: |value|
    kRefused,       // from |rank|; |text|
    kGivenUp,       // from |rank|; |text|
    kCall,          // from |rank|, on |communicator|; |text| holds the note
    kAnswer,        // from |rank|, to the question of |value|; |text|
    kVouched,       // others have heard of |rank|, about which was asked
    kSuspected,     // nothing was heard of |rank|: has data come from it?
  };
  Type type = Type::kReady;
  int rank = 0;
  uint32_t communicator = 0;
  uint64_t value = 0;
  Code code = Code::kOk;
  std::string text{};
  std::unique_ptr<Mail> next{};
};

class Mailbox {
 public:
  // |doorbell|: an eventfd that wakes who shall look; it outlives the mailbox.
  explicit Mailbox(int doorbell) : doorbell_(doorbell) {}
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  bool waiting() const { return newest_.load(std::memory_order_relaxed) != nullptr; }
  // [control thread]
  void push(std::unique_ptr<Mail> mail);
  // Everything that waits, the oldest first. [the job's thread]
  std::unique_ptr<Mail> take();

 private:
  std::atomic<Mail*> newest_{nullptr};
  const int doorbell_;
};

}  // namespace hetcomm::liveness
