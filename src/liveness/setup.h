// The data from which a control plane is created: the rank and its job, and the objects of this
// process that the control plane uses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/bytes.h"
#include "src/liveness/address_book.h"
#include "src/net/address.h"
#include "src/net/credentials.h"

namespace hetcomm::liveness {

// A witness answers questions from other ranks immediately, regardless of what the threads of this
// rank do.
class Witness {
 public:
  virtual ~Witness() = default;
  // Returns the answer to |question| from rank |from|, in at most kMaxFrameText bytes. Called on
  // the control thread, which does not send an empty answer.
  virtual std::string testify(int from, ConstByteSpan question) = 0;
};

struct Setup {
  int rank = 0;
  int size = 0;
  uint64_t detection_ns = 0;
  Credentials credentials;                     // start() replaces these with the Membership's
  uint32_t incarnation = 0;                    // this rank's incarnation
  int doorbell = -1;                           // an eventfd that is signalled when mail arrives
  std::vector<InterfaceAddress> interfaces{};  // interfaces to listen on, best first
  std::shared_ptr<Witness> witness{};          // null: this rank answers no questions
};

// The facts about all ranks that a control plane needs when it starts.
struct Membership {
  Credentials credentials;  // of the job, with the incarnations of all ranks
  AddressBook addresses;
  std::vector<uint32_t> hosts;  // by rank: the number of its host
  // This rank's profile, for ranks that request it. It has at most kMaxProfileText bytes, and is
  // empty in a job in which all ranks know all profiles.
  std::string profile;
};

}  // namespace hetcomm::liveness
