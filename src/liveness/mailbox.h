// What the control thread tells the thread that works on a mesh: a list that one side pushes to and
// the other empties, without a lock. Looking whether something waits is a relaxed load; a sleeper
// is woken by a descriptor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "src/base/status.h"
#include "src/base/unique_fd.h"

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
  static Result<std::shared_ptr<Mailbox>> create();
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Readable while something waits.
  int fd() const { return wake_.get(); }
  bool waiting() const { return newest_.load(std::memory_order_relaxed) != nullptr; }
  // [control thread]
  void push(std::unique_ptr<Mail> mail);
  // Everything that waits, the oldest first. [the mesh's thread]
  std::unique_ptr<Mail> take();

 private:
  explicit Mailbox(UniqueFd wake) : wake_(std::move(wake)) {}
  std::atomic<Mail*> newest_{nullptr};
  UniqueFd wake_;
};

}  // namespace hetcomm::liveness
