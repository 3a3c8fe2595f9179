#include "transports/rdma/transport.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "src/base/text.h"
#include "transports/rdma/connect_attempt.h"

namespace hetcomm::rdma {
namespace {

constexpr uint32_t kMinConnections = 16;
constexpr uint32_t kCredits = 32;
constexpr uint32_t kPayloadBytes = 8192;
constexpr uint64_t kMinFragment = 4096;
constexpr uint64_t kMaxFragment = 16u << 20;
constexpr uint64_t kFragmentsInFlight = 4;
constexpr uint64_t kChunkBytes = 1u << 20;
constexpr uint32_t kLatencyNs = 3'000;
constexpr uint64_t kBandwidth = 8'000'000'000;
// Timers are a matter of seconds; looking at them in every progress() would be a waste.
constexpr uint64_t kTimerIntervalNs = 10'000'000;
// So often in the detection time silent connections are looked at.
constexpr uint64_t kProbes = 4;
// How long a stopped queue pair's flushed work is waited for; destroying it is the end in any case.
constexpr uint64_t kDrainNs = 200'000'000;
constexpr size_t kBatch = 32;
constexpr int kMaxRounds = 4;
// So many used receives are posted again together, or fewer when nothing comes: whoever waits for a
// message does not wait for that.
constexpr size_t kPostTogether = 8;
// What is unsignalled on connections that have nothing else to do is looked at in so many passes.
// To ask costs what a message costs, and shall not come between one and its answer.
constexpr uint64_t kTailPasses = 1024;
// In place of an id: the completion has been taken already.
constexpr uint64_t kTaken = uint64_t{1} << 62;

constexpr uint8_t kLongestTimeout = 31;  // the device's

// The exponent of the hardware's time-out: 4.096 us * 2^n.
uint8_t timeout_exponent(uint64_t duration_ns) {
  uint8_t exponent = 1;
  while (exponent < kLongestTimeout && (uint64_t{4096} << exponent) < duration_ns) ++exponent;
  return exponent;
}

// Soft-RoCE that sends again may do anything from then on (README.md, "Soft-RoCE"). It is given the
// whole time for the first try.
void forbid_retries(ConnectionSettings& settings) {
  const unsigned longer = settings.timeout + std::bit_width(unsigned{settings.retries});
  settings.timeout = static_cast<uint8_t>(std::min<unsigned>(longer, kLongestTimeout));
  settings.retries = 0;
}

}  // namespace

Settings read_settings(const Config& config) {
  Settings settings;
  settings.connection.traffic_class =
      static_cast<uint8_t>(std::min<uint64_t>(config.number(Variable::kRdmaTrafficClass), 255));
  settings.connection.timeout = timeout_exponent(config.number(Variable::kRdmaTimeout));
  settings.connection.retries =
      static_cast<uint8_t>(std::min<uint64_t>(config.number(Variable::kRdmaRetries), 7));
  settings.credits = kCredits;
  settings.slot_bytes = kPayloadBytes + 64;
  settings.fragment_bytes =
      std::clamp(config.number(Variable::kRdmaSlice), kMinFragment, kMaxFragment);
  settings.cache_bytes = config.number(Variable::kRdmaCacheBytes);
  settings.strict_keys = config.is_on(Variable::kRdmaStrictKeys);
  settings.connections = static_cast<uint32_t>(
      std::clamp<uint64_t>(config.number(Variable::kRdmaQueuePairs), 1, 1u << 20));
  Capabilities& capabilities = settings.capabilities;
  capabilities.put = true;
  capabilities.get = true;
  capabilities.target_sees_put = true;
  capabilities.regions = true;
  capabilities.device_memory = true;
  capabilities.max_exposed_segments = 1;
  capabilities.max_payload_bytes = kPayloadBytes;
  capabilities.eager_limit_bytes = config.number(Variable::kRdmaEager);
  capabilities.chunk_bytes = kChunkBytes;
  capabilities.latency_ns = kLatencyNs;
  capabilities.bandwidth_bytes_per_s = kBandwidth;
  return settings;
}

bool by_cm(const Config& config) { return config.text(Variable::kRdmaConnect) == "cm"; }

// --- set-up ----------------------------------------------------------------------------------

RdmaTransport::RdmaTransport(const TransportEnvironment& environment)
    : environment_(environment), settings_(read_settings(environment.config)) {}

RdmaTransport::~RdmaTransport() {
  arrivals_.clear();
  attempts_.clear();
  listener_.reset();
  manager_.reset();
  if (device_) {
    poller().remove(device_->channel()->fd, completion_watcher_);
    poller().remove(device_->context()->async_fd, async_watcher_);
    for (const Published& each : published_) (void)device_->verbs().dereg_mr(each.mr);
  }
  memory_regions_.reset();
  receives_.reset();
}

Result<std::unique_ptr<RdmaTransport>> RdmaTransport::create(
    const Verbs& verbs, const Cm* cm, const TransportEnvironment& environment) {
  std::unique_ptr<RdmaTransport> transport(new RdmaTransport(environment));
  HETCOMM_RETURN_IF_ERROR(transport->set_up(verbs, cm));
  return transport;
}

Status RdmaTransport::set_up(const Verbs& verbs, const Cm* cm) {
  const auto peers = static_cast<uint32_t>(std::max(environment_.size - 1, 1));
  const uint32_t connections = std::min(settings_.connections, std::max(peers, kMinConnections));
  Result<std::unique_ptr<Device>> device =
      Device::create(verbs, environment_.config, environment_.log, environment_.instance,
                     connections, settings_.credits);
  if (!device.ok()) return device.status();
  device_ = std::move(device).value();
  if (nic().max_message_bytes > 0) {
    settings_.fragment_bytes =
        std::min<uint64_t>(settings_.fragment_bytes, nic().max_message_bytes);
  }
  settings_.max_in_flight_bytes = kFragmentsInFlight * settings_.fragment_bytes;
  if (nic().is_soft_roce()) forbid_retries(settings_.connection);
  inbox_.reserve(2 * kBatch);
  receives_ = std::make_unique<ReceivePool>(*device_, settings_.slot_bytes);
  memory_regions_ = std::make_unique<MemoryRegionCache>(verbs, device_->pd(), settings_.cache_bytes,
                                                        settings_.strict_keys, environment_.log);
  HETCOMM_RETURN_IF_ERROR(watch_events());
  environment_.log.info("rdma: using {}", nic().describe());
  if (by_cm(environment_.config)) {
    Result<std::unique_ptr<ConnectionManager>> manager = ConnectionManager::create(
        cm, *device_, environment_.config, poller(), environment_.log, *this);
    if (!manager.ok()) return manager.status();
    manager_ = std::move(manager).value();
  }
  descriptor_.ethernet = nic().ethernet;
  descriptor_.by_cm = manager_ != nullptr;
  for (const Gid& gid : nic().gids) {
    if (is_usable(gid)) descriptor_.gids.push_back(gid);
  }
  descriptor_.nic = nic().name();
  return listen();
}

Status RdmaTransport::watch_events() {
  HETCOMM_RETURN_IF_ERROR(poller().add(device_->channel()->fd, EPOLLIN, completion_watcher_));
  return poller().add(device_->context()->async_fd, EPOLLIN, async_watcher_);
}

Status RdmaTransport::listen() {
  Result<std::unique_ptr<NetworkListener>> listener = NetworkListener::create(
      environment_.poller, environment_.log, environment_.config, environment_.route, "rdma",
      {.credentials = environment_.credentials, .role = Role::kRdma, .rank = environment_.rank},
      *this);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  descriptor_.place = listener_->place();
  return {};
}

// --- making connections ----------------------------------------------------------------------

std::vector<std::byte> RdmaTransport::descriptor() const { return encode_descriptor(descriptor_); }

Status RdmaTransport::start() { return listener_->open(environment_.credentials).annotate("rdma"); }

// How the owner of |bytes| is reached from here.
Result<RdmaTransport::Target> RdmaTransport::target_of(ConstByteSpan bytes) const {
  if (!broken_.ok()) return broken_;
  Result<Descriptor> decoded = decode_descriptor(bytes);
  if (!decoded.ok()) return decoded.status();
  if (decoded->ethernet != nic().ethernet) {
    return Status(Code::kUnsupported,
                  fmt::format("rdma: {} is {} here, the peer's {} is {}", nic().name(),
                              nic().ethernet ? "Ethernet" : "InfiniBand", decoded->nic,
                              decoded->ethernet ? "Ethernet" : "InfiniBand"));
  }
  if (decoded->by_cm != descriptor_.by_cm) {
    Status differs(Code::kUnsupported,
                   fmt::format("rdma: HETCOMM_RDMA_CONNECT is {} here and {} at the peer's {}: set "
                               "it alike on all ranks",
                               descriptor_.by_cm ? "cm" : "exchange",
                               decoded->by_cm ? "cm" : "exchange", decoded->nic));
    // Another transport may hide it.
    if (!std::exchange(told_, true)) environment_.log.warn("{}", differs.text());
    return differs;
  }
  Target target;
  bool found = false;
  for (const Gid& mine : nic().gids) {
    if (!is_usable(mine)) continue;
    const auto theirs = std::find_if(decoded->gids.begin(), decoded->gids.end(),
                                     [&](const Gid& gid) { return gid.kind == mine.kind; });
    if (theirs == decoded->gids.end()) continue;
    target.mine = mine;
    target.peer = theirs->bytes;
    found = true;
    break;
  }
  if (nic().gids.empty()) {
    return Status(Code::kUnsupported,
                  fmt::format("rdma: {} has no address any more", nic().name()));
  }
  if (!found) {
    return Status(Code::kUnsupported,
                  fmt::format("rdma: no kind of address in common: {} here ({}), {} at the peer's "
                              "{}; see HETCOMM_RDMA_GID_INDEX",
                              gid_kind_name(nic().gids.front().kind), nic().name(),
                              gid_kind_name(decoded->gids.front().kind), decoded->nic));
  }
  Result<std::vector<Address>> usable = usable_addresses(descriptor_.place, decoded->place);
  if (!usable.ok()) return usable.status().annotate("rdma");
  target.addresses = std::move(usable).value();
  return target;
}

Status RdmaTransport::reach(ConstByteSpan descriptor) const {
  return target_of(descriptor).status();
}

void RdmaTransport::connect(int peer, ConstByteSpan descriptor) {
  Result<Target> target = target_of(descriptor);
  attempts_.push_back(std::make_unique<ConnectAttempt>(*this, peer, target.status()));
  timers_checked_ns_ = 0;
  if (target.ok()) {
    attempts_.back()->start(std::move(target->addresses), target->mine, target->peer);
  }
}

void RdmaTransport::cancel_connect(int peer) {
  std::erase_if(attempts_, [&](const auto& attempt) { return attempt->peer() == peer; });
}

bool RdmaTransport::is_usable(const Gid& gid) const {
  return manager_ == nullptr || manager_->address_of(gid).has_value();
}

size_t RdmaTransport::queue_pairs() const {
  const auto alive = std::count_if(endpoints_.begin(), endpoints_.end(),
                                   [](RdmaEndpoint* each) { return each->pair() != nullptr; });
  return static_cast<size_t>(alive) + attempts_.size() + arrivals_.size();
}

Result<std::unique_ptr<QueuePair>> RdmaTransport::make_queue_pair() {
  if (!broken_.ok()) return broken_;
  // Whoever asks is counted already.
  const size_t count = queue_pairs();
  if (count > device_->max_connections()) {
    return Status(Code::kOutOfResources,
                  fmt::format("rdma: {}: all {} queue pairs are in use (HETCOMM_RDMA_QUEUE_PAIRS, "
                              "and what the device allows)",
                              nic().name(), device_->max_connections()));
  }
  HETCOMM_RETURN_IF_ERROR(receives_->ensure(static_cast<uint32_t>(count) * settings_.credits));
  return QueuePair::create(*device_, settings_.slot_bytes);
}

Parameters RdmaTransport::parameters_of(const QueuePair& pair, const Gid& mine,
                                        const GidBytes& peer) const {
  return {.queue_pair = pair.number(),
          .packet_sequence = pair.packet_sequence(),
          .lid = nic().lid,
          .mtu = nic().mtu,
          .read_depth = pair.read_depth(),
          .credits = static_cast<uint16_t>(settings_.credits),
          .slot_bytes = settings_.slot_bytes,
          .kind = mine.kind,
          .gid = mine.bytes,
          .peer_gid = peer};
}

void RdmaTransport::finish(ConnectAttempt& attempt,
                           Result<std::unique_ptr<Endpoint>> endpoint) noexcept {
  const auto at = std::find_if(attempts_.begin(), attempts_.end(),
                               [&](const auto& each) { return each.get() == &attempt; });
  const std::unique_ptr<ConnectAttempt> owned = std::move(*at);
  attempts_.erase(at);
  environment_.handler.on_connected(owned->peer(), std::move(endpoint));
}

void RdmaTransport::on_accept(StreamSocket socket, const Hello& hello) {
  if (hello.source < 0 || hello.source >= environment_.rank) {
    environment_.log.debug("rdma: refused rank {}: only lower ranks connect", hello.source);
    return;
  }
  const size_t before = arrivals_.size();
  bool started = false;
  try {
    // What arrives before the connection is complete is kept, as far as credits go.
    early_.reserve((before + 1) * settings_.credits);
    arrivals_.push_back(
        std::make_unique<Arrival>(*this, hello.source, std::move(socket).take_fd()));
    timers_checked_ns_ = 0;
    started = arrivals_.back()->start(hello.extra);
  } catch (const std::bad_alloc&) {
    environment_.log.error("rdma: no memory for a connection of rank {}", hello.source);
  }
  if (!started && arrivals_.size() > before) arrivals_.pop_back();
}

void RdmaTransport::on_request(const CmToken& token, std::unique_ptr<CmConnection> connection) {
  for (const auto& arrival : arrivals_) {
    if (arrival->awaits(token)) return arrival->take(std::move(connection));
  }
  environment_.log.debug("rdma: a connection by rdma_cm was refused: nobody waits for it");
  connection->refuse({});
}

void RdmaTransport::on_listener_lost(const Status& why) { break_all(why.text()); }

void RdmaTransport::finish(Arrival& arrival, std::unique_ptr<Endpoint> endpoint) noexcept {
  const auto at = std::find_if(arrivals_.begin(), arrivals_.end(),
                               [&](const auto& each) { return each.get() == &arrival; });
  const std::unique_ptr<Arrival> owned = std::move(*at);
  arrivals_.erase(at);
  if (endpoint) {
    environment_.handler.on_accepted(owned->peer(), std::move(endpoint));
    return;
  }
  // As quiesce() does, of a queue pair that has sent nothing.
  owned->stop();
  while (fetch() > 0) {
  }
  for (size_t i = next_; i < inbox_.size(); ++i) {
    if (inbox_[i].wr_id == kTaken || !owned->owns(inbox_[i].qp_num)) continue;
    receives_->recycle(static_cast<uint32_t>(inbox_[i].wr_id & ~kReceiveBit));
    inbox_[i].wr_id = kTaken;
  }
  std::erase_if(early_, [&](const ibv_wc& completion) {
    if (!owned->owns(completion.qp_num)) return false;
    receives_->recycle(static_cast<uint32_t>(completion.wr_id & ~kReceiveBit));
    return true;
  });
}

void RdmaTransport::add_endpoint(RdmaEndpoint& endpoint) {
  const auto is_mine = [&](const ibv_wc& each) { return each.qp_num == endpoint.number(); };
  // All that may fail for want of memory comes first. In a pass each endpoint may become active
  // again after it has left the list.
  const auto early = static_cast<size_t>(std::count_if(early_.begin(), early_.end(), is_mine));
  endpoints_.reserve(endpoints_.size() + 1);
  active_.reserve(active_.size() + 2 * (endpoints_.size() + 1));
  inbox_.reserve(inbox_.size() + early + kBatch);
  by_number_.insert_or_assign(endpoint.number(), &endpoint);
  endpoints_.push_back(&endpoint);
  // What its peer has sent meanwhile comes before all that is still to be handled.
  auto at = inbox_.begin() + static_cast<ptrdiff_t>(next_);
  for (const ibv_wc& each : early_) {
    if (is_mine(each)) at = inbox_.insert(at, each) + 1;
  }
  std::erase_if(early_, is_mine);
}

void RdmaTransport::remove_endpoint(RdmaEndpoint& endpoint) {
  std::erase(endpoints_, &endpoint);
  if (const auto at = by_number_.find(endpoint.number());
      at != by_number_.end() && at->second == &endpoint) {
    by_number_.erase(at);
  }
  if (last_ == &endpoint) last_ = nullptr;
  if (endpoint.active_index != RdmaEndpoint::kInactive) active_[endpoint.active_index] = nullptr;
}

// --- regions ---------------------------------------------------------------------------------

Result<RemoteKey> RdmaTransport::publish(const Region& region) {
  if (!broken_.ok()) return broken_;
  if (region.length == 0 || region.length >= kMaxKeyBytes) return Code::kInvalidArgument;
  const int access = (region.writable ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0) |
                     (region.readable ? IBV_ACCESS_REMOTE_READ : 0);
  // Room first: nothing is published and then forgotten.
  if (published_.size() == published_.capacity()) published_.reserve(2 * published_.size() + 4);
  Result<Registered> made = memory_regions_->register_alone(region.address, region.length, access);
  if (!made.ok()) return made.status();
  const RemoteKey key = encode_key({.address = made->address,
                                    .length = region.length,
                                    .rkey = made->mr->rkey,
                                    .immediate = (region.writable ? kRegionWritable : 0) |
                                                 (region.readable ? kRegionReadable : 0),
                                    .kind = KeyKind::kRegion});
  published_.push_back({key, made->mr});
  return key;
}

bool RdmaTransport::withdraw(const RemoteKey& key) {
  const auto at = std::find_if(published_.begin(), published_.end(),
                               [&](const Published& each) { return each.key == key; });
  if (at == published_.end()) return true;
  if (const int error = device_->verbs().dereg_mr(at->mr); error != 0) {
    environment_.log.error("rdma: a region cannot be withdrawn: {}", std::strerror(error));
    break_all("a region cannot be withdrawn");
  }
  published_.erase(at);
  return true;
}

// --- memory of devices -----------------------------------------------------------------------

Status RdmaTransport::check_device(const hetcomm::Device& device) {
  if (!broken_.ok()) return broken_;
  DeviceVerdict verdict = try_device(device_->verbs(), environment_, settings_.connection, device);
  if (!verdict.way) return {Code::kUnsupported, std::move(verdict.text)};
  device_ways_.emplace_back(device.instance, *verdict.way);
  return {Code::kOk, std::move(verdict.text)};
}

Status RdmaTransport::attach(const DeviceRange& range) {
  if (!broken_.ok()) return broken_;
  const auto at = std::find_if(device_ways_.begin(), device_ways_.end(), [&](const auto& known) {
    return known.first == range.device.instance;
  });
  if (at == device_ways_.end()) return Code::kUnsupported;
  return memory_regions_->attach(range, at->second);
}

void RdmaTransport::detach(const std::byte* window) { memory_regions_->detach(window); }

// --- progress --------------------------------------------------------------------------------

void RdmaTransport::activate(RdmaEndpoint& endpoint) {
  urgent_ = true;
  if (endpoint.active_index != RdmaEndpoint::kInactive) return;
  endpoint.active_index = active_.size();
  active_.push_back(&endpoint);
}

int RdmaTransport::progress() {
  int done = poll();
  if (urgent_) done += run_active();
  if (++passes_ % kTailPasses == 0) look_at_tails();
  if (environment_.now_ns >= timers_checked_ns_) done += run_timers();
  return done;
}

// Asks the device once. Returns how many completions came.
size_t RdmaTransport::fetch() {
  std::array<ibv_wc, kBatch> fresh;      // left as it is: most polls find nothing
  if (!make_room_for_batch()) return 0;  // they stay with the device
  const int got = device_->verbs().poll_cq(device_->cq(), kBatch, fresh.data());
  if (got > 0) inbox_.insert(inbox_.end(), fresh.begin(), fresh.begin() + got);
  if (got < 0 && broken_.ok()) break_all("the completion queue cannot be read");
  return static_cast<size_t>(std::max(got, 0));
}

// poll() empties the inbox first and always finds some.
bool RdmaTransport::make_room_for_batch() {
  if (inbox_.capacity() - inbox_.size() >= kBatch) [[likely]]
    return true;
  try {
    inbox_.reserve(2 * inbox_.size() + kBatch);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

int RdmaTransport::poll() {
  int done = 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    if (next_ == inbox_.size()) {
      inbox_.clear();
      next_ = 0;
      if (fetch() == 0) break;
    }
    const size_t count = inbox_.size() - next_;
    while (next_ < inbox_.size()) {
      // An upcall may add to the inbox.
      const ibv_wc completion = inbox_[next_++];
      handle(completion);
      ++done;
    }
    if (receives_->unposted() >= kPostTogether) post_receives();
    if (count < kBatch) break;
  }
  if (done == 0) post_receives();
  return done;
}

void RdmaTransport::post_receives() {
  if (!receives_->flush()) break_all("receives cannot be posted");
}

RdmaEndpoint* RdmaTransport::find(uint32_t number) {
  if (last_ != nullptr && last_->number() == number) return last_;
  const auto at = by_number_.find(number);
  if (at == by_number_.end()) return nullptr;
  last_ = at->second;
  return last_;
}

void RdmaTransport::handle(const ibv_wc& completion) {
  if (completion.wr_id == kTaken) return;
  if ((completion.wr_id & kReceiveBit) != 0) {
    handle_receive(completion);
  } else {
    handle_send(completion);
  }
}

std::string RdmaTransport::failure_text(const char* what, const ibv_wc& completion) const {
  return text_or_none([&] {
    return fmt::format("{}: {} (vendor error {:#x})", what,
                       device_->verbs().wc_status_str(completion.status), completion.vendor_err);
  });
}

void RdmaTransport::handle_receive(const ibv_wc& completion) {
  const uint64_t index = completion.wr_id & ~kReceiveBit;
  if (!receives_->valid(index)) return;
  const auto slot = static_cast<uint32_t>(index);
  RdmaEndpoint* endpoint = find(completion.qp_num);
  if (endpoint == nullptr || endpoint->pair() == nullptr) {
    const bool early = std::any_of(arrivals_.begin(), arrivals_.end(), [&](const auto& arrival) {
      return arrival->owns(completion.qp_num);
    });
    if (early && completion.status == IBV_WC_SUCCESS) {
      early_.push_back(completion);
    } else {
      receives_->recycle(slot);
    }
    return;
  }
  if (completion.status == IBV_WC_SUCCESS) {
    endpoint->on_received(completion, receives_->slot(slot));
  } else if (completion.status != IBV_WC_WR_FLUSH_ERR) {
    endpoint->break_off(failure_text("receiving failed", completion));
  } else {
    endpoint->break_off("the queue pair is in the error state");
  }
  receives_->recycle(slot);
}

void RdmaTransport::handle_send(const ibv_wc& completion) {
  RdmaEndpoint* endpoint = find(completion.qp_num);
  if (endpoint == nullptr || endpoint->pair() == nullptr) return;
  if (completion.status == IBV_WC_SUCCESS) {
    endpoint->on_sent(completion.wr_id);
    return;
  }
  // It and what came before it are over; the rest is flushed.
  endpoint->pair()->retire(completion.wr_id, [](const SendRecord&) {});
  endpoint->break_off(failure_text("sending failed", completion));
}

void RdmaTransport::quiesce(RdmaEndpoint& endpoint) {
  QueuePair& pair = *endpoint.pair();
  pair.stop();
  // What was done without asking for a completion gives none: a last request tells when all is
  // over. A device that takes none tells no more than it has told.
  bool tells = true;
  if (!pair.idle()) {
    pair.nudge();
    tells = pair.flush_last();
  }
  const uint64_t deadline = now_ns() + kDrainNs;
  size_t at = next_;
  while (true) {
    for (; at < inbox_.size(); ++at) {
      ibv_wc& completion = inbox_[at];
      if (completion.qp_num != endpoint.number() || completion.wr_id == kTaken) continue;
      if ((completion.wr_id & kReceiveBit) != 0) {
        receives_->recycle(static_cast<uint32_t>(completion.wr_id & ~kReceiveBit));
      } else {
        pair.retire(completion.wr_id, [](const SendRecord&) {});
      }
      completion.wr_id = kTaken;
    }
    if (!broken_.ok() || now_ns() >= deadline) break;
    // The queue is emptied in any case: many devices forget what a destroyed queue pair has left
    // there, with the receives that it stands for.
    if (fetch() > 0) continue;
    if (pair.idle() || !tells) break;
    sched_yield();
  }
}

int RdmaTransport::run_active() {
  int done = 0;
  bool urgent = false;
  urgent_ = false;
  const size_t count = active_.size();  // what becomes active meanwhile has its turn next time
  for (size_t i = 0; i < count; ++i) {
    RdmaEndpoint* endpoint = active_[i];
    if (endpoint == nullptr) continue;
    done += endpoint->progress();
    if (active_[i] != endpoint) continue;
    if (endpoint->has_urgent_work()) {
      urgent = true;
      continue;
    }
    if (endpoint->has_silent_tail()) continue;
    endpoint->active_index = RdmaEndpoint::kInactive;
    active_[i] = nullptr;
  }
  urgent_ = urgent_ || urgent;
  // Usually the last one has left, or none.
  while (!active_.empty() && active_.back() == nullptr) active_.pop_back();
  if (active_.size() < 2) return done;
  size_t kept = 0;
  for (RdmaEndpoint* endpoint : active_) {
    if (endpoint == nullptr) continue;
    endpoint->active_index = kept;
    active_[kept++] = endpoint;
  }
  active_.resize(kept);
  return done;
}

void RdmaTransport::look_at_tails() {
  // A device that fails meanwhile makes others active.
  for (size_t i = 0, count = active_.size(); i < count; ++i) {
    if (active_[i] != nullptr) active_[i]->look_at_tail();
  }
}

int RdmaTransport::run_timers() {
  const uint64_t now = environment_.now_ns;
  timers_checked_ns_ = now + kTimerIntervalNs;
  listener_->expire(now);
  int done = 0;
  // An upcall may start and cancel attempts: ask for the next due one until there is none.
  const auto run = [&](auto& list) {
    for (size_t left = list.size(); left > 0; --left) {
      const auto due = std::find_if(list.begin(), list.end(),
                                    [&](const auto& each) { return each->next_timer_ns() <= now; });
      if (due == list.end()) break;
      (*due)->expire(now);
      ++done;
    }
  };
  run(attempts_);
  run(arrivals_);
  if (suspects_) check_suspects(now);
  if (now >= next_probe_ns_) probe_idle(now);
  return done;
}

// A connection on which this side only waits learns of a cut by asking.
void RdmaTransport::probe_idle(uint64_t now) {
  next_probe_ns_ =
      deadline_after(now, environment_.config.number(Variable::kDetectionTime) / kProbes);
  for (RdmaEndpoint* endpoint : endpoints_) endpoint->probe();
}

void RdmaTransport::check_suspects(uint64_t now) {
  suspects_ = false;
  for (RdmaEndpoint* endpoint : endpoints_) {
    if (!endpoint->is_suspect()) continue;
    if (endpoint->has_broken_in_silence()) {
      endpoint->break_off(
          "the queue pair is in the error state: the peer read memory that was revoked, or "
          "the device failed");
    } else if (now < endpoint->suspect_until_ns()) {
      suspects_ = true;
    } else {
      endpoint->trust();
    }
  }
}

// --- sleep and events ------------------------------------------------------------------------

bool RdmaTransport::prepare_sleep(Sleep) {
  timers_checked_ns_ = 0;
  post_receives();
  bool may_sleep = next_ == inbox_.size();
  // A device that fails meanwhile makes others active.
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i] != nullptr && !active_[i]->prepare_sleep()) may_sleep = false;
  }
  if (!may_sleep) return false;
  if (!armed_ && broken_.ok()) {
    if (device_->verbs().req_notify_cq(device_->cq(), 0) != 0) {
      break_all("completions cannot be waited for");
      return false;
    }
    armed_ = true;
  }
  // What came before it was armed makes no event.
  return fetch() == 0;
}

bool RdmaTransport::may_sleep_on() const {
  return next_ == inbox_.size() &&
         std::none_of(active_.begin(), active_.end(), [](const RdmaEndpoint* endpoint) {
           return endpoint != nullptr && endpoint->has_urgent_work();
         });
}

uint64_t RdmaTransport::next_timer_ns() const {
  uint64_t next = suspects_ ? environment_.now_ns + kTimerIntervalNs : kForever;
  if (!endpoints_.empty()) next = std::min(next, next_probe_ns_);
  next = std::min(next, listener_->next_timer_ns());
  for (const auto& attempt : attempts_) next = std::min(next, attempt->next_timer_ns());
  for (const auto& arrival : arrivals_) next = std::min(next, arrival->next_timer_ns());
  for (const RdmaEndpoint* endpoint : active_) {
    if (endpoint != nullptr) next = std::min(next, endpoint->deadline_ns());
  }
  return next;
}

void RdmaTransport::EventWatcher::on_events(uint32_t /*events*/) {
  if (kind_ == Events::kCompletions) {
    transport_.on_completion_event();
  } else {
    transport_.on_async_events();
  }
}

void RdmaTransport::on_completion_event() {
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  while (device_->verbs().get_cq_event(device_->channel(), &cq, &user) == 0) {
    device_->count_event();
    armed_ = false;
  }
}

void RdmaTransport::on_async_events() {
  ibv_async_event event{};
  while (device_->verbs().get_async_event(device_->context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    uint32_t number = 0;
    switch (type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_PATH_MIG:
      case IBV_EVENT_PATH_MIG_ERR:
      case IBV_EVENT_QP_LAST_WQE_REACHED:
        number = event.element.qp->qp_num;
        break;
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_SM_CHANGE:
      case IBV_EVENT_CLIENT_REREGISTER:
        number = static_cast<uint32_t>(event.element.port_num);
        break;
      default:
        break;
    }
    // A queue pair cannot be destroyed while an event of it is not acknowledged.
    device_->verbs().ack_async_event(&event);
    on_async_event(type, number);
  }
}

void RdmaTransport::on_async_event(ibv_event_type type, uint32_t number) {
  const char* name = device_->verbs().event_type_str(type);
  environment_.log.info("rdma: {}: event: {}", nic().name(), name);
  const bool my_port = number == nic().port;
  const std::string reported =
      text_or_none([&] { return fmt::format("the device reports: {}", name); });
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      if (RdmaEndpoint* endpoint = find(number); endpoint != nullptr) {
        endpoint->break_off(reported);
      }
      break;
    case IBV_EVENT_PORT_ERR:
      if (my_port) {
        for (RdmaEndpoint* endpoint : endpoints_) endpoint->break_off("the port went down");
      }
      break;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      if (my_port) check_addresses();
      break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_WQ_FATAL:
      break_all(reported);
      break;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      // Without receives the peers would wait for ever.
      if (!receives_->replace_lost() &&
          receives_->has_lost(static_cast<uint32_t>(queue_pairs()) * settings_.credits)) {
        break_all("too many receives were lost with broken connections");
      }
      break;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      break;
  }
}

// Connections stand on addresses; those whose address has gone are over, and others can be made by
// what there is now.
void RdmaTransport::check_addresses() {
  try {
    device_->refresh_addresses(environment_.config);
  } catch (const std::bad_alloc&) {
    // There are as many addresses as were read.
  }
  for (RdmaEndpoint* endpoint : endpoints_) {
    const QueuePair* pair = endpoint->pair();
    if (pair != nullptr && !pair->has_address()) {
      endpoint->break_off("its address has gone");
    }
  }
}

void RdmaTransport::break_all(std::string_view reason) noexcept {
  if (broken_.ok()) {
    broken_ = status_or_code(Code::kDeviceLost,
                             [&] { return fmt::format("rdma: {}: {}", nic().name(), reason); });
    environment_.log.error("{}", broken_.text());
  }
  for (RdmaEndpoint* endpoint : endpoints_) endpoint->break_off(reason);
}

}  // namespace hetcomm::rdma
