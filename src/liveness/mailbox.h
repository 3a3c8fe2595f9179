// The mailbox carries mail from the control thread to the thread that works on a job. One side
// pushes to a list and the other empties it, without a lock. Checking for mail is a relaxed load. A
// descriptor wakes a sleeping reader.
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
    kDead,          // |rank| is dead; |text| says why
    kLeft,          // |rank| has left
    kDeclaredDead,  // the others consider this rank dead; |text| says why
    kAborted,       // |rank| has aborted |communicator|; |text| says why
    kFailed,        // collective operations of |communicator| failed on |rank|: |code|, |text|
    kKnock,         // |rank| asks this one to connect; it has lost connections up to |value|
    kRefused,       // |rank| cannot connect to this one, or drops its connections; |text| says why
    kGivenUp,       // |rank| exchanges no more messages with this one; |text| says why, and
                    // |value| is the status, negated
    kCall,          // |rank| called a collective operation on |communicator|; |text|: the note
    kAnswer,        // |rank| answers the question with number |value|; |text|: the answer
    kVouched,       // others have heard from |rank|, about which this rank asked
    kProfile,       // |rank| has sent its profile, which is in the ProfileBook
    kSuspected,     // |rank| is silent; the job reports whether data has arrived from it
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
  // Creates a mailbox. |doorbell| is an eventfd that wakes the reader. It must outlive the mailbox.
  explicit Mailbox(int doorbell) : doorbell_(doorbell) {}
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  bool waiting() const { return newest_.load(std::memory_order_relaxed) != nullptr; }
  // Adds |mail|. [control thread]
  void push(std::unique_ptr<Mail> mail);
  // Removes all waiting mail and returns it, oldest first. [the job's thread]
  std::unique_ptr<Mail> take();

 private:
  std::atomic<Mail*> newest_{nullptr};
  const int doorbell_;
};

}  // namespace hetcomm::liveness
