// ControlPlane is the job's interface to its control plane. It reports which ranks are alive, which
// have left and what was aborted, and delivers letters between ranks. It carries no user data. The
// context's control thread does the work and puts the results into the mailbox.
//
// Every call returns immediately, unless its comment says otherwise. Any thread may call a
// ControlPlane, but only one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/bytes.h"
#include "src/liveness/control_thread.h"
#include "src/liveness/mailbox.h"
#include "src/liveness/profile_book.h"
#include "src/liveness/ring.h"
#include "src/liveness/setup.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm::liveness {

class Judge;
class Plane;

class ControlPlane {
 public:
  // Creates a listening control plane. Waits for the control thread. Fails if this rank cannot
  // listen.
  static Result<std::unique_ptr<ControlPlane>> create(ControlThread& thread, Log& log,
                                                      const Config& config, Setup setup);
  // Starts the goodbye, which the control thread completes in the background.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // The mailbox in which results and letters arrive.
  Mailbox& mailbox() { return *mailbox_; }

  // The profiles that this rank has received from other ranks.
  ProfileBook& profiles() { return *profiles_; }

  // The addresses at which peers find this rank.
  const std::vector<Address>& addresses() const { return addresses_; }
  // Accepts connections from ranks that match the credentials, and connects to the neighbours.
  // Waits for the control thread.
  Status start(Membership membership);
  // The neighbours that are not connected, and the reasons.
  struct Missing {
    std::vector<int> ranks;
    std::string failure;  // why the last connection with ranks[0] ended or failed; or empty
    Status
        last_rejection;  // why this rank last dropped an incoming connection; ok: it dropped none
  };
  // Returns the neighbours that are not connected. Waits for the control thread.
  Missing missing_neighbours();

  // Asks the lower rank |rank| to connect, because this rank has lost all its connections with
  // |rank|. |lost| is the number of the last of these connections.
  void knock(int rank, uint64_t lost);
  // Withdraws the request of knock(), since |rank| has connected.
  void forget_knock(int rank);
  // If |rank| is higher, notifies it that this rank cannot connect to it. If |rank| is lower,
  // notifies it that its connections are dropped until it has sent its profile again.
  void refuse(int rank, std::string_view why);
  // Tells |rank| that this rank will exchange no more messages with it, with the code and text of
  // |why|.
  void give_up(int rank, const Status& why);
  // Tells |rank| that this rank has called a collective operation of |communicator|. |note| is sent
  // with it.
  void tell_call(int rank, uint32_t communicator, ConstByteSpan note);
  // Sends |question| to the Witness of |rank|. The control thread of |rank| answers, and the answer
  // arrives as kAnswer mail with |value|. A question replaces an equal one that is still queued.
  void ask(int rank, ConstByteSpan question, uint64_t value);
  // Sends this rank's profile to |rank|, which answers with its own. The answer arrives as
  // kProfile. If it does not arrive, call this again.
  void ask_profile(int rank);
  // Records that |rank| listens at |addresses|, according to its profile.
  void learn_addresses(int rank, std::vector<Address> addresses);
  // These notify all ranks of an abort, or of failed collective operations.
  void publish_abort(uint32_t communicator, std::string_view reason);
  void publish_collectives_failed(uint32_t communicator, const Status& why);
  // Records that data from |rank| has arrived, which is a sign of life.
  void note_data(int rank);
  // Asks the other ranks whether they have heard from |rank|, to which this rank cannot connect.
  void inquire(int rank);

 private:
  ControlPlane(ControlThread& thread, std::shared_ptr<Mailbox> mailbox)
      : thread_(thread), mailbox_(std::move(mailbox)), profiles_(std::make_shared<ProfileBook>()) {}
  template <typename Use>
  void with_judge(Use&& use);

  ControlThread& thread_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<ProfileBook> profiles_;
  Plane* plane_ = nullptr;  // owned by the control thread
  std::vector<Address> addresses_;
};

}  // namespace hetcomm::liveness
