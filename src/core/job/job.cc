// Job: life, connections and peers. Messages and operations are in job_operations.cc.
#include "src/core/job/job.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/ranges.h>

#include "src/base/bytes.h"
#include "src/base/descriptors.h"
#include "src/base/host_id.h"
#include "src/base/random.h"
#include "src/base/text.h"
#include "src/core/job/transport_choice.h"
#include "src/net/handshake.h"
#include "src/net/key.h"
#include "src/net/listening_socket.h"
#include "src/net/tls.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxDescriptor = 1024;
constexpr uint16_t kDescriptorVersion = 8;
constexpr uint8_t kRefusal = 2;  // in place of whether TLS is wanted
constexpr size_t kMostRefusal = 1000;
constexpr size_t kMaxCluster = 63;
// Of a waiting thread, where ranks share cores.
constexpr uint64_t kCrowdedSpinNs = 200'000;

// A transport's own text without its name in front: whoever shows it says the name.
std::string_view without_name(std::string_view name, std::string_view why) {
  constexpr std::string_view kAfter = ": ";
  const bool named = why.starts_with(name) && why.substr(name.size()).starts_with(kAfter);
  return named ? why.substr(name.size() + kAfter.size()) : why;
}

}  // namespace

Job::Job(const JobEnvironment& environment, int rank, int size)
    : environment_(environment),
      rank_(rank),
      size_(size),
      commons_(environment.engine, environment.log, environment.devices, environment.config,
               environment.overlaps, *this, *this, rank) {
  const auto count = static_cast<size_t>(size);
  peers_.resize(count);
  peer_status_.resize(count);
  pairs_.resize(count);
  attempts_.resize(count);
  const uint64_t share =
      environment.config.number(Variable::kUnexpectedBytes) / std::max<uint64_t>(count - 1, 1);
  const uint64_t credit = std::min(environment.config.number(Variable::kCreditBytes), share);
  commons_.credit_granted = static_cast<uint32_t>(std::clamp<uint64_t>(credit, 4096, 1u << 30));
}

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
  route_ = bootstrap.local_address();
  // Who cannot go on comes all the same, and tells the others why: they would wait for it.
  const Status own = prepare(options);
  if (!own.ok()) log().warn("communicator '{}' cannot be made: {}", options.name, own.text());
  const std::vector<std::byte> mine = own.ok() ? describe_self() : describe_refusal(own);
  const std::string scope = fmt::format("{}/epoch {}", options.name, options.epoch);
  auto all = bootstrap.allgather(scope, mine, options.deadline_ns);
  HETCOMM_RETURN_IF_ERROR(own);
  if (!all.ok()) return all.status();
  {
    const Engine::Baton baton(engine());
    std::vector<std::vector<Address>> control(static_cast<size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) {
      const auto index = static_cast<size_t>(rank);
      HETCOMM_RETURN_IF_ERROR(parse_peer(rank, all.value()[index], &control[index])
                                  .annotate(fmt::format("descriptor of rank {}", rank)));
    }
    gather_links();
    count_ranks_of_host();
    warn_of_loopback(control);
    warn_of_unreachable();
    commons_.channels.open();
    HETCOMM_RETURN_IF_ERROR(start_connections(std::move(control)));
  }
  return wait_for_control(options.deadline_ns);
}

bool Job::may_be_shared(const std::string& transports,
                        const std::optional<Secret>& configured_key) const {
  if (transports != wanted_transports_) return false;
  return configured_key ? !drew_key_ && *configured_key == credentials_.secret : drew_key_;
}

std::optional<JobOffer> Job::offer(const Channel& channel) {
  const Engine::Baton baton(engine());
  read_mail();
  JobOffer offer{.job = credentials_.identity, .rank = rank_, .channel = channel.id, .lost = {}};
  for (int rank = 0; rank < size_; ++rank) {
    if (!peer_status(rank).ok()) offer.lost.push_back(rank);
  }
  if (offer.lost.size() > kMostLostRanks) return std::nullopt;
  return offer;
}

Status Job::prepare(const JobOptions& options) {
  const Engine::Baton baton(engine());
  engine().refresh_now();
  HETCOMM_RETURN_IF_ERROR(make_control());
  HETCOMM_RETURN_IF_ERROR(make_transports(options.transports));
  HETCOMM_RETURN_IF_ERROR(read_link_model());
  HETCOMM_RETURN_IF_ERROR(draw_identity());
  engine().passes().add(this);
  return {};
}

Status Job::make_control() {
  if (size_ == 1) return {};
  Result<std::unique_ptr<liveness::ControlPlane>> control =
      liveness::ControlPlane::create(*environment_.control, log(), environment_.config,
                                     {.rank = rank_,
                                      .size = size_,
                                      .detection_ns = commons_.detection_ns,
                                      .credentials = credentials_,
                                      .doorbell = engine().doorbell(),
                                      .route = route_,
                                      .witness = witness_});
  if (!control.ok()) return control.status();
  control_ = std::move(control).value();
  commons_.control = control_.get();
  return {};
}

// What makes this job another one than all before: its id, which rank 0's descriptor tells, and
// the incarnation of each process.
Status Job::draw_identity() {
  uint64_t& incarnation = peers_[static_cast<size_t>(rank_)].incarnation;
  HETCOMM_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(&incarnation, 1))));
  return rank_ == 0 ? fill_random(credentials_.identity.mesh) : Status();
}

// Descriptors are complete: who connects can be judged from now on.
Status Job::start_connections(std::vector<std::vector<Address>> control) {
  auto incarnations = std::make_shared<std::vector<uint64_t>>();
  for (const PeerInfo& peer : peers_) incarnations->push_back(peer.incarnation);
  credentials_.incarnations = std::move(incarnations);
  for (const auto& entry : transports_) HETCOMM_RETURN_IF_ERROR(entry->transport->start());
  if (control_ == nullptr) {
    set_ready();
    return {};
  }
  std::vector<HostId> hosts;
  for (const PeerInfo& peer : peers_) hosts.push_back(peer.host);
  return control_->start(credentials_, std::move(control), std::move(hosts));
}

Status Job::make_transport(const TransportFactory& factory, size_t instance,
                           TransportEntry& entry) {
  const TransportEnvironment environment{.rank = rank_,
                                         .size = size_,
                                         .credentials = credentials_,
                                         .config = environment_.config,
                                         .log = log(),
                                         .poller = engine().poller(),
                                         .now_ns = engine().coarse_now(),
                                         .handler = entry,
                                         .instance = instance,
                                         .route = route_};
  Result<std::unique_ptr<Transport>> made = factory.create(environment);
  if (!made.ok()) return made.status();
  if (tls_required(environment_.config) && !(*made)->capabilities().protected_in_transit) {
    return Status(Code::kPermissionDenied,
                  "HETCOMM_REQUIRE_TLS refuses it, as nothing protects what it sends: use shm, or "
                  "tcp with HETCOMM_TLS=on, or unset HETCOMM_REQUIRE_TLS");
  }
  entry.kind = factory.name();
  entry.name =
      instance == 0 ? std::string(factory.name()) : fmt::format("{}#{}", factory.name(), instance);
  entry.transport = std::move(made.value());
  entry.abilities = entry.transport->abilities();
  return {};
}

Status Job::make_transports(std::string_view wanted) {
  if (wanted.empty()) wanted = environment_.config.text(Variable::kTransports);
  Result<TransportChoice> choice = TransportChoice::parse(wanted, environment_.factories);
  if (!choice.ok()) return choice.status();
  for (const auto& factory : environment_.factories) {
    // A rank talks to itself by "self" whatever is chosen for the others.
    if (!choice->allows(factory->name()) && factory->name() != "self") {
      unused_.push_back(fmt::format("{:<6} no: {}", factory->name(), choice->refusal()));
      continue;
    }
    Status usable;
    size_t instances = 1;
    for (size_t instance = 0; instance < instances; ++instance) {
      auto entry = std::make_unique<TransportEntry>(*this);
      usable = make_transport(*factory, instance, *entry);
      if (!usable.ok()) break;
      if (instance == 0) {
        instances = std::min<size_t>(factory->instances(environment_.config),
                                     environment_.config.number(Variable::kRails));
      }
      entry->index = transports_.size();
      if (const Capabilities& can = entry->transport->capabilities(); !can.lossless) {
        kept_payload_bytes_ = std::min(kept_payload_bytes_, can.max_payload_bytes);
      }
      transports_.push_back(std::move(entry));
      const TransportAbilities& can = transports_.back()->abilities;
      commons_.device_access.add(can.devices, transports_.back()->name);
      if (can.receipts != nullptr) witness_->add(*can.receipts);
    }
    if (usable.ok()) continue;
    const std::string_view why = without_name(factory->name(), usable.text());
    const bool some = !transports_.empty() && transports_.back()->kind == factory->name();
    if (choice->demands(factory->name()) && !some) {
      const Code code =
          usable.code() == Code::kPermissionDenied ? Code::kPermissionDenied : Code::kUnsupported;
      return Status(code, fmt::format("transport {}: {}", factory->name(), why));
    }
    if (!some) unused_.push_back(fmt::format("{:<6} no: {}", factory->name(), why));
    log().info("transport {} is not {}used: {}", factory->name(), some ? "wholly " : "", why);
  }
  return {};
}

Status Job::read_link_model() {
  const std::string_view cluster = environment_.config.text(Variable::kCluster);
  if (cluster.size() > kMaxCluster) {
    return Status(Code::kInvalidArgument,
                  fmt::format("HETCOMM_CLUSTER: more than {} characters", kMaxCluster));
  }
  const std::string_view path = environment_.config.text(Variable::kLinkModel);
  if (path.empty()) return {};
  Result<LinkModel> model = LinkModel::read(std::string(path));
  if (!model.ok()) return model.status();
  links_ = std::move(model).value();
  return {};
}

std::vector<std::byte> Job::describe_refusal(const Status& why) {
  ByteWriter writer;
  writer.write(kDescriptorVersion);
  writer.write(kRefusal);
  writer.write_string(why.text().substr(0, kMostRefusal));
  return writer.take();
}

std::vector<std::byte> Job::describe_self() const {
  ByteWriter writer;
  writer.write(kDescriptorVersion);
  writer.write(static_cast<uint8_t>(tls_wanted(environment_.config) ? 1 : 0));
  writer.write(peers_[static_cast<size_t>(rank_)].incarnation);
  writer.write_raw(credentials_.identity.mesh);
  writer.write_raw(read_host_id());
  writer.write_string(environment_.config.text(Variable::kCluster));
  writer.write(commons_.credit_granted);
  if (control_ != nullptr) {
    control_->encode_addresses(writer);
  } else {
    writer.write(uint8_t{0});
  }
  writer.write(static_cast<uint8_t>(transports_.size()));
  for (const auto& entry : transports_) {
    const Capabilities& can = entry->transport->capabilities();
    const Link* known = links_.find(entry->kind);
    const Link link = known != nullptr ? *known : Link{can.latency_ns, can.bandwidth_bytes_per_s};
    writer.write_string(entry->name);
    writer.write(static_cast<uint8_t>(can.within_host ? 1 : 0));
    writer.write(link.latency_ns);
    writer.write(link.bytes_per_s);
    writer.write_bytes(entry->transport->descriptor());
  }
  return writer.take();
}

Status Job::parse_peer(int rank, ConstByteSpan bytes, std::vector<Address>* control) {
  PeerInfo& peer = peers_[static_cast<size_t>(rank)];
  ByteReader reader(bytes);
  if (reader.read<uint16_t>() != kDescriptorVersion) {
    return Status(Code::kBootstrapFailed, "comes from another version of hetcomm");
  }
  const auto tells = reader.read<uint8_t>();
  if (tells == kRefusal) {
    return Status(Code::kBootstrapFailed,
                  "it cannot take part: " + printable(reader.read_string(kMostRefusal)));
  }
  // Told apart here, where both sides learn of it at once.
  const bool tls = tls_wanted(environment_.config);
  if ((tells != 0) != tls) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("it has HETCOMM_TLS={}, rank {} has HETCOMM_TLS={}: set it alike on "
                              "all ranks",
                              tls ? "off" : "on", rank_, tls ? "on" : "off"));
  }
  const auto incarnation = reader.read<uint64_t>();
  if (rank == rank_ && incarnation != peer.incarnation) {
    return Status(Code::kBootstrapFailed, "comes from another process: two have the same rank");
  }
  peer.incarnation = incarnation;
  const ConstByteSpan id = reader.read_raw(credentials_.identity.mesh.size());
  if (rank == 0) std::copy(id.begin(), id.end(), credentials_.identity.mesh.begin());
  const ConstByteSpan host = reader.read_raw(peer.host.size());
  std::copy(host.begin(), host.end(), peer.host.begin());
  peer.cluster = reader.read_string(kMaxCluster);
  peer.credit = reader.read<uint32_t>();
  Result<std::vector<Address>> addresses = liveness::ControlPlane::decode_addresses(reader);
  if (!addresses.ok()) return addresses.status();
  *control = std::move(addresses.value());
  const auto count = reader.read<uint8_t>();
  for (size_t i = 0; i < count; ++i) {
    PeerInfo::Offer offer;
    offer.name = reader.read_string(15);
    offer.within_host = reader.read<uint8_t>() != 0;
    const auto latency_ns = reader.read<uint64_t>();
    offer.link = Link::bounded(latency_ns, reader.read<uint64_t>());
    const ConstByteSpan descriptor = reader.read_bytes(kMaxDescriptor);
    offer.descriptor.assign(descriptor.begin(), descriptor.end());
    peer.offers.push_back(std::move(offer));
  }
  if (!reader.finished()) return Status(Code::kBootstrapFailed, "cannot be read");
  return {};
}

void Job::count_ranks_of_host() {
  const auto own = peers_[static_cast<size_t>(rank_)].host;
  const auto ranks = std::count_if(peers_.begin(), peers_.end(),
                                   [&](const PeerInfo& peer) { return peer.host == own; });
  const std::string_view yield = environment_.config.text(Variable::kYield);
  const bool crowded = ranks > sysconf(_SC_NPROCESSORS_ONLN);
  if (yield == "on" || (yield == "auto" && crowded)) engine().spin().set_yields(true);
  if (crowded && !environment_.config.is_set(Variable::kSpinTime)) {
    engine().spin().set_spin(kCrowdedSpinNs);
  }
  if (crowded) log().info("{} ranks share this host: polling yields the core", ranks);
}

// Ranks of other hosts that are offered loopback only would look for this rank on themselves. Those
// hosts may be namespaces of one machine, so what tells them apart is whose addresses they have.
void Job::warn_of_loopback(const std::vector<std::vector<Address>>& control) {
  Result<std::vector<InterfaceAddress>> chosen = choose_interfaces(environment_.config, route_);
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
  log().warn(
      "rank {} runs on another host, and this rank has loopback addresses only to offer: is an "
      "interface down, or left out by HETCOMM_INTERFACE='{}'?",
      far - control.begin(), environment_.config.text(Variable::kInterface));
}

// Operations with such a rank fail, each with the reason; one line tells before them.
void Job::warn_of_unreachable() {
  std::vector<int> unreachable;
  std::string why;  // for the first of them
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const std::vector<Candidate> ways = candidates(rank);
    const bool some = std::any_of(ways.begin(), ways.end(), [](const Candidate& way) {
      return way.reach.ok() || way.reach.code() == Code::kOutOfResources;
    });
    if (some) continue;
    if (unreachable.empty()) {
      for (const Candidate& way : ways) {
        why += fmt::format("; {}: {}", way.entry->name, way.reach.text());
      }
    }
    unreachable.push_back(rank);
  }
  if (unreachable.empty()) return;
  std::vector<std::string_view> mine;
  for (const auto& entry : transports_) mine.push_back(entry->name);
  std::vector<std::string> theirs;
  for (const PeerInfo::Offer& offer : peers_[static_cast<size_t>(unreachable.front())].offers) {
    theirs.push_back(printable(offer.name));
  }
  const std::string more = unreachable.size() > 1
                               ? fmt::format(", nor this one and {} more", unreachable.size() - 1)
                               : "";
  log().warn("rank {} offers {}, rank {} offers {}: no transport joins them{}{}", rank_,
             fmt::join(mine, ", "), unreachable.front(), fmt::join(theirs, ", "), more, why);
}

Status Job::wait_for_control(uint64_t deadline_ns) {
  // Polling would take the processors from ranks that are not as far.
  engine().wait_asleep(deadline_ns, [this] { return ready_.load(std::memory_order_acquire); });
  const Engine::Baton baton(engine());
  if (!failed_.ok()) return Status(Code::kBootstrapFailed, std::string(failed_.text()));
  if (ready_.load(std::memory_order_relaxed)) return engine().start_background();
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
  commons_.channels.for_each_table([](MatchTable& table) {
    while (Incoming* message = table.first_unexpected()) {
      table.remove_unexpected(message);
      if (!message->pair->forget(*message)) message->pair->free_incoming(message);
    }
  });
  while (!commons_.graveyard.empty()) {
    commons_.graveyard.bury(commons_.blocks);  // what refers to pairs
  }
  commons_.schedule.clear();
  pairs_.clear();
  while (!commons_.graveyard.empty()) commons_.graveyard.bury(commons_.blocks);
  connected_.clear();
  commons_.device_access.close();
  witness_->close();
  transports_.clear();
}

// --- pairs and connections --------------------------------------------------

Pair& Job::make_pair(int rank) {
  std::unique_ptr<Pair>& made = pairs_[static_cast<size_t>(rank)];
  if (active_pairs_.capacity() == active_pairs_.size()) {
    active_pairs_.reserve(2 * active_pairs_.size() + 1);
  }
  auto pair = std::make_unique<Pair>(commons_, rank, credit_granted_by(rank));
  commons_.schedule.add(*pair);
  active_pairs_.push_back(pair.get());
  made = std::move(pair);
  const Status& status = peer_status_[static_cast<size_t>(rank)];
  if (!status.ok()) made->lose(status);
  return *made;
}

std::vector<Job::Candidate> Job::candidates(int rank) {
  std::vector<Candidate> result;
  for (const auto& owned : transports_) {
    TransportEntry& entry = *owned;
    if ((entry.name == "self") != (rank == rank_)) continue;
    const Capabilities& capabilities = entry.transport->capabilities();
    Candidate candidate{.entry = &entry,
                        .descriptor = nullptr,
                        .reach = Status(Code::kUnsupported,
                                        "the peer does not offer it: its HETCOMM_TRANSPORTS leaves "
                                        "it out, or it cannot use it")};
    candidate.score_us = score_of(capabilities);
    if (Pair* found = find_pair(rank); found != nullptr) {
      candidate.cooling = found->is_cooling(entry.index);
    }
    for (const PeerInfo::Offer& offer : peers_[static_cast<size_t>(rank)].offers) {
      if (offer.name != entry.name) continue;
      candidate.descriptor = &offer.descriptor;
      candidate.reach = entry.transport->reach(offer.descriptor);
    }
    result.push_back(std::move(candidate));
  }
  std::stable_sort(result.begin(), result.end(), [](const Candidate& a, const Candidate& b) {
    if (a.reach.ok() != b.reach.ok()) return a.reach.ok();
    return a.cooling != b.cooling ? b.cooling : a.score_us < b.score_us;
  });
  return result;
}

void Job::connect_over(Pair& pair, size_t index) {
  TransportEntry& entry = *transports_[index];
  for (const PeerInfo::Offer& offer : peers_[static_cast<size_t>(pair.rank())].offers) {
    if (offer.name != entry.name) continue;
    log().info("rank {}: trying {} beside", pair.rank(), offer.name);
    entry.transport->connect(pair.rank(), offer.descriptor);
    return;
  }
}

std::vector<size_t> Job::useful_beside(int rank, size_t index) {
  std::vector<size_t> result;
  if (transports_.size() < 2 || transports_[index]->transport->capabilities().lossless) {
    return result;
  }
  const double own = score_of(transports_[index]->transport->capabilities());
  for (const Candidate& candidate : candidates(rank)) {
    if (!candidate.reach.ok() || candidate.entry->index == index) continue;
    const bool shares = candidate.entry->kind == transports_[index]->kind;
    if (shares || candidate.score_us * kClearlyBetter < own) {
      result.push_back(candidate.entry->index);
    }
  }
  return result;
}

// Transports that lose nothing count where they reach |rank|: they may take over.
uint32_t Job::kept_payload_bytes(int rank) {
  uint32_t least = kept_payload_bytes_;
  for (const Candidate& candidate : candidates(rank)) {
    const Capabilities& can = candidate.entry->transport->capabilities();
    if (can.lossless && candidate.reach.ok()) least = std::min(least, can.max_payload_bytes);
  }
  return least;
}

bool Job::has_common_transport(int rank) const {
  const auto& offers = peers_[static_cast<size_t>(rank)].offers;
  return std::any_of(transports_.begin(), transports_.end(), [&](const auto& entry) {
    return entry->name != "self" &&
           std::any_of(offers.begin(), offers.end(),
                       [&](const PeerInfo::Offer& offer) { return offer.name == entry->name; });
  });
}

void Job::connect(Pair& pair) {
  auto& attempt = attempts_[static_cast<size_t>(pair.rank())];
  attempt = std::make_unique<Attempt>();
  attempt->candidates = candidates(pair.rank());
  try_next(pair);
}

void Job::try_next(Pair& pair) {
  auto& attempt = attempts_[static_cast<size_t>(pair.rank())];
  attempt->since_ns = engine().refresh_now();
  while (attempt->next < attempt->candidates.size()) {
    const Candidate& candidate = attempt->candidates[attempt->next];
    if (candidate.reach.ok()) {
      log().info("rank {}: trying {} (estimate {:.1f} us for 64 KiB)", pair.rank(),
                 candidate.entry->name, candidate.score_us);
      if (pair.stop_connecting(candidate.entry->index)) {
        candidate.entry->transport->cancel_connect(pair.rank());
      }
      candidate.entry->transport->connect(pair.rank(), *candidate.descriptor);
      return;
    }
    ++attempt->next;
    attempt->failures += fmt::format("; {}: {}", candidate.entry->name, candidate.reach.text());
    log().info("rank {}: not over {}: {}", pair.rank(), candidate.entry->name,
               candidate.reach.text());
  }
  const bool may_change = std::any_of(
      attempt->candidates.begin(), attempt->candidates.end(), [](const Candidate& candidate) {
        return candidate.reach.ok() || candidate.reach.code() == Code::kOutOfResources;
      });
  const Status why(Code::kUnreachable,
                   fmt::format("no transport reaches it{}",
                               attempt->failures.empty() ? "; none is usable" : attempt->failures));
  attempt.reset();
  pair.connect_failed(why, may_change);
}

// Whether a connection within the host failed because this rank computed for longer than the peer
// waits for a proof. It is tried once more then: nothing is wrong with it.
bool Job::was_late(Attempt& attempt) {
  const TransportEntry& entry = *attempt.candidates[attempt.next].entry;
  if (attempt.late || !entry.transport->capabilities().within_host) return false;
  attempt.late = engine().refresh_now() - attempt.since_ns >= kHandshakeTimeoutNs;
  return attempt.late;
}

// Nobody else knows of the connection, or of its failure: it is not left half made.
template <typename Upcall>
void Job::TransportEntry::guarded(int peer, Upcall&& upcall) {
  try {
    upcall();
  } catch (const std::bad_alloc&) {
    if (Pair* found = job.find_pair(peer); found != nullptr) found->out_of_memory();
  }
}

void Job::TransportEntry::on_connected(int peer, Result<std::unique_ptr<Endpoint>> endpoint) {
  const bool short_of_descriptors = endpoint.status().code() == Code::kOutOfResources;
  guarded(peer, [&] { connected(peer, std::move(endpoint)); });
  if (short_of_descriptors) job.close_idle_connections();
}

void Job::TransportEntry::connected(int peer, Result<std::unique_ptr<Endpoint>> endpoint) {
  auto& attempt = job.attempts_[static_cast<size_t>(peer)];
  if (attempt == nullptr || attempt->next >= attempt->candidates.size() ||
      attempt->candidates[attempt->next].entry != this) {
    if (endpoint.ok()) {
      adopt(peer, std::move(endpoint.value()));
    } else {
      job.pair(peer).connect_failed(index, endpoint.status());
    }
    return;
  }
  if (endpoint.ok()) {
    attempt.reset();
    adopt(peer, std::move(endpoint.value()));
    return;
  }
  job.log().info("rank {}: {} failed: {}", peer, name, endpoint.status().text());
  if (job.was_late(*attempt)) {
    job.try_next(job.pair(peer));
    return;
  }
  attempt->failures += fmt::format("; {}: {}", name, endpoint.status().text());
  ++attempt->next;
  job.try_next(job.pair(peer));
}

void Job::TransportEntry::on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) {
  // Only the lower rank of a pair connects.
  if (peer < 0 || peer >= job.rank_) return;
  guarded(peer, [&] { adopt(peer, std::move(endpoint)); });
}

void Job::TransportEntry::adopt(int peer, std::unique_ptr<Endpoint> endpoint) {
  job.note_connected(*transport);
  job.pair(peer).adopt(std::move(endpoint), name, index);
  job.close_idle_connections();
}

void Job::note_connected(Transport& transport) {
  if (std::find(connected_.begin(), connected_.end(), &transport) == connected_.end()) {
    connected_.push_back(&transport);
  }
}

void Job::close_idle_connections() {
  constexpr uint64_t kFirstPauseNs = 10'000'000;
  constexpr uint64_t kLongestPauseNs = 1'000'000'000;
  close_idle_at_ns_ = kForever;
  if (!descriptors_run_short()) {
    close_idle_pause_ns_ = kFirstPauseNs;
    return;
  }
  // Two of them, since a peer may refuse.
  std::array<Pair*, 2> most_idle{};
  std::array<uint32_t, 2> looks{};
  const uint64_t now = engine().refresh_now();
  for (Pair* const pair : active_pairs_) {
    const uint32_t count = pair->count_idle();
    if (pair->rank() == rank_ || !pair->may_close_idle(now)) continue;
    if (most_idle[0] == nullptr || count > looks[0]) {
      most_idle = {pair, most_idle[0]};
      looks = {count, looks[0]};
    } else if (most_idle[1] == nullptr || count > looks[1]) {
      most_idle[1] = pair;
      looks[1] = count;
    }
  }
  // While there is nobody to ask it looks less and less often.
  close_idle_pause_ns_ =
      most_idle[0] != nullptr ? kFirstPauseNs : std::min(2 * close_idle_pause_ns_, kLongestPauseNs);
  close_idle_at_ns_ = now + close_idle_pause_ns_;
  for (Pair* const pair : most_idle) {
    if (pair != nullptr) pair->ask_to_close_idle();
  }
}

// --- registered memory ------------------------------------------------------

namespace {

Result<RemoteKey> publish_over(RegionPublisher& publisher, const Region& region) {
  try {
    return publisher.publish(region);
  } catch (const std::bad_alloc&) {
    return Code::kOutOfMemory;
  }
}

}  // namespace

void Job::publish(Registration& registration) {
  registration.id = commons_.registrations.insert(&registration);
  Memory& memory = registration.memory();
  const bool on_host = memory.host_accessible();
  int file = -1;
  uint64_t file_offset = 0;
  const DeviceTable& table = *memory.device().table;
  if (table.shared_file != nullptr && memory.owned() &&
      table.shared_file(memory.device().instance, memory.address(), &file, &file_offset) !=
          HETCOMM_OK) {
    file = -1;
  }
  for (const auto& entry : transports_) {
    const Capabilities& capabilities = entry->transport->capabilities();
    if (!capabilities.regions && !(capabilities.map && file >= 0)) continue;
    if (!commons_.device_access.reaches(memory, entry->index)) continue;
    const uint32_t rights = registration.rights();
    Region region{
        .address = on_host ? static_cast<std::byte*>(memory.address()) : memory.known_window(),
        .length = memory.size(),
        .writable = (rights & HETCOMM_ACCESS_PUT) != 0,
        .readable = (rights & HETCOMM_ACCESS_GET) != 0,
        .atomic = (rights & HETCOMM_ACCESS_ATOMIC) != 0,
        .file = file,
        .file_offset = file_offset,
        .members = {}};
    if (capabilities.map) {
      region.members.resize(static_cast<size_t>(size_));
      for (const int rank : registration.communicator().ranks()) {
        region.members[static_cast<size_t>(rank)] = true;
      }
    }
    // Nothing is published that is not noted here, to be withdrawn.
    registration.keys.emplace_back(entry->name, RemoteKey{});
    Result<RemoteKey> key = publish_over(*entry->abilities.regions, region);
    if (key.ok()) {
      registration.keys.back().second = key.value();
    } else {
      registration.keys.pop_back();
      log().info("memory of {} bytes is not reached by {} directly: {}", memory.size(), entry->name,
                 key.status().text());
    }
  }
}

bool Job::withdraw(Registration& registration) {
  std::erase_if(registration.keys, [&](const auto& named) {
    return std::all_of(transports_.begin(), transports_.end(), [&](const auto& entry) {
      return entry->name != named.first || entry->abilities.regions->withdraw(named.second);
    });
  });
  return registration.keys.empty();
}

ExportedMemory Job::export_memory(const Registration& registration) const {
  return {.job = credentials_.identity,
          .rank = rank_,
          .id = registration.id,
          .length = registration.memory().size(),
          .rights = registration.rights(),
          .host_accessible = registration.memory().host_accessible(),
          .needs_flush = registration.memory().needs_flush(),
          .keys = registration.keys};
}

Status Job::find_keys(const ExportedMemory& exported, std::vector<RemoteKey>* keys) const {
  if (exported.job != credentials_.identity) {
    return Status(Code::kPermissionDenied,
                  "the memory belongs to another job or epoch, or to a communicator that is gone");
  }
  if (exported.rank < 0 || exported.rank >= size_) {
    return Status(Code::kOutOfRange, fmt::format("the job has no rank {}", exported.rank));
  }
  keys->assign(transports_.size(), {});
  for (const auto& [name, key] : exported.keys) {
    for (size_t i = 0; i < transports_.size(); ++i) {
      if (transports_[i]->name == name) (*keys)[i] = key;
    }
  }
  return {};
}

std::string Job::explain(int rank) {
  std::string text = fmt::format("path to rank {}:\n", rank);
  const Pair* found = find_pair(rank);
  for (const Candidate& candidate : candidates(rank)) {
    std::string verdict =
        candidate.reach.ok()
            ? fmt::format("possible, estimate {:.1f} us for 64 KiB", candidate.score_us)
            : fmt::format("no: {}", candidate.reach.text());
    if (found != nullptr) {
      for (const hetcomm_counters_t& counters : found->counters()) {
        if (candidate.entry->name == counters.transport && counters.connected != 0)
          verdict += "; in use";
      }
    }
    text += fmt::format("  {:<6} {}\n", candidate.entry->name, verdict);
  }
  if (rank != rank_) {
    for (const std::string& unused : unused_) text += fmt::format("  {}\n", unused);
  }
  if (rank != rank_) text += commons_.device_access.explain();
  if (Pair* pair = find_pair(rank); pair != nullptr) {
    if (pair->rails() > 0) {
      pair->for_each_rail([&](Rail& rail) {
        text += fmt::format("  connection: {}\n", rail.endpoint().describe());
      });
      constexpr uint64_t kSizes[] = {128u << 10, 1u << 20, 8u << 20, 64u << 20};
      for (const uint64_t size : kSizes) {
        const double put = pair->chooser().cost(size, false);
        const double get = pair->chooser().cost(size, true);
        if (put > 0 && get > 0) {
          text += fmt::format("  bulk of {} KiB measured: copied {:.1f} GB/s, read {:.1f} GB/s\n",
                              size >> 10, 1 / put, 1 / get);
        }
      }
    } else if (pair->state() == Pair::State::kLost) {
      text += fmt::format("  lost: {}\n", pair->lost_because().text());
    } else {
      text += "  not connected yet\n";
    }
  } else {
    text += "  not connected yet: a connection is made when the pair first talks\n";
  }
  return text;
}

bool Job::flushed() const {
  return std::all_of(active_pairs_.begin(), active_pairs_.end(),
                     [](const Pair* pair) { return pair->flushed(); });
}

void Job::ask_for_acknowledgements() {
  for (Pair* pair : active_pairs_) pair->ask_for_acknowledgement();
}

// --- what the control plane says --------------------------------------------

void Job::read_mail() {
  // A death makes progress(), which would come back to here.
  if (control_ == nullptr || reading_mail_) return;
  reading_mail_ = true;
  std::unique_ptr<liveness::Mail> mail = control_->mailbox().take();
  for (; mail != nullptr; mail = std::move(mail->next)) {
    try {
      handle(*mail);
    } catch (const std::bad_alloc&) {
      out_of_memory();
    }
  }
  reading_mail_ = false;
}

void Job::handle(const liveness::Mail& mail) {
  using Type = liveness::Mail::Type;
  switch (mail.type) {
    case Type::kReady:
      set_ready();
      break;
    case Type::kDead:
      on_peer_lost(mail.rank, Status(Code::kPeerLost, mail.text));
      break;
    case Type::kLeft:
      on_peer_left(mail.rank);
      break;
    case Type::kDeclaredDead:
      on_declared_lost(Status(Code::kPeerLost, mail.text));
      break;
    case Type::kAborted:
      on_abort(mail.rank, mail.communicator, mail.text);
      break;
    case Type::kFailed: {
      const bool told = mail.code == Code::kMismatch || mail.code == Code::kPeerLost ||
                        mail.code == Code::kUnreachable;
      on_collectives_failed(mail.rank, mail.communicator,
                            Status(told ? mail.code : Code::kAborted, mail.text));
      break;
    }
    case Type::kKnock:
      on_knock(mail.rank, static_cast<uint32_t>(mail.value));
      break;
    case Type::kRefused:
      on_refused(mail.rank, mail.text);
      break;
    case Type::kGivenUp:
      on_given_up(mail.rank, mail.text);
      break;
    case Type::kCall:
      on_call(mail.rank, mail.communicator, std::as_bytes(std::span(mail.text)));
      break;
    case Type::kAnswer:
      on_path_answer(mail.rank, mail.value, std::as_bytes(std::span(mail.text)));
      break;
    case Type::kVouched:
      on_vouched(mail.rank);
      break;
    case Type::kSuspected:
      on_suspected(mail.rank);
      break;
  }
}

// The control plane hears nothing of |rank|; its own connection may be the cause.
void Job::on_suspected(int rank) {
  Pair* found = find_pair(rank);
  if (found != nullptr &&
      found->has_received_since_asked(engine().refresh_now(), commons_.detection_ns / 3))
    control_->note_data(rank);
}

void Job::on_doubt(int rank, const StreamId& stream) {
  try {
    control_->ask(rank, encode_question(stream), engine().refresh_now());
  } catch (const std::bad_alloc&) {
    // The transport asks again.
  }
}

void Job::on_path_answer(int rank, uint64_t asked_ns, ConstByteSpan bytes) {
  PathAnswer answer;
  Pair* found = find_pair(rank);
  if (found == nullptr || !decode_answer(bytes, &answer)) return;
  answer.receipt.asked_ns = asked_ns;
  log().debug("a connection is silent; {} bytes of it have arrived at rank {}, which {}",
              answer.receipt.received_bytes, rank,
              answer.receipt.full ? "does not read" : "has room");
  found->for_each_rail([&](Rail& rail) {
    DoubtResolver* const doubts = rail.abilities().doubts;
    if (doubts != nullptr) doubts->resolve(answer.stream, answer.receipt);
  });
}

void Job::on_vouched(int rank) {
  if (Pair* found = find_pair(rank); found != nullptr) found->vouched();
}

void Job::on_rank_lost(int rank, const Status& why) {
  if (auto& attempt = attempts_[static_cast<size_t>(rank)]; attempt != nullptr) {
    if (attempt->next < attempt->candidates.size()) {
      attempt->candidates[attempt->next].entry->transport->cancel_connect(rank);
    }
    attempt.reset();
  }
  peer_status_[static_cast<size_t>(rank)] = why;
  engine().note_arrival();  // who probes for a message of it has to look again
  fail_receives(rank, why);
  for (JobMember* communicator : communicators_) communicator->peer_lost(rank);
}

void Job::on_peer_lost(int rank, const Status& why) {
  if (!ready_.load(std::memory_order_relaxed)) {
    failed_ = why;
    set_ready();
  }
  if (!peer_status_[static_cast<size_t>(rank)].ok()) return;
  // What it sent before is taken as far as it is here.
  constexpr int kMostPasses = 256;
  for (int pass = 0; pass < kMostPasses && progress() > 0; ++pass) {
  }
  lose(rank, why);
}

void Job::lose(int rank, const Status& why) {
  if (Pair* found = find_pair(rank); found != nullptr) {
    found->lose(why);  // everything of it is quiet before any operation ends
  } else {
    on_rank_lost(rank, why);
  }
}

void Job::on_peer_left(int rank) {
  if (Pair* found = find_pair(rank); found != nullptr && found->state() != Pair::State::kIdle) {
    found->peer_left();
    return;
  }
  lose(rank, status_or_code(Code::kPeerLost, [&] { return fmt::format("rank {} left", rank); }));
}

void Job::on_declared_lost(const Status& why) {
  const Status declared = status_or_code(
      why.code(), [&] { return fmt::format("this rank was declared lost: {}", why.text()); });
  declared_lost_ = true;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) on_peer_lost(rank, declared);
  }
}

void Job::on_knock(int rank, uint32_t lost) { pair(rank).knocked(lost); }

void Job::on_refused(int rank, const std::string& why) {
  if (Pair* found = find_pair(rank); found != nullptr && found->rail() == nullptr) {
    found->refused_by_peer(Status(Code::kUnreachable, why));
  }
}

void Job::on_given_up(int rank, const std::string& why) {
  if (Pair* found = find_pair(rank); found != nullptr) found->lose(Status(Code::kPeerLost, why));
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

// In the middle of something of nobody knows whom: nothing can be promised to anybody any more.
void Job::out_of_memory() {
  for (size_t i = 0; i < active_pairs_.size(); ++i) active_pairs_[i]->out_of_memory();
}

int Job::make_progress() {
  int moved = 0;
  if (control_ != nullptr && control_->mailbox().waiting()) read_mail();
  commons_.schedule.begin_pass();
  if ((++passes_ & 15) == 0) {
    for (const auto& entry : transports_) moved += entry->transport->progress();
  } else {
    for (Transport* transport : connected_) moved += transport->progress();
  }
  if (!commons_.staging.idle()) moved += commons_.staging.progress();
  if (!tasks_.empty()) moved += progress_tasks();
  if (commons_.schedule.has_work()) moved += commons_.schedule.run();
  if (!commons_.graveyard.empty()) commons_.graveyard.bury(commons_.blocks);
  return moved;
}

bool Job::tasks_ready() const {
  return std::any_of(tasks_.begin(), tasks_.end(),
                     [](const JobTask* task) { return task->ready(); });
}

// A task takes itself out of the list when it has nothing left.
int Job::progress_tasks() {
  int moved = 0;
  for (size_t i = tasks_.size(); i-- > 0;) {
    if (i < tasks_.size()) moved += tasks_[i]->progress();
  }
  return moved;
}

void Job::set_ready() {
  ready_.store(true, std::memory_order_release);
  engine().note_arrival();  // wakes the thread that creates the job
}

void Job::tick(uint64_t now_ns) {
  try {
    run_timers(now_ns);
  } catch (const std::bad_alloc&) {
    out_of_memory();
  }
}

void Job::run_timers(uint64_t now_ns) {
  for (size_t i = 0; i < tasks_.size(); ++i) tasks_[i]->tick(now_ns);
  if (now_ns >= close_idle_at_ns_) close_idle_connections();
  commons_.schedule.tick(now_ns);
}

uint64_t Job::next_timer_ns() const {
  uint64_t next = std::min(commons_.schedule.next_timer_ns(), close_idle_at_ns_);
  for (const auto& entry : transports_) {
    next = std::min(next, entry->transport->next_timer_ns());
  }
  for (const JobTask* task : tasks_) next = std::min(next, task->next_timer_ns());
  return next;
}

bool Job::prepare_sleep(Sleep sleep) {
  bool quiet = true;
  for (size_t i = tasks_.size(); i-- > 0;) {
    if (i < tasks_.size()) {
      quiet = tasks_[i]->prepare_sleep(sleep == Sleep::kShort) && quiet;
    }
  }
  quiet = quiet && !has_work();
  for (const auto& entry : transports_) {
    quiet = entry->transport->prepare_sleep(sleep) && quiet;
  }
  return quiet;
}

bool Job::may_sleep_on() const {
  const bool tasks = std::all_of(tasks_.begin(), tasks_.end(),
                                 [](const JobTask* task) { return task->may_sleep_on(); });
  return tasks && !has_work() &&
         std::all_of(transports_.begin(), transports_.end(),
                     [](const auto& entry) { return entry->transport->may_sleep_on(); });
}

void Job::finish_sleep() {
  for (JobTask* task : tasks_) task->finish_sleep();
  for (const auto& entry : transports_) entry->transport->finish_sleep();
}

}  // namespace hetcomm
