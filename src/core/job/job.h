// A Job holds the state that its communicators share: the ranks of one job and epoch, this rank's
// transports, a pair for each peer that it has communicated with, the control plane, and the match
// tables of all communicators.
//
// A Job creates the following parts, drives them, and destroys them in the right order:
//
//   PeerDirectory   what each rank has reported about itself
//   JobTransports   this rank's transports
//   PairTable       the pairs, and which peers are lost
//   PairPaths       choice of transports, connections
//   IdleConnections connections to close when descriptors run short
//   JobMembers      the communicators, and how failures reach them
//   PeerEvents      messages of the control plane, lost peers
//   MemoryExports   registered memories, for transports and other ranks
//   OperationEnder  ends operations early
//   StreamWaits     ends operations that wait for users' streams and can no longer succeed
//   TaskList        collective operations in progress
//
// create() and offer() take the baton of the context's engine themselves; create() blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "src/base/baton_role.h"
#include "src/bootstrap/bootstrap.h"
#include "src/core/job/departures.h"
#include "src/core/job/job_members.h"
#include "src/core/job/job_services.h"
#include "src/core/job/membership/job_offer.h"
#include "src/core/job/membership/peer_directory.h"
#include "src/core/job/membership/rank_profile.h"
#include "src/core/job/membership/transport_costs.h"
#include "src/core/job/operation_ender.h"
#include "src/core/job/paths/idle_connections.h"
#include "src/core/job/paths/job_environment.h"
#include "src/core/job/paths/job_transports.h"
#include "src/core/job/paths/memory_exports.h"
#include "src/core/job/paths/pair_paths.h"
#include "src/core/job/paths/pair_table.h"
#include "src/core/job/paths/path_inquiry.h"
#include "src/core/job/peer_events.h"
#include "src/core/job/stream_gate.h"
#include "src/core/job/stream_waits.h"
#include "src/core/job/task_list.h"
#include "src/core/progress/driven.h"
#include "src/liveness/control_plane.h"

namespace hetcomm {

struct JobOptions {
  std::string name;
  uint32_t epoch = 0;
  std::string transports;  // empty: HETCOMM_TRANSPORTS
  bool share = false;      // use a job that all ranks already share, if there is one
  uint64_t deadline_ns = 0;
  // The sequence number that precedes that of the first message of every pair. The credit counters
  // start at this value too. Only tests set it, to the same value on all ranks.
  uint32_t first_sequence = 0;
};

class Job final : public EngineDriven, private DeviceUser {
 public:
  // Exchanges profiles and makes the control plane. Collective; blocks until |options.deadline_ns|
  // at the latest. If ranks of one host see different devices of it, no rank makes a job: the
  // result is null, and |*learned| holds the devices of this host. All ranks then call create()
  // again, with |learned| null.
  static Result<std::unique_ptr<Job>> create(
      const JobEnvironment& environment, Bootstrap& bootstrap, const JobOptions& options,
      std::optional<std::vector<topology::PciAddress>>* learned);
  // Sends goodbyes and closes everything. No operation may be pending.
  ~Job();

  int rank() const { return services_.terms.rank; }
  int size() const { return peers_.size(); }
  const Secret& secret() const { return credentials_.secret; }
  // Returns whether a communicator that requests |transports| may be made over this job.
  // |configured_key| is the key that the caller has configured, if any.
  bool may_be_shared(const std::string& transports,
                     const std::optional<Secret>& configured_key) const;
  // Returns this rank's offer of the job to other ranks, which address this rank by |channel|.
  // Returns nothing if too many ranks are lost.
  std::optional<JobOffer> offer(const Channel& channel);

  Engine& engine() { return environment_.engine; }
  Log& log() { return environment_.log; }
  const PairTerms& terms() const { return services_.terms; }
  DataServices& data() HETCOMM_UNDER_BATON { return services_.data; }
  PairTurns& turns() HETCOMM_UNDER_BATON { return services_.turns; }
  HostBlocks& host_blocks() HETCOMM_UNDER_BATON { return services_.host_blocks; }
  DeviceSums& sums() HETCOMM_UNDER_BATON { return services_.sums; }
  SlotTable<Registration>& registrations() HETCOMM_UNDER_BATON { return services_.registrations; }
  const PeerDirectory& peers() const HETCOMM_UNDER_BATON { return peers_; }
  const JobTransports& transports() const HETCOMM_UNDER_BATON { return transports_; }
  PairTable& pairs() HETCOMM_UNDER_BATON { return pairs_; }
  PairPaths& paths() HETCOMM_UNDER_BATON { return paths_; }
  JobMembers& members() HETCOMM_UNDER_BATON { return members_; }
  PeerEvents& events() HETCOMM_UNDER_BATON { return events_; }
  // Returns whether messages from the control thread are waiting to be read. [any-thread]
  bool mail_waits() const { return events_.mail_waits(); }
  MemoryExports& memories() HETCOMM_UNDER_BATON { return memories_; }
  OperationEnder& ender() HETCOMM_UNDER_BATON { return ender_; }
  TaskList& tasks() HETCOMM_UNDER_BATON { return tasks_; }
  Departures& departures() HETCOMM_UNDER_BATON { return departures_; }
  StreamWaits& stream_waits() HETCOMM_UNDER_BATON { return stream_waits_; }
  StreamGate& gate() { return gate_; }
  // Returns the control plane. A job of one rank has none, so this must not be called there.
  liveness::ControlPlane& control() HETCOMM_UNDER_BATON { return *control_; }

  Pair& pair(int rank) HETCOMM_UNDER_BATON { return pairs_.at(rank); }
  // Returns the pair with |rank|; null if it was never used.
  Pair* find_pair(int rank) HETCOMM_UNDER_BATON { return pairs_.find(rank); }
  const Status& peer_status(int rank) const HETCOMM_UNDER_BATON { return pairs_.status(rank); }

  // Returns the channel of the communicator of all ranks, which has the same number on every rank.
  Channel& first_channel() HETCOMM_UNDER_BATON { return *services_.data.channels.find(0); }
  // Opens a channel for a communicator that this rank is about to make.
  Channel& open_channel() HETCOMM_UNDER_BATON { return services_.data.channels.open(); }
  // Posts |receive|, or matches it with a message that has already arrived.
  void start_receive(Channel& own, Operation& receive) HETCOMM_UNDER_BATON;
  // Prepares the devices on which users' streams may be held back.
  void prepare_for_holds() HETCOMM_UNDER_BATON;
  // Applies |resources| to device |index|, which was added after the job was made. May throw
  // std::bad_alloc.
  void meet_device(size_t index, const HostResources& resources) HETCOMM_UNDER_BATON;
  // Returns whether |device| leaves the NIC of |transport| to devices of the job's ranks on this
  // host that use the NIC first.
  bool leaves_to_others(size_t device, const JobTransport& transport) const HETCOMM_UNDER_BATON {
    return leaves_to_others(environment_.host_links, device, transport);
  }
  // Sends |rank| a message that wakes it and makes it check everything that it waits for.
  void wake(int rank) HETCOMM_UNDER_BATON;

  // EngineDriven
  int progress() override HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) override HETCOMM_UNDER_BATON;
  void out_of_memory() override HETCOMM_UNDER_BATON { pairs_.out_of_memory(); }
  uint64_t next_timer_ns() const override HETCOMM_UNDER_BATON;
  bool prepare_sleep(Sleep sleep) override HETCOMM_UNDER_BATON;
  bool may_sleep_on() const override HETCOMM_UNDER_BATON;
  void finish_sleep() override HETCOMM_UNDER_BATON;

 private:
  // This rank's data about the other ranks once all have introduced themselves.
  struct Meeting {
    JobDigest digest;
    liveness::AddressBook addresses;  // addresses of the control planes
    // The ranks that have sent offers, each with its offers.
    std::vector<std::pair<int, std::vector<PeerInfo::Offer>>> offers;
    std::vector<std::byte> profile;  // this rank's profile, for ranks that request it
  };

  Job(const JobEnvironment& environment, int rank, int size);
  Status set_up(Bootstrap& bootstrap, const JobOptions& options,
                std::optional<std::vector<topology::PciAddress>>* learned);
  // Makes the parts that must exist before this rank contacts others, and fills in this rank's
  // profile.
  Status prepare(const JobOptions& options, RankProfile* own);
  Status make_control(uint32_t incarnation) HETCOMM_UNDER_BATON;
  Status describe_self(RankProfile* own) HETCOMM_UNDER_BATON;
  // The next three functions are collective. |prepared| is OK if this rank can take part.
  Result<Meeting> meet_by_profiles(Bootstrap& bootstrap, const std::string& scope,
                                   const RankProfile& own, const Status& prepared,
                                   const JobOptions& options);
  Result<Meeting> meet_by_cards(Bootstrap& bootstrap, const std::string& scope,
                                const RankProfile& own, const Status& prepared,
                                const JobOptions& options);
  Result<std::vector<topology::PciAddress>> exchange_devices(Bootstrap& bootstrap,
                                                             const std::string& scope,
                                                             uint64_t deadline_ns) const;
  Status check_own(const JobDigest& digest, const RankProfile& own) const;
  bool leaves_to_others(const topology::HostLinks& links, size_t device,
                        const JobTransport& transport) const HETCOMM_UNDER_BATON;
  void leave_nics_to_others() HETCOMM_UNDER_BATON;
  void set_near_transports() HETCOMM_UNDER_BATON;
  Status take_members(Meeting met, std::optional<topology::LinkModel> model) HETCOMM_UNDER_BATON;
  Status wait_for_control(uint64_t deadline_ns);
  // DeviceUser
  void on_abandoned(size_t index) override HETCOMM_UNDER_BATON;
  void describe_oldest_copy(size_t index, uint64_t now_ns, uint64_t* started_ns,
                            std::string* text) override HETCOMM_UNDER_BATON {
    services_.data.staging.describe_oldest_copy(index, now_ns, started_ns, text);
  }
  int make_progress() HETCOMM_UNDER_BATON;
  bool is_quiet(Sleep sleep) HETCOMM_UNDER_BATON;
  void run_timers(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool has_work() const HETCOMM_UNDER_BATON {
    return (!tasks_.empty() && tasks_.ready()) || departures_.ready() ||
           !services_.data.graveyard.empty() || services_.turns.has_work() ||
           events_.mail_waits() || environment_.devices.calls().may_make();
  }

  const JobEnvironment environment_;
  Credentials credentials_;
  bool drew_key_ = false;          // the key is random: no secret is configured
  std::string wanted_transports_;  // from the communicator's options
  std::string link_model_text_;    // rank 0 only: the model that it distributes
  const std::shared_ptr<PathWitness> witness_ = std::make_shared<PathWitness>();
  PeerDirectory peers_;
  JobServices services_;
  std::unique_ptr<liveness::ControlPlane> control_;  // null in a job of one rank
  PairTable pairs_;
  IdleConnections idle_;
  PairPaths paths_;
  Departures departures_;
  OperationEnder ender_;
  StreamWaits stream_waits_;
  StreamGate gate_;
  JobMembers members_;
  PeerEvents events_;
  TaskList tasks_{services_.data.engine};
  MemoryExports memories_;
  // These members come last, so endpoints and transports are destroyed before the objects that
  // their upcalls use.
  JobInterfaces interfaces_;
  JobTransports transports_;
};

}  // namespace hetcomm
