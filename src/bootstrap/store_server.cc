// Implements StoreServer. One thread does all I/O, with one poller and one session per client. A
// session is destroyed only between two rounds of events (reap()), so that neither the table nor
// the poller uses a destroyed session.
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <map>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fmt/core.h>

#include "src/bootstrap/last_replies.h"
#include "src/bootstrap/store.h"
#include "src/bootstrap/store_desk.h"
#include "src/bootstrap/store_session.h"
#include "src/bootstrap/store_table.h"
#include "src/net/acceptor.h"
#include "src/net/network_listener.h"
#include "src/system/clock.h"
#include "src/system/random.h"
#include "src/system/signals_blocked.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxClients = 1 << 15;
constexpr uint64_t kDrainNs = 5'000'000'000;
constexpr uint64_t kSweepNs = 1'000'000'000;
// A session that was idle for less time is not closed to make room, because its client may be about
// to send a request.
constexpr uint64_t kYoungNs = 1'000'000'000;
// The largest number of rejections that are logged as warnings. Rejections of one host for one
// reason count once. The acceptor logs further rejections at debug level.
constexpr size_t kMaxReasons = 64;
// The total size of the replies that are kept for ranks that may not have read them.
constexpr size_t kMaxLastReplies = 64u << 20;

// Returns |peer|, such as "10.0.0.1:4000", without its port, which differs for each attempt.
std::string host_of(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

// Returns |request| without the times, which differ when its rank sends it again, and without the
// value, which is large. The rest identifies the exchange.
std::vector<std::byte> exchange_of(const StoreRequest& request) {
  StoreRequest same = request;
  same.timeout_ns = 0;
  same.limit_ns = 0;
  same.value.clear();
  return encode_request(same);
}

}  // namespace

class StoreServer::Loop final : public AcceptHandler,
                                public RejectionHandler,
                                public ReplySink,
                                public StoreSession::Owner,
                                public Watcher {
 public:
  Loop(Log& log, Poller poller, UniqueFd wake_event, const Options& options)
      : log_(log),
        poller_(std::move(poller)),
        wake_event_(std::move(wake_event)),
        bounds_(options.bounds),
        is_relay_(options.relay.has_value()),
        ranks_(options.ranks),
        table_(options.job_key, *this) {}
  ~Loop() {
    sessions_.clear();
    acceptors_.clear();
    network_.reset();
    poller_.remove(wake_event_.get(), *this);
  }

  Status listen(const Options& options, StoreListeners listeners);
  Address address() const { return acceptors_.empty() ? Address() : acceptors_.front()->address(); }
  ListeningHost host() const { return network_ ? network_->host() : ListeningHost(); }
  Status start_thread();
  void stop() {
    stopping_ = true;
    wake();
    if (thread_.joinable()) thread_.join();
  }
  // Called in a forked child, in which the thread does not exist.
  void abandon() { thread_.detach(); }

  void on_accept(StreamSocket socket, const Hello& peer) override;
  void on_rejection(const Rejection& rejection) override;
  void send_reply(ClientId client, const Frame& frame) override;
  void on_exchanged(ClientId client) override;
  bool on_request(ClientId client, const std::string& name, ConstByteSpan body) override;
  void on_closed(ClientId client, std::string_view why) override;
  void on_events(uint32_t events) override;

  // [any-thread]
  void add_word(StoreTable::Word word);
  StoreDesk& desk() { return desk_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  // A process that connected to the store, identified by the rank that it proved and its ticket.
  struct Process {
    int32_t rank = 0;
    StoreTicket ticket{};
    auto operator<=>(const Process&) const = default;
  };
  struct KnownClient {
    Process process;
    std::vector<std::byte> exchange;  // its last request (exchange_of); empty if not an exchange
    bool completed = false;           // the next reply contains all values of the exchange
  };

  void note_rejection();
  void wake() {
    const uint64_t one = 1;
    // The write cannot fail, since the counter of the eventfd is far from its limit.
    [[maybe_unused]] const ssize_t written = ::write(wake_event_.get(), &one, sizeof(one));
  }
  Status listen_as_relay(const Options& options);
  void take_words();
  bool make_room();
  Status admit(ClientId client, const Hello& peer);
  void forget_process(ClientId client);
  void drop_older(ClientId client, const Process& process);
  Frame begin_request(ClientId client, const StoreRequest& request);
  void greet(StoreSession& session, const Status& admitted);
  void end_quiet(uint64_t now);
  void run();
  void serve();
  void drain();
  void wait_and_deliver(uint64_t until_ns);
  void reap();

  Log& log_;
  Poller poller_;
  UniqueFd wake_event_;
  const std::optional<Bounds> bounds_;
  const bool is_relay_;
  const int ranks_;
  StoreId id_{};
  std::optional<Status> exhausted_;
  StoreTable table_;
  std::unordered_map<ClientId, KnownClient> known_;     // the sessions whose process is known
  std::map<Process, std::set<ClientId>> connections_;   // the sessions of each process
  std::unordered_map<int32_t, StoreTicket> exchanged_;  // by rank: ticket of the served process
  LastReplies last_replies_{kMaxLastReplies};           // replies to the processes in exchanged_
  std::set<std::string> reasons_;                       // reasons of rejections that were logged
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  std::unique_ptr<NetworkListener> network_;  // used by a relay instead of acceptors_
  std::unordered_map<ClientId, std::unique_ptr<StoreSession>> sessions_;
  std::vector<ClientId> closed_;
  ClientId next_client_ = 1;
  uint64_t next_sweep_ns_ = kForever;
  std::atomic<bool> stopping_ = false;
  std::atomic<uint64_t> sent_bytes_ = 0;
  StoreDesk desk_;
  std::thread thread_;
};

Status StoreServer::Loop::listen(const Options& options, StoreListeners listeners) {
  HETCOMM_RETURN_IF_ERROR(poller_.add(wake_event_.get(), EPOLLIN, *this));
  HETCOMM_RETURN_IF_ERROR(fill_random(id_));
  if (options.relay) return listen_as_relay(options);
  for (UniqueFd& socket : listeners.sockets) {
    // All ranks of a job may connect at the same time.
    const size_t pending = std::max(kMaxPending, static_cast<size_t>(std::max(ranks_, 0)));
    auto acceptor = Acceptor::adopt(poller_, log_, std::move(socket),
                                    {.credentials = options.credentials,
                                     .role = Role::kStore,
                                     .rank = 0,
                                     .any_identity = false,
                                     .tls = options.tls,
                                     .max_pending = pending,
                                     .rejections = this,
                                     .exhausted = options.exhausted},
                                    *this);
    if (!acceptor.ok()) return acceptor.status();
    acceptors_.push_back(std::move(acceptor).value());
  }
  exhausted_ = options.exhausted;
  const uint16_t port = acceptors_.front()->address().port();
  if (options.ports.front() != 0 && port != options.ports.front()) {
    table_.set_hint(
        fmt::format("; this store listens on port {}, because {} was taken: by the launcher's own "
                    "service, or by another process that is rank 0?",
                    port, options.ports.front()));
  }
  if (bounds_) next_sweep_ns_ = now_ns() + kSweepNs;
  return {};
}

Status StoreServer::Loop::listen_as_relay(const Options& options) {
  auto network = NetworkListener::create(
      poller_, log_, options.relay->config,
      choose_interfaces(options.relay->config, options.relay->route), "", "relay",
      {.credentials = options.credentials,
       .role = Role::kRelay,
       .rank = options.relay->rank,
       .tls = options.tls},
      *this);
  if (!network.ok()) return network.status();
  network_ = std::move(network).value();
  return network_->open(options.credentials);
}

void StoreServer::Loop::add_word(StoreTable::Word word) {
  desk_.add_word(std::move(word));
  wake();
}

void StoreServer::Loop::on_events(uint32_t /*events*/) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_event_.get(), &count, sizeof(count));
  take_words();
}

void StoreServer::Loop::take_words() {
  for (StoreTable::Word& word : desk_.take_words()) {
    const std::string key = word.key;
    if (Status status = table_.take(std::move(word)); !status.ok()) {
      log_.warn("relay: '{}' is not passed on: {}", key, status.text());
    }
  }
}

// Starts the thread with all signals blocked, because signals belong to the program's threads.
Status StoreServer::Loop::start_thread() {
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] {
      prctl(PR_SET_NAME, "hetcomm-store");
      run();
    });
  } catch (const std::system_error& error) {
    return status_of_no_thread("store", error);
  }
  return {};
}

void StoreServer::Loop::run() {
  try {
    serve();
    drain();
  } catch (const std::exception& error) {
    log_.error("store: {}", error.what());
  }
  // Closes all connections, even after a failure, because waiting clients have to learn that the
  // store is gone.
  sessions_.clear();
  acceptors_.clear();
  network_.reset();
}

void StoreServer::Loop::note_rejection() {
  const Status last = network_->last_rejection();
  if (last.ok()) return;
  desk_.set_last_rejection(last);
}

void StoreServer::Loop::serve() {
  while (!stopping_) {
    const uint64_t now = now_ns();
    // The shortage is checked before expire(), which may end it.
    const bool is_short = std::any_of(acceptors_.begin(), acceptors_.end(),
                                      [](const auto& acceptor) { return acceptor->exhausted(); });
    if (is_short && exhausted_) table_.fail_all(*exhausted_);
    uint64_t timer = kForever;
    for (const auto& acceptor : acceptors_) {
      acceptor->expire(now);
      timer = std::min(timer, acceptor->next_timer_ns());
    }
    if (network_) {
      network_->expire(now);
      note_rejection();
      timer = std::min(timer, network_->next_timer_ns());
    }
    table_.expire(now);
    for (const std::string& line : table_.take_reports(now)) log_.warn("store: {}", line);
    if (now >= next_sweep_ns_) end_quiet(now);
    reap();
    wait_and_deliver(std::min({timer, table_.next_timer_ns(), next_sweep_ns_}));
  }
}

void StoreServer::Loop::drain() {
  acceptors_.clear();
  network_.reset();
  poller_.remove(wake_event_.get(), *this);
  take_words();
  table_.close();
  reap();
  const uint64_t deadline = now_ns() + kDrainNs;
  const auto flushed = [](const auto& entry) { return entry.second->flushed(); };
  while (!std::all_of(sessions_.begin(), sessions_.end(), flushed) && now_ns() < deadline) {
    wait_and_deliver(deadline);
  }
}

void StoreServer::Loop::wait_and_deliver(uint64_t until_ns) {
  const uint64_t now = now_ns();
  if (until_ns == kForever) {
    poller_.wait(kForever);
  } else if (until_ns > now) {
    poller_.wait(until_ns - now);
  }
  poller_.poll();
  reap();
}

// Destroys closed sessions. It runs outside all upcalls from sessions and from the table.
void StoreServer::Loop::reap() {
  while (!closed_.empty()) {
    const ClientId client = closed_.back();
    closed_.pop_back();
    table_.disconnect(client);
    forget_process(client);
    sessions_.erase(client);
  }
}

void StoreServer::Loop::end_quiet(uint64_t now) {
  next_sweep_ns_ = now + kSweepNs;
  for (const auto& [client, session] : sessions_) {
    if (now >= deadline_after(session->quiet_since_ns(), bounds_->quiet_ns)) {
      session->drop("the client was quiet for too long");
    }
  }
}

// Returns whether the store accepts one more client. May drop the longest idle session for it,
// which then ends with this round of events.
bool StoreServer::Loop::make_room() {
  const size_t limit = bounds_ ? bounds_->sessions : kMaxClients;
  if (sessions_.size() - closed_.size() < limit) return true;
  StoreSession* oldest = nullptr;
  for (const auto& [client, session] : sessions_) {
    const uint64_t since = session->quiet_since_ns();
    if (!bounds_ || session->closed() || now_ns() < deadline_after(since, kYoungNs)) continue;
    if (oldest == nullptr || since < oldest->quiet_since_ns()) oldest = session.get();
  }
  if (oldest == nullptr) return false;
  oldest->drop("the client was quiet, and others need its place");
  return true;
}

// Decides whether to serve |peer|, and records its process. If |peer| is not served, returns the
// reason.
Status StoreServer::Loop::admit(ClientId client, const Hello& peer) {
  StoreTicket ticket{};
  // A rank beyond the job's size is served, because its first exchange reports the disagreement.
  const bool is_rank = peer.source >= 0 && peer.source < ranks_;
  if (!is_rank || peer.extra.size() != ticket.size()) return {};
  std::copy(peer.extra.begin(), peer.extra.end(), ticket.begin());
  const auto served = exchanged_.find(peer.source);
  if (served != exchanged_.end() && served->second != ticket) {
    return Status(Code::kPermissionDenied,
                  fmt::format("another process has already joined as rank {}; is another job using "
                              "this port, or a RANK duplicated?",
                              peer.source));
  }
  const Process process{peer.source, ticket};
  known_[client] = {.process = process, .exchange = {}};
  connections_[process].insert(client);
  return {};
}

void StoreServer::Loop::forget_process(ClientId client) {
  const auto found = known_.find(client);
  if (found == known_.end()) return;
  const auto all = connections_.find(found->second.process);
  all->second.erase(client);
  if (all->second.empty()) connections_.erase(all);
  known_.erase(found);
}

// Drops the older connections of |process|. A process reconnects when its connection has broken,
// which the store may not have noticed yet. Nothing waits on the old connection any more. A process
// that tries several addresses in parallel has several connections, and only a request shows which
// of them it uses.
void StoreServer::Loop::drop_older(ClientId client, const Process& process) {
  for (const ClientId each : connections_.at(process)) {
    if (each >= client) break;
    sessions_.at(each)->drop("its process uses a newer connection");
    table_.disconnect(each);
  }
}

// Records |request|. If the store has already replied to it on another connection of the client's
// process, returns that reply. Otherwise returns null.
Frame StoreServer::Loop::begin_request(ClientId client, const StoreRequest& request) {
  const auto found = known_.find(client);
  if (found == known_.end()) return nullptr;
  KnownClient& known = found->second;
  drop_older(client, known.process);
  known.exchange = request.exchanges() ? exchange_of(request) : std::vector<std::byte>();
  const auto served = exchanged_.find(known.process.rank);
  if (served == exchanged_.end() || served->second != known.process.ticket) return nullptr;
  Frame reply = last_replies_.find(known.process.rank, known.exchange);
  if (reply == nullptr) last_replies_.forget(known.process.rank);
  return reply;
}

void StoreServer::Loop::greet(StoreSession& session, const Status& admitted) {
  session.send(admitted.ok() ? encode_success(id_) : encode_failure(admitted));
  if (!admitted.ok()) session.drop(admitted.text());
}

void StoreServer::Loop::on_exchanged(ClientId client) {
  const auto found = known_.find(client);
  if (found == known_.end()) return;
  KnownClient& known = found->second;
  exchanged_[known.process.rank] = known.process.ticket;
  known.completed = true;
}

// Logs each reason once per host, so that strangers cannot fill the log. Records the rejection of a
// rank of this job in the table.
void StoreServer::Loop::on_rejection(const Rejection& rejection) {
  // No warning for strangers that send nothing, or for peers that disconnected.
  if (!rejection.spoke || rejection.why.code() == Code::kPeerLost) return;
  const std::string who = rejection.claimed_rank
                              ? fmt::format("{}, which says that it is rank {}", rejection.peer,
                                            *rejection.claimed_rank)
                              : rejection.peer;
  const bool is_new =
      reasons_.size() < kMaxReasons &&
      reasons_.insert(host_of(rejection.peer) + "\n" + std::string(rejection.why.text())).second;
  if (is_new) log_.warn("store: rejected {}: {}", who, rejection.why.text());
  // A rank of another job is not recorded. It learns that this is not its store, and continues its
  // search.
  if (!rejection.claimed_rank || rejection.denial == Denial::kIdentity) return;
  if (ranks_ > 0 && *rejection.claimed_rank >= ranks_) return;
  table_.note_turned_away(*rejection.claimed_rank, rejection.peer, rejection.why);
}

void StoreServer::Loop::on_accept(StreamSocket socket, const Hello& peer) {
  Status admitted;
  if (!make_room()) {
    admitted = Status(Code::kOutOfResources,
                      fmt::format("{} clients are connected; further ones are refused",
                                  sessions_.size() - closed_.size()));
    log_.warn_once(fmt::format("store: {}", admitted.text()));
  }
  const ClientId client = next_client_++;
  auto session = std::make_unique<StoreSession>(*this, poller_, client, std::move(socket));
  if (Status status = session->watch(); !status.ok()) {
    log_.warn("store: {}: {}", session->name(), status.text());
    return;
  }
  if (admitted.ok()) admitted = admit(client, peer);
  if (admitted.code() == Code::kPermissionDenied) {
    log_.info("store: {} is turned away: {}", session->name(), admitted.text());
  }
  greet(*(sessions_[client] = std::move(session)), admitted);
}

void StoreServer::Loop::send_reply(ClientId client, const Frame& frame) {
  const auto found = sessions_.find(client);
  if (found == sessions_.end()) return;
  if (const auto known = known_.find(client);
      known != known_.end() && std::exchange(known->second.completed, false)) {
    last_replies_.keep(known->second.process.rank, std::move(known->second.exchange), frame);
  }
  sent_bytes_ += frame->size();
  found->second->send(frame);
}

bool StoreServer::Loop::on_request(ClientId client, const std::string& name, ConstByteSpan body) {
  Result<StoreRequest> request = decode_request(body);
  if (!request.ok()) return false;
  const StoreOperation operation = request->operation;
  if (is_relay_) {
    if (operation != StoreOperation::kGet) return false;
    desk_.note_reader(client, request->key);
  }
  if (bounds_) {
    if (operation == StoreOperation::kPut || operation == StoreOperation::kGet) {
      send_reply(client, encode_failure(Status(Code::kPermissionDenied,
                                               "a store without a job secret keeps no values")));
      return true;
    }
    request->timeout_ns = std::min(request->timeout_ns, bounds_->wait_ns);
    request->limit_ns = std::min(request->limit_ns, bounds_->wait_ns);
  }
  if (const Frame reply = begin_request(client, request.value())) {
    send_reply(client, reply);
    return true;
  }
  return table_.handle(client, name, std::move(request).value(), now_ns());
}

void StoreServer::Loop::on_closed(ClientId client, std::string_view why) {
  log_.debug("store: client {} left: {}", sessions_[client]->name(), why);
  closed_.push_back(client);
}

StoreServer::StoreServer(std::unique_ptr<Loop> loop)
    : loop_(std::move(loop)),
      address_(loop_->address()),
      host_(loop_->host()),
      owner_pid_(getpid()) {}

Result<std::unique_ptr<StoreServer>> StoreServer::start(Log& log, const Options& options) {
  if (options.relay) return start(log, options, StoreListeners());
  Result<StoreListeners> listeners = listen_for_store(options.hosts, options.ports);
  if (!listeners.ok()) {
    return Status(Code::kBootstrapFailed, std::string(listeners.status().text()));
  }
  return start(log, options, std::move(listeners).value());
}

Result<std::unique_ptr<StoreServer>> StoreServer::start(Log& log, const Options& options,
                                                        StoreListeners listeners) {
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) return poller.status();
  UniqueFd wake_event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_event.valid()) return status_from_errno(errno, "eventfd");
  auto loop =
      std::make_unique<Loop>(log, std::move(poller).value(), std::move(wake_event), options);
  HETCOMM_RETURN_IF_ERROR(loop->listen(options, std::move(listeners)));
  std::unique_ptr<StoreServer> server(new StoreServer(std::move(loop)));
  // The server has already copied its addresses from the loop. Once the thread runs, only the
  // thread may use the loop's other state.
  if (Status status = server->loop_->start_thread(); !status.ok()) return status;
  return server;
}

void StoreServer::keep(std::string key, std::vector<std::byte> value) {
  loop_->add_word({.key = std::move(key), .value = std::move(value)});
}
void StoreServer::forget(std::string key) {
  loop_->add_word({.key = std::move(key), .value = std::nullopt});
}
void StoreServer::expect_readers(std::string key, size_t count) {
  loop_->desk().expect_readers(std::move(key), count);
}
void StoreServer::wait_for_readers(uint64_t time_ns) {
  // A forked child has no clients.
  if (getpid() == owner_pid_) loop_->desk().wait_for_readers(time_ns);
}
uint64_t StoreServer::sent_bytes() const { return loop_->sent_bytes(); }

Status StoreServer::last_rejection() const { return loop_->desk().last_rejection(); }

StoreServer::~StoreServer() {
  if (getpid() == owner_pid_) {
    loop_->stop();
  } else {
    // In a forked child the loop is leaked: its sockets are shared with the parent, and its thread
    // exists only there.
    loop_->abandon();
    [[maybe_unused]] Loop* leaked = loop_.release();
  }
}

}  // namespace hetcomm
