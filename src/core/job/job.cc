#include "src/core/job/job.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/baton_role.h"
#include "src/base/host_id.h"
#include "src/base/random.h"
#include "src/core/job/link_agreement.h"
#include "src/net/key.h"
#include "src/net/listening_socket.h"
#include "src/net/tls.h"
#include "topology/link_model_json.h"

namespace hetcomm {
namespace {

// How long a waiting thread polls where ranks share cores.
constexpr uint64_t kCrowdedSpinNs = 200'000;

uint32_t credit_for_each_peer(const Config& config, int size) {
  const uint64_t peers = std::max<uint64_t>(static_cast<uint64_t>(size) - 1, 1);
  const uint64_t share = config.number(Variable::kUnexpectedBytes) / peers;
  const uint64_t credit = std::min(config.number(Variable::kCreditBytes), share);
  return static_cast<uint32_t>(std::clamp<uint64_t>(credit, 4096, 1u << 30));
}

// Makes waiting threads yield and sleep sooner if more ranks than processors share this host.
void adapt_to_crowd(int64_t ranks_here, const Config& config, Log& log, SpinPolicy& spin) {
  const std::string_view yield = config.text(Variable::kYield);
  const bool crowded = ranks_here > sysconf(_SC_NPROCESSORS_ONLN);
  if (yield == "on" || (yield == "auto" && crowded)) spin.set_yields(true);
  if (crowded && !config.is_set(Variable::kSpinTime)) spin.set_spin(kCrowdedSpinNs);
  if (crowded)
    log.info("{} ranks share this host and have fewer processors: waiting threads yield",
             ranks_here);
}

// Ranks of other hosts that are offered loopback only would look for this rank on themselves. Those
// hosts may be namespaces of one machine, so what tells them apart is whose addresses they have.
void warn_of_loopback(const Config& config, Log& log, const Address& route,
                      const std::vector<std::vector<Address>>& control) {
  Result<std::vector<InterfaceAddress>> chosen = choose_interfaces(config, route);
  const auto offers_loopback = [](const InterfaceAddress& entry) {
    return entry.address.is_loopback();
  };
  if (!chosen.ok() || !std::all_of(chosen->begin(), chosen->end(), offers_loopback)) return;
  const auto is_far = [](const std::vector<Address>& addresses) {
    return std::any_of(addresses.begin(), addresses.end(), [](const Address& address) {
      return !address.is_loopback() && !is_local(address);
    });
  };
  const auto far = std::find_if(control.begin(), control.end(), is_far);
  if (far == control.end()) return;
  log.warn(
      "rank {} runs on another host, and this rank has loopback addresses only to offer: is an "
      "interface down, or left out by HETCOMM_INTERFACE='{}'?",
      far - control.begin(), config.text(Variable::kInterface));
}

}  // namespace

Job::Job(const JobEnvironment& environment, int rank, int size)
    : environment_(environment),
      peers_(size),
      commons_(environment.engine, environment.log, environment.devices, environment.config,
               environment.places.devices, environment.overlaps, paths_, events_, rank),
      pairs_(commons_, peers_),
      idle_(commons_, pairs_),
      paths_(commons_, peers_, pairs_, transports_, idle_,
             environment.config.number(Variable::kRails)),
      ender_(commons_),
      members_(commons_, pairs_, ender_),
      events_(commons_, pairs_, paths_, members_, *this),
      memories_(commons_, transports_, peers_, credentials_.identity),
      transports_(environment_, rank, size, credentials_, paths_) {
  commons_.credit_granted = credit_for_each_peer(environment.config, size);
}

// --- creation ---------------------------------------------------------------

Result<std::unique_ptr<Job>> Job::create(const JobEnvironment& environment, Bootstrap& bootstrap,
                                         const JobOptions& options) {
  std::unique_ptr<Job> job(new Job(environment, bootstrap.rank(), bootstrap.size()));
  HETCOMM_RETURN_IF_ERROR(job->set_up(bootstrap, options));
  return job;
}

Status Job::set_up(Bootstrap& bootstrap, const JobOptions& options) {
  Result<Secret> secret = bootstrap.secret(options.deadline_ns);
  if (!secret.ok()) return secret.status();
  credentials_.secret = secret.value();
  credentials_.identity = identity_of("hetcomm", options.name, options.epoch);
  drew_key_ = !bootstrap.configured_key();
  wanted_transports_ = options.transports;
  commons_.first_sequence = options.first_sequence;
  const Address route = bootstrap.local_address();
  // A rank that cannot go on comes all the same, and tells the others why: they would wait for it.
  RankProfile own;
  const Status prepared = prepare(options, route, &own);
  if (!prepared.ok()) {
    log().warn("communicator '{}' cannot be made: {}", options.name, prepared.text());
  }
  const std::vector<std::byte> mine =
      prepared.ok() ? encode_profile(own, control_.get()) : encode_refusal(prepared);
  const std::string scope = fmt::format("{}/epoch {}", options.name, options.epoch);
  auto all = bootstrap.allgather(scope, mine, options.deadline_ns);
  HETCOMM_RETURN_IF_ERROR(prepared);
  if (!all.ok()) return all.status();
  std::vector<std::vector<Address>> control(static_cast<size_t>(size()));
  size_t link_model_bytes = 0;
  {
    const Engine::Baton baton(engine());
    for (int rank = 0; rank < size(); ++rank) {
      const auto index = static_cast<size_t>(rank);
      HETCOMM_RETURN_IF_ERROR(
          add_peer(rank, all.value()[index], own, &control[index], &link_model_bytes)
              .annotate(fmt::format("what rank {} says of itself", rank)));
    }
  }
  std::optional<topology::LinkModel> model;
  if (link_model_bytes > 0) {
    auto told = hand_out_link_model(bootstrap, scope, link_model_text_, link_model_bytes,
                                    options.deadline_ns);
    if (!told.ok()) return told.status();
    model = std::move(told).value();
  }
  {
    const Engine::Baton baton(engine());
    peers_.gather_links();
    if (model) {
      HETCOMM_RETURN_IF_ERROR(check_ranks(*model, peers_));
      peers_.set_link_model(*std::move(model));
    }
    adapt_to_crowd(peers_.ranks_beside(rank()), environment_.config, log(), engine().spin());
    warn_of_loopback(environment_.config, log(), route, control);
    paths_.warn_of_unreachable();
    commons_.channels.open();
    HETCOMM_RETURN_IF_ERROR(start_connections(std::move(control)));
  }
  return wait_for_control(options.deadline_ns);
}

Status Job::prepare(const JobOptions& options, const Address& route, RankProfile* own) {
  const Engine::Baton baton(engine());
  engine().refresh_now();
  HETCOMM_RETURN_IF_ERROR(environment_.nics_failure);
  HETCOMM_RETURN_IF_ERROR(make_control(route));
  HETCOMM_RETURN_IF_ERROR(transports_.make(options.transports, route));
  std::vector<NearTransports::Served> served;
  for (const auto& each : transports_.all()) {
    commons_.device_access.add(each->abilities.devices, each->name);
    if (each->abilities.receipts != nullptr) witness_->add(*each->abilities.receipts);
    served.push_back({each->kind, each->devices});
  }
  commons_.near.set(served);
  HETCOMM_RETURN_IF_ERROR(describe_self(own));
  engine().passes().add(this);
  return {};
}

Status Job::make_control(const Address& route) {
  if (size() == 1) return {};
  Result<std::unique_ptr<liveness::ControlPlane>> control =
      liveness::ControlPlane::create(*environment_.control, log(), environment_.config,
                                     {.rank = rank(),
                                      .size = size(),
                                      .detection_ns = commons_.detection_ns,
                                      .credentials = credentials_,
                                      .doorbell = engine().doorbell(),
                                      .route = route,
                                      .witness = witness_});
  if (!control.ok()) return control.status();
  control_ = std::move(control).value();
  commons_.control = control_.get();
  return {};
}

// Draws what makes this job another one than all before: its id, which counts if this is rank 0,
// and the incarnation of this process.
Status Job::describe_self(RankProfile* own) {
  const Config& config = environment_.config;
  const std::string_view cluster = config.text(Variable::kCluster);
  if (cluster.size() > kMaxClusterName) {
    return Status(Code::kInvalidArgument,
                  fmt::format("HETCOMM_CLUSTER has {} characters: choose a name of at most {}",
                              cluster.size(), kMaxClusterName));
  }
  const Result<LinkFile> links = read_link_file(config);
  if (!links.ok()) return links.status();
  Result<std::string> label = own_host_label(config);
  if (!label.ok()) return label.status();
  PeerInfo& info = own->info;
  HETCOMM_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(&info.incarnation, 1))));
  if (rank() == 0) HETCOMM_RETURN_IF_ERROR(fill_random(own->instance));
  own->tls = tls_wanted(config);
  info.host = read_host_id();
  info.cluster = cluster;
  info.host_label = std::move(label).value();
  if (rank() == 0 && links.value().model) {
    link_model_text_ = topology::to_json(*links.value().model, /*compact=*/true);
    own->link_model_bytes = static_cast<uint32_t>(link_model_text_.size());
  }
  info.credit = commons_.credit_granted;
  for (const auto& each : transports_.all()) {
    const Capabilities& can = each->capabilities();
    const LinkCost* known = links.value().costs.find(each->kind);
    const LinkCost measured{can.latency_ns, can.bandwidth_bytes_per_s};
    info.offers.push_back({.name = each->name,
                           .within_host = can.within_host,
                           .link = known != nullptr ? *known : measured,
                           .port = each->port,
                           .contact = each->transport->contact()});
  }
  return {};
}

Status Job::add_peer(int rank, ConstByteSpan bytes, const RankProfile& own,
                     std::vector<Address>* control, size_t* link_model_bytes) {
  RankProfile told;
  HETCOMM_RETURN_IF_ERROR(decode_profile(bytes, this->rank(), own.tls, &told));
  if (rank == this->rank() && told.info.incarnation != own.info.incarnation) {
    return Status(Code::kBootstrapFailed,
                  "it comes from another process: two processes have the same rank");
  }
  if (rank == 0) {
    credentials_.identity.instance = told.instance;
    if (told.link_model_bytes > topology::kMaxLinkModelBytes) {
      return Status(Code::kBootstrapFailed, "its link model is too long");
    }
    *link_model_bytes = told.link_model_bytes;
  }
  *control = std::move(told.control);
  peers_.set(rank, std::move(told.info));
  return {};
}

// The profiles are complete: this rank can judge from now on who connects.
Status Job::start_connections(std::vector<std::vector<Address>> control) {
  credentials_.incarnations = std::make_shared<std::vector<uint64_t>>(peers_.incarnations());
  HETCOMM_RETURN_IF_ERROR(transports_.start());
  if (control_ == nullptr) {
    events_.set_ready();
    return {};
  }
  return control_->start(credentials_, std::move(control), peers_.hosts());
}

Status Job::wait_for_control(uint64_t deadline_ns) {
  // Polling would take the processors from ranks that are not as far.
  engine().wait_asleep(deadline_ns, [this] { return events_.ready(); });
  const Engine::Baton baton(engine());
  if (!events_.failure().ok()) {
    return Status(Code::kBootstrapFailed, std::string(events_.failure().text()));
  }
  if (events_.ready()) return engine().start_background();
  Status dropped;
  const std::vector<int> missing = control_->missing_neighbours(&dropped);
  return Status(Code::kBootstrapFailed,
                fmt::format("no control connection with rank {}{}{}", fmt::join(missing, ", "),
                            dropped.ok() ? "" : "; the last that was dropped: ",
                            dropped.ok() ? std::string_view() : dropped.text()));
}

Job::~Job() {
  const Engine::Baton baton(engine());
  engine().passes().remove(this);
  commons_.control = nullptr;
  control_.reset();  // says goodbye
  commons_.channels.for_each_table([](MatchTable& table) HETCOMM_UNDER_BATON {
    while (Incoming* message = table.first_unexpected()) {
      table.remove_unexpected(message);
      if (!message->arriving) message->receiver->free(*message);
    }
  });
  while (!commons_.graveyard.empty()) {
    commons_.graveyard.bury(commons_.blocks);  // what refers to pairs
  }
  commons_.schedule.clear();
  pairs_.clear();
  while (!commons_.graveyard.empty()) commons_.graveyard.bury(commons_.blocks);
  commons_.device_access.close();
  witness_->close();
  transports_.close();
}

// --- sharing ----------------------------------------------------------------

bool Job::may_be_shared(const std::string& transports,
                        const std::optional<Secret>& configured_key) const {
  if (transports != wanted_transports_) return false;
  return configured_key ? !drew_key_ && *configured_key == credentials_.secret : drew_key_;
}

std::optional<JobOffer> Job::offer(const Channel& channel) {
  const Engine::Baton baton(engine());
  events_.read_mail();
  JobOffer offer{.job = credentials_.identity, .rank = rank(), .channel = channel.id, .lost = {}};
  for (int rank = 0; rank < size(); ++rank) {
    if (!peer_status(rank).ok()) offer.lost.push_back(rank);
  }
  if (offer.lost.size() > kMostLostRanks) return std::nullopt;
  return offer;
}

// --- messages ---------------------------------------------------------------

void Job::start_receive(Channel& own, Operation& receive) {
  MatchTable& table = receive.collective ? own.collective : own.point_to_point;
  Incoming* message = table.find_unexpected(receive.peer, receive.tag, receive.ignore);
  if (message != nullptr) {
    message->receiver->attach(*message, receive);
    return;
  }
  if (receive.peer >= 0) {
    if (const Status& status = peer_status(receive.peer); !status.ok()) {
      commons_.completer.complete(receive, status.code(),
                                  fmt::format("{}: {}", describe(receive), status.text()));
      return;
    }
    Pair& sender = pair(receive.peer);
    if (sender.state() != PairState::kReady) [[unlikely]] {
      sender.ensure_connected();
      // Perhaps there is no way to connect.
      if (const Status& status = peer_status(receive.peer); !status.ok()) {
        commons_.completer.complete(receive, status.code(),
                                    fmt::format("{}: {}", describe(receive), status.text()));
        return;
      }
    }
  } else if (!pairs_.any_live_sender(*receive.communicator) ||
             (receive.options.fail_on_any_loss &&
              !pairs_.all_senders_live(*receive.communicator))) {
    commons_.completer.complete(
        receive, Code::kPeerLost,
        fmt::format(
            "{}: {}", describe(receive),
            receive.options.fail_on_any_loss ? "a sender was lost" : "no live sender is left"));
    return;
  }
  table.post(&receive);
  receive.stage = OperationStage::kPosted;
}

void Job::wake(int rank) {
  Pair& peer = pair(rank);
  peer.ensure_connected();
  peer.association().send_protocol(MessageKind::kWake, 0, 0);
}

// --- progress ---------------------------------------------------------------

int Job::progress() {
  try {
    return make_progress();
  } catch (const std::bad_alloc&) {
    out_of_memory();
    return 1;
  }
}

int Job::make_progress() {
  int moved = 0;
  if (events_.mail_waits()) events_.read_mail();
  commons_.schedule.begin_pass();
  moved += transports_.progress();
  if (!commons_.staging.idle()) moved += commons_.staging.progress();
  if (!tasks_.empty()) moved += tasks_.progress();
  if (commons_.schedule.has_work()) moved += commons_.schedule.run();
  if (!commons_.graveyard.empty()) commons_.graveyard.bury(commons_.blocks);
  return moved;
}

void Job::tick(uint64_t now_ns) {
  try {
    run_timers(now_ns);
  } catch (const std::bad_alloc&) {
    out_of_memory();
  }
}

void Job::run_timers(uint64_t now_ns) {
  tasks_.tick(now_ns);
  idle_.tick(now_ns);
  commons_.schedule.tick(now_ns);
}

uint64_t Job::next_timer_ns() const {
  return std::min({commons_.schedule.next_timer_ns(), idle_.next_timer_ns(),
                   transports_.next_timer_ns(), tasks_.next_timer_ns()});
}

bool Job::prepare_sleep(Sleep sleep) {
  bool quiet = tasks_.prepare_sleep(sleep);
  quiet = quiet && !has_work();
  return transports_.prepare_sleep(sleep) && quiet;
}

bool Job::may_sleep_on() const {
  return tasks_.may_sleep_on() && !has_work() && transports_.may_sleep_on();
}

void Job::finish_sleep() {
  tasks_.finish_sleep();
  transports_.finish_sleep();
}

}  // namespace hetcomm
