#include "src/core/job/job.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/baton_role.h"
#include "src/bootstrap/digest_exchange.h"
#include "src/bootstrap/variables.h"
#include "src/core/job/membership/host_devices.h"
#include "src/core/job/membership/job_digest.h"
#include "src/core/job/membership/link_agreement.h"
#include "src/core/job/membership/rank_card.h"
#include "src/core/job/membership/variables.h"
#include "src/core/peer/transfer/message_receiver.h"
#include "src/core/peer/variables.h"
#include "src/core/progress/variables.h"
#include "src/liveness/frame.h"
#include "src/net/key.h"
#include "src/net/listening_socket.h"
#include "src/net/tls.h"
#include "src/net/variables.h"
#include "src/system/descriptors.h"
#include "src/system/host_id.h"
#include "src/system/random.h"
#include "topology/links/link_model_json.h"
#include "topology/machine/host_links.h"
#include "transports/variables.h"

namespace hetcomm {
namespace {

// The time for which a waiting thread polls before it sleeps, if the host has more ranks than
// processors.
constexpr uint64_t kCrowdedSpinNs = 200'000;

uint32_t credit_for_each_peer(const Config& config, int size) {
  const uint64_t peers = std::max<uint64_t>(static_cast<uint64_t>(size) - 1, 1);
  const uint64_t share = config.number(variable::kUnexpectedBytes) / peers;
  const uint64_t credit = std::min(config.number(variable::kCreditBytes), share);
  return static_cast<uint32_t>(std::clamp<uint64_t>(credit, 4096, 1u << 30));
}

// Sets whether waiting threads yield, and how long they spin. On a host with more ranks than
// processors they yield and spin briefly, unless the user has set these options.
void adapt_to_crowd(int64_t ranks_here, const Config& config, Log& log, SpinPolicy& spin) {
  const std::string_view yield = config.text(variable::kYield);
  const bool crowded = ranks_here > sysconf(_SC_NPROCESSORS_ONLN);
  if (yield == "on" || (yield == "auto" && crowded)) spin.set_yields(true);
  if (crowded && !config.is_set(variable::kSpinTime)) spin.set_spin(kCrowdedSpinNs);
  if (crowded) {
    log.info("{} ranks share this host and have fewer processors{}", ranks_here,
             spin.yields() ? ": waiting threads yield" : "");
  }
}

// Warns if ranks of other hosts get only loopback addresses of this rank, because they would look
// for it on their own host. Namespaces of one machine count as hosts here: a rank is on another
// host if it has an address that this host does not have.
void warn_of_loopback(const Config& config, Log& log, int own_rank, int size,
                      const liveness::AddressBook& control) {
  const auto is_loopback = [](const Address& address) { return address.is_loopback(); };
  const std::vector<Address> own = control.find(own_rank);
  if (!std::all_of(own.begin(), own.end(), is_loopback)) return;
  const auto is_far = [&](int rank) {
    const std::vector<Address> addresses = control.find(rank);
    return std::any_of(addresses.begin(), addresses.end(), [](const Address& address) {
      return !address.is_loopback() && !is_local(address);
    });
  };
  int far = 0;
  while (far < size && !is_far(far)) ++far;
  if (far == size) return;
  log.warn(
      "rank {} runs on another host, and this rank has loopback addresses only to offer: is an "
      "interface down, or left out by HETCOMM_INTERFACE='{}'?",
      far, config.text(variable::kInterface));
}

}  // namespace

Job::Job(const JobEnvironment& environment, int rank, int size)
    : environment_(environment),
      peers_(size),
      services_(environment, {paths_, paths_, paths_}, events_, rank),
      pairs_(services_.for_pairs(), peers_),
      idle_(environment.engine, rank, pairs_),
      paths_(services_.connections, services_.data, services_.turns, peers_, credentials_, pairs_,
             transports_, idle_, environment.config.number(variable::kRails)),
      departures_(environment.devices),
      ender_(environment.engine, services_.data.completer, pairs_, departures_),
      stream_waits_(environment.engine, services_.terms.detection_ns, pairs_, departures_, ender_),
      gate_(departures_, stream_waits_, ender_, services_.data.completer),
      members_(services_.connections, services_.data.channels, pairs_, ender_, stream_waits_),
      events_(services_.connections, pairs_, paths_, members_, *this),
      memories_(services_.data, services_.registrations, environment.log, rank, transports_, peers_,
                credentials_.identity),
      transports_(environment_, rank, size, credentials_, paths_) {
  services_.terms.credit_granted = credit_for_each_peer(environment.config, size);
}

// --- creation ---------------------------------------------------------------

Result<std::unique_ptr<Job>> Job::create(
    const JobEnvironment& environment, Bootstrap& bootstrap, const JobOptions& options,
    std::optional<std::vector<topology::PciAddress>>* learned) {
  std::unique_ptr<Job> job(new Job(environment, bootstrap.rank(), bootstrap.size()));
  HETCOMM_RETURN_IF_ERROR(job->set_up(bootstrap, options, learned));
  if (learned != nullptr && *learned) job.reset();
  return job;
}

Status Job::set_up(Bootstrap& bootstrap, const JobOptions& options,
                   std::optional<std::vector<topology::PciAddress>>* learned) {
  Result<Secret> secret = bootstrap.secret(options.deadline_ns);
  if (!secret.ok()) return secret.status();
  credentials_.secret = secret.value();
  credentials_.identity = identity_of("hetcomm", options.name, options.epoch);
  drew_key_ = !bootstrap.configured_key();
  wanted_transports_ = options.transports;
  services_.terms.first_sequence = options.first_sequence;
  interfaces_.route = bootstrap.local_address();
  // A rank that could not prepare still takes part and reports the reason, because the others would
  // wait for it.
  RankProfile own;
  const Status prepared = prepare(options, &own);
  if (!prepared.ok()) {
    log().warn("communicator '{}' cannot be made: {}", options.name, prepared.text());
  }
  // All ranks must use the same text for a scope, so the text is part of the protocol between
  // ranks.
  const std::string scope =
      fmt::format("{}/epoch {}{}", options.name, options.epoch, learned == nullptr ? "/again" : "");
  const bool is_large =
      static_cast<uint64_t>(size()) > environment_.config.number(variable::kSmallJob);
  Result<Meeting> met = is_large ? meet_by_cards(bootstrap, scope, own, prepared, options)
                                 : meet_by_profiles(bootstrap, scope, own, prepared, options);
  HETCOMM_RETURN_IF_ERROR(prepared);
  if (!met.ok()) return met.status();
  if (met->digest.must_tell_devices && learned != nullptr) {
    auto devices = exchange_devices(bootstrap, scope, options.deadline_ns);
    if (!devices.ok()) return devices.status();
    *learned = std::move(devices).value();
    return {};
  }
  std::optional<topology::LinkModel> model;
  if (met->digest.link_model_bytes > 0) {
    auto told = hand_out_link_model(bootstrap, scope, link_model_text_, options.deadline_ns);
    if (!told.ok()) return told.status();
    model = std::move(told).value();
  }
  {
    const Engine::Baton baton(engine());
    HETCOMM_RETURN_IF_ERROR(take_members(std::move(met).value(), std::move(model)));
  }
  const Status joined = wait_for_control(options.deadline_ns);
  // A missing rank may have received no digest, because this rank's relay has dropped its
  // connection.
  const Status dropped = last_refused_reader(bootstrap);
  if (joined.ok() || dropped.ok()) return joined;
  return Status(joined.code(), fmt::format("{}; the relay has dropped a connection: {}",
                                           joined.text(), dropped.text()));
}

// Exchanges profiles in a small job: every rank sends its whole profile to all others.
Result<Job::Meeting> Job::meet_by_profiles(Bootstrap& bootstrap, const std::string& scope,
                                           const RankProfile& own, const Status& prepared,
                                           const JobOptions& options) {
  auto all = bootstrap.allgather(
      scope, prepared.ok() ? encode_profile(own) : encode_refusal(prepared), options.deadline_ns);
  if (!all.ok()) return all.status();
  Meeting meeting;
  std::vector<RankCard> cards;
  cards.reserve(static_cast<size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    RankProfile told;
    HETCOMM_RETURN_IF_ERROR(
        decode_profile(all.value()[static_cast<size_t>(rank)], this->rank(), own.tls, &told)
            .annotate(fmt::format("what rank {} says of itself", rank)));
    cards.push_back(card_of(told));
    meeting.addresses.learn(rank, std::move(told.control));
    meeting.offers.emplace_back(rank, std::move(told.info.offers));
  }
  Result<JobDigest> digest = gather(0, cards);
  if (!digest.ok()) return digest.status();
  meeting.digest = std::move(digest).value();
  HETCOMM_RETURN_IF_ERROR(check_own(meeting.digest, own));
  return meeting;
}

// Exchanges cards in a large job: every rank sends all others only the data that they need before
// they contact it. It sends the rest of its profile only to ranks that request it.
Result<Job::Meeting> Job::meet_by_cards(Bootstrap& bootstrap, const std::string& scope,
                                        const RankProfile& own, const Status& prepared,
                                        const JobOptions& options) {
  Meeting meeting;
  meeting.profile = encode_profile(own);
  Status refusal = prepared;
  if (refusal.ok() && meeting.profile.size() > liveness::kMaxProfileText) {
    refusal = Status(
        Code::kOutOfResources,
        fmt::format("what it says of its transports takes {} bytes, and {} are the most in a job "
                    "of more than HETCOMM_SMALL_JOB ranks: use fewer network interfaces",
                    meeting.profile.size(), liveness::kMaxProfileText));
  }
  auto bytes = exchange_digest(
      bootstrap, scope, refusal.ok() ? encode_card(card_of(own)) : encode_refused_card(refusal),
      JobDigestMaker(), options.deadline_ns);
  if (!bytes.ok()) return bytes.status();
  Result<JobDigest> digest = decode_digest(bytes.value());
  if (!digest.ok()) return digest.status();
  meeting.digest = std::move(digest).value();
  if (meeting.digest.size() != static_cast<size_t>(size())) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("{} ranks have introduced themselves; the job has {}",
                              meeting.digest.size(), size()));
  }
  HETCOMM_RETURN_IF_ERROR(check_own(meeting.digest, own));
  meeting.addresses =
      liveness::AddressBook(std::move(meeting.digest.addresses),
                            std::move(meeting.digest.address_of), std::move(meeting.digest.ports));
  meeting.addresses.learn(rank(), own.control);
  meeting.offers.emplace_back(rank(), own.info.offers);
  return meeting;
}

Result<std::vector<topology::PciAddress>> Job::exchange_devices(Bootstrap& bootstrap,
                                                                const std::string& scope,
                                                                uint64_t deadline_ns) const {
  const HostId host = read_host_id();
  auto digest = exchange_digest(bootstrap, scope + "/devices",
                                encode_host_devices(host, environment_.hidden_devices),
                                HostDevicesMaker(), deadline_ns);
  if (!digest.ok()) return digest.status();
  return devices_of_host(digest.value(), host);
}

Status Job::check_own(const JobDigest& digest, const RankProfile& own) const {
  if (digest.incarnations[static_cast<size_t>(rank())] == own.info.incarnation) return {};
  return Status(Code::kBootstrapFailed,
                fmt::format("what rank {} says of itself comes from another process: two processes "
                            "have the same rank",
                            rank()));
}

// Stores what all ranks have reported about themselves, so that this rank can decide which
// connections to accept. Then starts the transports and the control plane.
Status Job::take_members(Meeting met, std::optional<topology::LinkModel> model) {
  credentials_.identity.instance = met.digest.instance;
  credentials_.incarnations = std::make_shared<std::vector<uint64_t>>(
      met.digest.incarnations.begin(), met.digest.incarnations.end());
  peers_.set(std::move(met.digest));
  leave_nics_to_others();
  for (auto& [rank, offers] : met.offers) peers_.set_offers(rank, std::move(offers));
  if (model) {
    HETCOMM_RETURN_IF_ERROR(check_ranks(*model, peers_));
    peers_.set_link_model(*std::move(model));
  } else {
    peers_.estimate_link_model();
  }
  if (rank() == 0 && peers_.digest().silenced > 0) {
    log().warn(
        "the hosts of {} ranks have more NICs and PCIe links of different kinds than a large job "
        "is "
        "told of: the link model does not know them",
        peers_.digest().silenced);
  }
  if (!peers_.link_model_status().ok()) log().info("{}", peers_.link_model_status().text());
  adapt_to_crowd(peers_.ranks_beside(rank()), environment_.config, log(), engine().spin());
  warn_of_loopback(environment_.config, log(), rank(), size(), met.addresses);
  paths_.warn_of_unreachable();
  services_.data.channels.open();
  HETCOMM_RETURN_IF_ERROR(transports_.start());
  if (control_ == nullptr) {
    events_.set_ready();
    return {};
  }
  return control_->start({.credentials = credentials_,
                          .addresses = std::move(met.addresses),
                          .hosts = peers_.digest().host_of,
                          .profile = std::string(reinterpret_cast<const char*>(met.profile.data()),
                                                 met.profile.size())});
}

Status Job::prepare(const JobOptions& options, RankProfile* own) {
  const Engine::Baton baton(engine());
  engine().refresh_now();
  HETCOMM_RETURN_IF_ERROR(environment_.nics_failure);
  // The incarnation is a random number for this job only. 0 stands for a rank that has none.
  uint32_t& incarnation = own->info.incarnation;
  while (incarnation == 0) {
    HETCOMM_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(&incarnation, 1))));
  }
  // Later connections to peers need no reserved descriptors: they are made on demand, and idle ones
  // are closed (see IdleConnections).
  constexpr uint64_t kOwnDescriptors = 16;
  if (size() > 1) {
    HETCOMM_RETURN_IF_ERROR(
        reserve_descriptors(environment_.config, log(), kOwnDescriptors,
                            "a communicator's listeners and first connections"));
  }
  interfaces_.chosen = choose_interfaces(environment_.config, interfaces_.route);
  HETCOMM_RETURN_IF_ERROR(make_control(incarnation));
  if (control_ != nullptr) own->control = control_->addresses();
  HETCOMM_RETURN_IF_ERROR(transports_.make(options.transports, interfaces_));
  const auto& all = transports_.all();
  for (const auto& each : all) {
    services_.data.device_access.add(each->abilities.devices, each->name, each->far_devices);
    if (each->abilities.receipts != nullptr) witness_->add(*each->abilities.receipts);
  }
  set_near_transports();
  if (size() > 1 && std::any_of(all.begin(), all.end(), [](const auto& each) HETCOMM_UNDER_BATON {
        return each->capabilities().map;
      })) {
    services_.data.staging.chunks().set_publisher(&memories_);
  }
  HETCOMM_RETURN_IF_ERROR(describe_self(own));
  engine().passes().add(this);
  environment_.devices.add_device_user(*this);
  return {};
}

Status Job::make_control(uint32_t incarnation) {
  if (size() == 1) return {};
  if (!interfaces_.chosen.ok()) return interfaces_.chosen.status().annotate("control plane");
  Result<std::unique_ptr<liveness::ControlPlane>> control =
      liveness::ControlPlane::create(*environment_.control, log(), environment_.config,
                                     {.rank = rank(),
                                      .size = size(),
                                      .detection_ns = services_.terms.detection_ns,
                                      .credentials = credentials_,
                                      .incarnation = incarnation,
                                      .doorbell = engine().doorbell(),
                                      .interfaces = interfaces_.chosen.value(),
                                      .witness = witness_});
  if (!control.ok()) return control.status();
  control_ = std::move(control).value();
  services_.connections.control = control_.get();
  return {};
}

// Fills in the members of |own| that prepare() has not set. Rank 0 also draws the random id that
// distinguishes this job from all earlier ones.
Status Job::describe_self(RankProfile* own) {
  const Config& config = environment_.config;
  const std::string_view cluster = config.text(variable::kCluster);
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
  if (rank() == 0) HETCOMM_RETURN_IF_ERROR(fill_random(own->instance));
  own->tls = tls_wanted(config);
  info.host = read_host_id();
  info.cluster = cluster;
  info.host_label = std::move(label).value();
  if (rank() == 0 && links.value().model) {
    link_model_text_ = topology::to_json(*links.value().model, /*compact=*/true);
    own->link_model_bytes = static_cast<uint32_t>(link_model_text_.size());
  }
  info.credit = services_.terms.credit_granted;
  info.device_count = static_cast<uint32_t>(environment_.devices.size());
  info.host_links = topology::encode_host_links(environment_.host_links);
  info.known_devices = name_of_devices(environment_.hidden_devices);
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

Status Job::wait_for_control(uint64_t deadline_ns) {
  // The thread sleeps, because polling would take processors from ranks that are not ready yet.
  engine().wait_asleep(deadline_ns, [this] { return events_.ready(); });
  const Engine::Baton baton(engine());
  if (!events_.failure().ok()) {
    return Status(Code::kBootstrapFailed, std::string(events_.failure().text()));
  }
  if (events_.ready()) return engine().start_background();
  const liveness::ControlPlane::Missing missing = control_->missing_neighbours();
  const Status& dropped = missing.last_rejection;
  std::string why = missing.failure.empty() ? std::string() : ": " + missing.failure;
  // The failure text belongs to the first missing rank.
  if (!why.empty() && missing.ranks.size() > 1) {
    why = fmt::format(": rank {}{}", missing.ranks.front(), why);
  }
  return Status(
      Code::kBootstrapFailed,
      fmt::format("no control connection with rank {}{}{}{}", fmt::join(missing.ranks, ", "), why,
                  dropped.ok() ? "" : "; the last that was dropped: ",
                  dropped.ok() ? std::string_view() : dropped.text()));
}

Job::~Job() {
  const Engine::Baton baton(engine());
  engine().passes().remove(this);
  environment_.devices.remove_device_user(*this);
  services_.connections.control = nullptr;
  control_.reset();  // this sends goodbyes
  services_.data.channels.for_each_table([](MatchTable& table) HETCOMM_UNDER_BATON {
    while (Incoming* message = table.first_unexpected()) {
      table.remove_unexpected(message);
      if (!message->arriving) receiver_of(*message).free(*message);
    }
  });
  // Frees the objects in the graveyard before the pairs to which they refer.
  while (!services_.data.graveyard.empty()) {
    services_.data.graveyard.bury(services_.data.blocks);
  }
  services_.turns.clear();
  pairs_.clear();
  while (!services_.data.graveyard.empty()) services_.data.graveyard.bury(services_.data.blocks);
  services_.data.device_access.close();
  witness_->close();
  services_.data.staging.chunks().set_publisher(nullptr);
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
  if (offer.lost.size() > kMaxLostRanks) return std::nullopt;
  return offer;
}

// --- messages ---------------------------------------------------------------

void Job::start_receive(Channel& own, Operation& receive) {
  MatchTable& table = receive.options.collective ? own.collective : own.point_to_point;
  Incoming* message = table.find_unexpected(receive.peer, receive.tag, receive.ignore);
  if (message != nullptr) {
    receiver_of(*message).attach(*message, receive);
    return;
  }
  if (receive.peer >= 0) {
    if (const Status& status = peer_status(receive.peer); !status.ok()) {
      services_.data.completer.complete(receive, status.code(),
                                        fmt::format("{}: {}", describe(receive), status.text()));
      return;
    }
    Pair& sender = pair(receive.peer);
    if (sender.state() != PairState::kReady) [[unlikely]] {
      sender.ensure_connected();
      // ensure_connected() may have found that the peer is unreachable.
      if (const Status& status = peer_status(receive.peer); !status.ok()) {
        services_.data.completer.complete(receive, status.code(),
                                          fmt::format("{}: {}", describe(receive), status.text()));
        return;
      }
    }
  } else if (!pairs_.any_live_sender(*receive.communicator) ||
             (receive.options.fail_on_any_loss &&
              !pairs_.all_senders_live(*receive.communicator))) {
    services_.data.completer.complete(
        receive, Code::kPeerLost,
        fmt::format(
            "{}: {}: {}", describe(receive),
            receive.options.fail_on_any_loss ? "a sender was lost" : "no live sender is left",
            pairs_.loss_in(*receive.communicator).text()));
    return;
  }
  table.post(&receive);
  receive.phase = OperationPhase::kPosted;
}

void Job::prepare_for_holds() {
  const DeviceSet& devices = environment_.devices;
  for (size_t index = 0; index < devices.size(); ++index) {
    if (!devices.has_user_streams(index) || devices.is_abandoned(index)) continue;
    services_.data.staging.prepare_for_holds(index);
    services_.sums.prepare_for_holds(index);
  }
  services_.data.device_access.prepare_for_holds(services_.data.near);
}

bool Job::leaves_to_others(const topology::HostLinks& links, size_t device,
                           const JobTransport& transport) const {
  if (!peers_.own_nics(rank()).is_left_by(links, device, transport.model_nic)) return false;
  // The device's own NIC has to carry its data, and may not be usable for this kind of transport.
  const std::string_view own = topology::OwnNics::own_nic(links, device);
  const auto& all = transports_.all();
  return std::any_of(all.begin(), all.end(), [&](const auto& each) {
    return each->kind == transport.kind && each->model_nic == own;
  });
}

void Job::leave_nics_to_others() {
  for (const auto& each : transports_.all()) {
    for (size_t device = 1; device < RankNic::kMaxDevices; ++device) {
      if (leaves_to_others(device, *each)) each->devices &= ~(uint64_t{1} << device);
    }
  }
  set_near_transports();
}

void Job::set_near_transports() {
  std::vector<NearTransports::Served> served;
  for (const auto& each : transports_.all()) served.push_back({each->kind, each->devices});
  services_.data.near.set(served);
}

// The job keeps its transports and their NICs. The device uses those that are near it.
void Job::meet_device(size_t index, const HostResources& resources) {
  if (index < resources.memory.devices.size()) {
    services_.data.staging.chunks().set_node(index, resources.memory.devices[index]);
  }
  if (index >= RankNic::kMaxDevices) return;
  const uint64_t bit = uint64_t{1} << index;
  const auto& transports = transports_.all();
  for (size_t i = 0; i < transports.size(); ++i) {
    JobTransport& each = *transports[i];
    const auto nic =
        std::find_if(resources.nics.begin(), resources.nics.end(), [&](const RankNic& candidate) {
          return !each.nic.empty() &&
                 (candidate.name.interface == each.nic || candidate.name.rdma_port == each.nic);
        });
    if (!each.nic.empty()) {
      const bool is_near = nic != resources.nics.end() && (nic->devices & bit) != 0 &&
                           !leaves_to_others(resources.links, index, each);
      each.devices = is_near ? each.devices | bit : each.devices & ~bit;
      services_.data.device_access.set_far(
          i, index, nic != resources.nics.end() && (nic->far_devices & bit) != 0);
    }
  }
  set_near_transports();
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
  services_.turns.begin_pass();
  moved += transports_.progress();
  WaitingCalls& calls = environment_.devices.calls();
  if (calls.may_make()) [[unlikely]]
    moved += calls.make_put_off();
  if (!services_.data.staging.idle()) moved += services_.data.staging.progress();
  if (!departures_.idle()) moved += departures_.progress();
  if (!tasks_.empty()) moved += tasks_.progress();
  if (services_.turns.has_work()) moved += services_.turns.run();
  if (!services_.data.graveyard.empty()) services_.data.graveyard.bury(services_.data.blocks);
  return moved;
}

void Job::tick(uint64_t now_ns) {
  try {
    run_timers(now_ns);
  } catch (const std::bad_alloc&) {
    out_of_memory();
  }
}

void Job::on_abandoned(size_t index) {
  services_.data.staging.on_abandoned(index);
  departures_.on_abandoned(index);
}

void Job::run_timers(uint64_t now_ns) {
  environment_.devices.look_at_abandoned();
  tasks_.tick(now_ns);
  idle_.tick(now_ns);
  paths_.tick(now_ns);
  stream_waits_.tick(now_ns);
  services_.turns.tick(now_ns);
  services_.data.staging.chunks().tidy();
}

uint64_t Job::next_timer_ns() const {
  // Abandoned copies are checked at this interval, so that their memory is freed soon after they
  // have ended.
  constexpr uint64_t kLookNs = 100'000'000;
  const uint64_t look_ns =
      environment_.devices.abandoned().none() ? kForever : services_.data.now_ns() + kLookNs;
  return std::min({look_ns, services_.turns.next_timer_ns(), idle_.next_timer_ns(),
                   paths_.next_timer_ns(), transports_.next_timer_ns(), tasks_.next_timer_ns(),
                   stream_waits_.next_timer_ns()});
}

bool Job::prepare_sleep(Sleep sleep) {
  try {
    return is_quiet(sleep);
  } catch (const std::bad_alloc&) {
    out_of_memory();
    return false;
  }
}

// Arms the events that wake a sleeping thread. Returns whether there is nothing to do.
bool Job::is_quiet(Sleep sleep) {
  bool quiet = tasks_.prepare_sleep(sleep);
  quiet =
      quiet && !has_work() && services_.data.staging.prepare_sleep() && departures_.prepare_sleep();
  return transports_.prepare_sleep(sleep) && quiet;
}

bool Job::may_sleep_on() const {
  return tasks_.may_sleep_on() && !has_work() && services_.data.staging.may_sleep_on() &&
         departures_.may_sleep_on() && transports_.may_sleep_on();
}

void Job::finish_sleep() {
  tasks_.finish_sleep();
  transports_.finish_sleep();
}

}  // namespace hetcomm
