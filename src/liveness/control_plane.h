// The control plane of a job, as the job sees it: who is alive, who left, what was aborted, and
// letters between ranks. It carries no user data. The work is done on the context's control thread;
// what comes of it waits in the mailbox.
//
// Every call returns at once, unless it says otherwise, and may be made by any thread, but by one
// at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/config.h"
#include "src/base/log.h"
#include "src/liveness/control_thread.h"
#include "src/liveness/mailbox.h"
#include "src/liveness/ring.h"
#include "src/liveness/setup.h"

namespace hetcomm::liveness {

class Judge;
class Plane;

class ControlPlane {
 public:
  // Listens. Waits for the control thread.
  static Result<std::unique_ptr<ControlPlane>> create(ControlThread& thread, Log& log,
                                                      const Config& config, Setup setup);
  // Says goodbye, which goes on in the background.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // Where the outcome of all this is put.
  Mailbox& mailbox() { return *mailbox_; }

  // Where peers find this rank.
  void encode_addresses(ByteWriter& writer) const;
  static Result<std::vector<Address>> decode_addresses(ByteReader& reader);
  // Takes connections of ranks that fit |credentials|, and connects to the neighbours. |addresses|
  // and |hosts| by rank. Waits for the control thread.
  Status start(Credentials credentials, std::vector<std::vector<Address>> addresses,
               std::vector<HostId> hosts);
  // Neighbours that are not connected, and why a connection to this rank was dropped last. Waits
  // for the control thread.
  std::vector<int> missing_neighbours(Status* last_rejection);

  // |rank|, the lower one, shall connect: it has no connection left, having lost those up to
  // |lost|.
  void knock(int rank, uint64_t lost);
  // It has connected.
  void forget_knock(int rank);
  void refuse(int rank, std::string_view why);
  void give_up(int rank, std::string_view why);
  void tell_call(int rank, uint32_t communicator, ConstByteSpan note);
  // The peer's control thread answers with what its witness says, as kAnswer with |value|. Asking
  // the same again replaces what has not left.
  void ask(int rank, ConstByteSpan question, uint64_t value);
  // Told to all ranks.
  void publish_abort(uint32_t communicator, std::string_view reason);
  void publish_collectives_failed(uint32_t communicator, const Status& why);
  // Data of |rank| has come.
  void note_data(int rank);
  // Asks the others about |rank|, to which this one cannot connect.
  void inquire(int rank);

 private:
  ControlPlane(ControlThread& thread, std::shared_ptr<Mailbox> mailbox)
      : thread_(thread), mailbox_(std::move(mailbox)) {}
  template <typename Use>
  void with_judge(Use&& use);

  ControlThread& thread_;
  std::shared_ptr<Mailbox> mailbox_;
  Plane* plane_ = nullptr;  // the thread's
  std::vector<Address> addresses_;
};

}  // namespace hetcomm::liveness
