// Job: what a communicator and those split from it stand on: the ranks of one job and epoch, a
// transport instance each, a pair per peer that was talked to, the control plane, and the match
// tables of all communicators.
//
// All under the baton of the context's engine, but for create(), which blocks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/config.h"
#include "src/base/log.h"
#include "src/bootstrap/bootstrap.h"
#include "src/core/job/job_member.h"
#include "src/core/job/job_offer.h"
#include "src/core/job/link_model.h"
#include "src/core/job/path_inquiry.h"
#include "src/core/job/rank_placement.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/peer/pair.h"
#include "src/core/peer/pair_commons.h"
#include "src/core/progress/engine.h"
#include "src/liveness/control_plane.h"
#include "transports/transport.h"

namespace hetcomm {

// The parts of the context that a job works with.
struct JobEnvironment {
  Engine& engine;
  DeviceSet& devices;
  const Config& config;
  Log& log;
  OverlapGuard& overlaps;
  std::span<const std::unique_ptr<TransportFactory>> factories;
  liveness::ControlThread* control;  // null: for jobs of one rank only
};

struct JobOptions {
  std::string name;
  uint32_t epoch = 0;
  std::string transports;  // empty: HETCOMM_TRANSPORTS
  bool share = false;      // a job that all ranks are in already, where there is one
  uint64_t deadline_ns = 0;
  // For tests, the same on all ranks: the number before that of the first message of every pair,
  // and where its counters of credit begin.
  uint32_t first_sequence = 0;
};

class Job final : public Driven, private PairConnector, private PairListener {
 public:
  // Exchanges descriptors and makes the control plane. Collective; blocks until
  // |options.deadline_ns|.
  static Result<std::unique_ptr<Job>> create(const JobEnvironment& environment,
                                             Bootstrap& bootstrap, const JobOptions& options);
  // Says goodbye and closes everything; nothing is pending any more.
  ~Job();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Secret& secret() const { return credentials_.secret; }
  // Whether a communicator that asks for |transports|, in a job with |configured_key|, may be made
  // over it.
  bool may_be_shared(const std::string& transports,
                     const std::optional<Secret>& configured_key) const;
  // Of this rank, by |channel|; none where too many others are lost.
  std::optional<JobOffer> offer(const Channel& channel);
  Engine& engine() { return environment_.engine; }
  Log& log() { return environment_.log; }
  // Its pairs share these objects, and its communicators use them.
  PairCommons& commons() { return commons_; }
  const PairCommons& commons() const { return commons_; }

  Pair& pair(int rank) {
    Pair* found = pairs_[static_cast<size_t>(rank)].get();
    return found != nullptr ? *found : make_pair(rank);
  }
  // Null when the pair was never used.
  Pair* find_pair(int rank) { return pairs_[static_cast<size_t>(rank)].get(); }
  // Somebody else in |communicator| can still send, or it has one rank only.
  bool any_live_sender(const CommunicatorBase& communicator) const;
  // The others have declared this rank lost.
  bool was_declared_lost() const { return declared_lost_; }
  // Bytes that |rank| lets this rank send unasked.
  uint32_t credit_granted_by(int rank) const { return peers_[static_cast<size_t>(rank)].credit; }
  const Status& peer_status(int rank) const { return peer_status_[static_cast<size_t>(rank)]; }

  // That of the communicator of all ranks, which has the same number everywhere.
  Channel& first_channel() { return *commons_.channels.find(0); }
  // A channel for a communicator that this rank is about to make.
  Channel& open_channel() { return commons_.channels.open(); }
  // Drops what is queued in it; later messages are dropped on arrival.
  void close_channel(Channel& channel);
  // Closes it and tells all ranks: theirs are aborted.
  void give_up_channel(Channel& channel);
  // Ends every operation on the communicator with |why|, here and (|publish|) on all ranks.
  void abort(JobMember& communicator, const Status& why, bool publish);

  // Collective operations.
  // Work that is under way.
  void add_task(JobTask& task) { tasks_.push_back(&task); }
  void remove_task(JobTask& task) { std::erase(tasks_, &task); }
  // Whether two ranks claim to run on one host, in one cluster.
  bool are_near(int one, int other) const;
  // A transport within the host is in use.
  bool shares_memory() const;
  // How |ranks| lie to each other, and over which links: the same on all ranks.
  RankPlacement placement(const std::vector<int>& ranks) const;
  // Ends the sleep of a peer, which will look at everything.
  void wake(int rank);
  // Ends the collective operations of a communicator, here and (|publish|) on all ranks.
  void fail_collectives(JobMember& communicator, const Status& why, bool publish);
  // Tells |rank| which collective operation was called here on the communicator with this rank's
  // |channel|.
  void tell_call(int rank, uint32_t channel, ConstByteSpan note);

  void add(JobMember* communicator);
  void remove(JobMember* communicator) {
    std::erase(communicators_, communicator);
    std::erase(going_, communicator);
  }
  // |communicator| is about to go. Whether there are some that are not, which keep the connections
  // open.
  bool others_stay(JobMember& communicator);

  // Posting.
  void start_receive(Channel& own, Operation& receive);
  // |text| follows what describes the operation. Fails for nothing.
  void end_operation(Operation& operation, Code code, std::string_view text);
  void end_out_of_memory(Operation& operation);

  // Registered memories. publish() lets transports reach it that can; withdraw() is its contrary.
  void publish(Registration& registration);
  // True when no peer reaches it by a transport any more.
  bool withdraw(Registration& registration);
  ExportedMemory export_memory(const Registration& registration) const;
  // Checks that |exported| is of this job, and finds the keys for this rank's transports.
  Status find_keys(const ExportedMemory& exported, std::vector<RemoteKey>* keys) const;

  // Not in a job of one rank.
  liveness::ControlPlane& control() { return *control_; }
  // Takes what the control thread has left for this one.
  void read_mail();
  std::string explain(int rank);
  bool flushed() const;
  void ask_for_acknowledgements();

  int progress() override;
  void tick(uint64_t now_ns) override;
  void out_of_memory() override;
  uint64_t next_timer_ns() const override;
  bool prepare_sleep(Sleep sleep) override;
  bool may_sleep_on() const override;
  void finish_sleep() override;

 private:
  // PairConnector
  void connect(Pair& pair) override;
  void connect_over(Pair& pair, size_t index) override;
  std::vector<size_t> useful_beside(int rank, size_t index) override;
  bool has_common_transport(int rank) const override;
  uint32_t kept_payload_bytes(int rank) override;
  std::string_view transport_kind(size_t index) const override { return transports_[index]->kind; }
  std::string_view transport_name(size_t index) const override { return transports_[index]->name; }
  // PairListener
  void on_rank_lost(int rank, const Status& why) override;
  void on_doubt(int rank, const StreamId& stream) override;
  void on_unexpected_part(int rank, const WireHeader& header) override;

  // One transport, and its way to tell the job of connections.
  struct TransportEntry final : public TransportHandler {
    explicit TransportEntry(Job& owner) : job(owner) {}
    void on_connected(int peer, Result<std::unique_ptr<Endpoint>> endpoint) override;
    void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) override;
    void connected(int peer, Result<std::unique_ptr<Endpoint>> endpoint);
    void adopt(int peer, std::unique_ptr<Endpoint> endpoint);
    template <typename Upcall>
    void guarded(int peer, Upcall&& upcall);
    Job& job;
    size_t index = 0;       // in |transports_|
    std::string_view kind;  // of the factory, which may make several
    std::string name;
    std::unique_ptr<Transport> transport;
    TransportAbilities abilities;
  };
  struct PeerInfo {
    struct Offer {  // of one transport
      std::string name;
      bool within_host = false;
      Link link;
      std::vector<std::byte> descriptor;
    };
    uint64_t incarnation = 0;          // drawn by its process for this job
    std::array<std::byte, 16> host{};  // where it runs, as it says
    std::string cluster;
    uint32_t credit = 0;
    std::vector<Offer> offers;
  };
  struct Candidate {
    TransportEntry* entry;
    const std::vector<std::byte>* descriptor;
    double score_us = 0;   // estimated time of a 64 KiB message
    bool cooling = false;  // it failed lately
    Status reach;
  };
  struct Attempt {  // of one pair, while it connects
    std::vector<Candidate> candidates;
    size_t next = 0;
    uint64_t since_ns = 0;  // when |next| was begun
    bool late = false;      // this rank has computed for longer than a peer of the host waits
    std::string failures;
  };

  Job(const JobEnvironment& environment, int rank, int size);
  Status set_up(Bootstrap& bootstrap, const JobOptions& options);
  Status make_transports(std::string_view wanted);
  Status make_transport(const TransportFactory& factory, size_t instance, TransportEntry& entry);
  Status read_link_model();
  Status make_control();
  Status draw_identity();
  // What this rank has to have before the others are asked.
  Status prepare(const JobOptions& options);
  std::vector<std::byte> describe_self() const;
  static std::vector<std::byte> describe_refusal(const Status& why);
  Status parse_peer(int rank, ConstByteSpan bytes, std::vector<Address>* control);
  Status start_connections(std::vector<std::vector<Address>> control);
  Status wait_for_control(uint64_t deadline_ns);
  void gather_links();
  Link link_between(int one, int other) const;
  void count_ranks_of_host();
  void warn_of_unreachable();
  void warn_of_loopback(const std::vector<std::vector<Address>>& control);
  void set_ready();
  std::vector<Candidate> candidates(int rank);
  void try_next(Pair& pair);
  bool was_late(Attempt& attempt);
  void note_connected(Transport& transport);
  // Where descriptors run short: asks the peers that were talked to least lately, and again a
  // little later.
  void close_idle_connections();
  void fail_receives(int rank, const Status& why);
  bool all_senders_live(const Operation& receive) const;
  bool owns(const CommunicatorBase& communicator) const;

  Pair& make_pair(int rank);
  void lose(int rank, const Status& why);
  void handle(const liveness::Mail& mail);
  void on_peer_lost(int rank, const Status& why);
  void on_peer_left(int rank);
  void on_declared_lost(const Status& why);
  void on_abort(int origin, uint32_t channel, const std::string& reason);
  void on_collectives_failed(int origin, uint32_t channel, const Status& why);
  void on_call(int origin, uint32_t channel, ConstByteSpan note);
  // The communicator that |origin| knows by its own |channel|; null if there is none here.
  JobMember* find_communicator(int origin, uint32_t channel) const;
  void drop_queued(Channel& channel);
  void on_knock(int rank, uint32_t lost);
  void on_refused(int rank, const std::string& why);
  void on_given_up(int rank, const std::string& why);
  void on_vouched(int rank);
  void on_suspected(int rank);
  void on_path_answer(int rank, uint64_t asked_ns, ConstByteSpan bytes);

  JobEnvironment environment_;
  int rank_;
  int size_;
  Credentials credentials_;
  bool drew_key_ = false;          // no secret is configured
  std::string wanted_transports_;  // as the communicator's options name them
  Address route_;  // of this host, leads to the other ranks; none where that is not known
  uint32_t kept_payload_bytes_ = UINT32_MAX;
  std::atomic<bool> ready_{false};  // control graph complete, or failed_ set
  Status failed_;                   // creation cannot succeed
  PairCommons commons_;
  std::unique_ptr<liveness::ControlPlane> control_;  // null in a job of one rank
  bool reading_mail_ = false;
  LinkModel links_;  // of this rank's file; later, for all
  std::vector<PeerInfo> peers_;
  std::vector<Status> peer_status_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<std::unique_ptr<Attempt>> attempts_;  // by rank
  std::vector<Pair*> active_pairs_;                 // all pairs that exist
  uint64_t close_idle_at_ns_ = kForever;            // while descriptors are short
  uint64_t close_idle_pause_ns_ = 0;
  bool declared_lost_ = false;
  uint64_t passes_ = 0;
  std::vector<Transport*>
      connected_;  // with connections: polled in every pass, the others now and then
  std::vector<JobMember*> communicators_;
  std::vector<JobMember*> going_;  // those that are about to go
  // What others have said of a communicator that is not here, yet or any more: this rank may make
  // it long after they have. The last of them are kept; numbers of channels do not come again.
  struct EarlyFact {
    int origin;
    uint32_t channel;  // of the origin
    bool aborted;      // else its collective operations have failed
    Status why;
  };
  struct EarlyCall {
    int origin;
    uint32_t channel;
    std::vector<std::byte> note;
  };
  static constexpr size_t kMostEarlyFacts = 1024;
  static constexpr size_t kMostEarlyCalls = 256;
  static constexpr size_t kMostNote = 1024;  // bytes of one
  void keep_early(EarlyFact fact);
  void take_early_facts(JobMember& communicator);
  std::deque<EarlyFact> early_facts_;
  std::deque<EarlyCall> early_calls_;
  std::vector<JobTask*> tasks_;
  bool tasks_ready() const;
  int progress_tasks();
  bool has_work() const {
    return (!tasks_.empty() && tasks_ready()) || !commons_.staging.idle() ||
           !commons_.graveyard.empty() || commons_.schedule.has_work() ||
           (control_ != nullptr && control_->mailbox().waiting());
  }
  int make_progress();
  void run_timers(uint64_t now_ns);
  std::vector<std::string> unused_;  // transports, each with the reason
  const std::shared_ptr<PathWitness> witness_ = std::make_shared<PathWitness>();
  // Last: endpoints and transports go before what their upcalls touch.
  std::vector<std::unique_ptr<TransportEntry>> transports_;
};

}  // namespace hetcomm
