// Makes a bootstrap from the launcher's variables (launch.h). Rank 0 hosts the store at
// MASTER_PORT, or at one of the next ports if another service uses that port. The other ranks try
// all these ports and recognize the store by its handshake.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/bootstrap/bootstrap.h"
#include "src/bootstrap/exchange_names.h"
#include "src/bootstrap/failure_answer.h"
#include "src/bootstrap/launch.h"
#include "src/bootstrap/relay.h"
#include "src/bootstrap/secret.h"
#include "src/bootstrap/store.h"
#include "src/bootstrap/store_listeners.h"
#include "src/bootstrap/variables.h"
#include "src/net/key.h"
#include "src/net/listening_socket.h"
#include "src/net/variables.h"
#include "src/system/clock.h"
#include "src/system/descriptors.h"
#include "src/system/random.h"

namespace hetcomm {
namespace {

constexpr int kExtraPorts = 16;
// The number of sessions beyond one per rank, for restarted processes and unknown peers.
constexpr size_t kExtraSessions = 64;
// The longest that a request may wait in a store without a secret, unless HETCOMM_BOOTSTRAP_TIMEOUT
// is longer.
constexpr uint64_t kLongestWaitNs = 3'600'000'000'000;
// The file descriptors of rank 0's store beyond one per client: poller, event, spare descriptors.
constexpr uint64_t kStoreDescriptors = 8;
// When rank 0 fails, it sends the reason to all ranks that connect within this time.
constexpr uint64_t kAnswerFailureNs = 2'000'000'000;
// The pause between attempts to listen doubles from the first value to the last.
constexpr uint64_t kFirstListenPauseNs = 50'000'000;
constexpr uint64_t kLastListenPauseNs = 1'000'000'000;
// The pause between queries for survivors doubles from the first value to the last.
constexpr uint64_t kFirstPauseNs = 1'000'000;
constexpr uint64_t kLastPauseNs = 100'000'000;
// The time limit of a request that the store can answer immediately.
constexpr uint64_t kAnswerNs = 10'000'000'000;
// The last query for survivors is sent this long before the deadline, or an eighth of the total
// time before it if that is shorter.
constexpr uint64_t kLastQuestionNs = 500'000'000;
constexpr std::string_view kAdvice =
    "to go on without rank 0, set RANK, WORLD_SIZE and MASTER_ADDR for the ranks that are left and "
    "make a new bootstrap from the environment";

Result<std::vector<Address>> resolve_master(const Config& config, const Launch& launch) {
  Result<std::vector<Address>> resolved = Address::resolve(launch.master_address, 0);
  if (!resolved.ok()) {
    return Status(Code::kBootstrapFailed, std::string(resolved.status().text()))
        .annotate("MASTER_ADDR");
  }
  const std::string_view family = config.text(variable::kTcpBindFamily);
  std::vector<Address> addresses = std::move(resolved).value();
  std::erase_if(addresses, [&](const Address& address) {
    return family == (address.family() == AF_INET6 ? "ipv4" : "ipv6");
  });
  if (addresses.empty()) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("MASTER_ADDR '{}' has no {} address", launch.master_address, family));
  }
  return addresses;
}

// Returns the ports of the store, best first. Fails if HETCOMM_STORE_PORT is not a port.
Result<std::vector<uint16_t>> store_ports(const Config& config, const Launch& launch) {
  const uint64_t fixed = config.number(variable::kStorePort);
  if (fixed > 65535) {
    return Status(Code::kInvalidArgument,
                  fmt::format("HETCOMM_STORE_PORT: {} is not a port; ports end at 65535", fixed));
  }
  if (fixed != 0) return std::vector<uint16_t>{static_cast<uint16_t>(fixed)};
  std::vector<uint16_t> ports;
  for (int port = launch.master_port; port <= launch.master_port + kExtraPorts; ++port) {
    if (port <= 65535) ports.push_back(static_cast<uint16_t>(port));
  }
  return ports;
}

std::vector<Address> every_port(const std::vector<Address>& hosts,
                                const std::vector<uint16_t>& ports) {
  std::vector<Address> addresses;
  for (const uint16_t port : ports) {
    for (const Address& host : hosts) addresses.push_back(host.with_port(port));
  }
  return addresses;
}

bool is_any(const Address& address) {
  const std::string text = address.with_port(0).to_string();
  return text == "0.0.0.0:0" || text == "[::]:0";
}

// Returns whether |name| means loopback on every host. A host's own name may resolve to loopback on
// that host and to a network address on all others.
bool names_loopback(const std::string& name) {
  Result<Address> numeric = Address::parse_numeric(name, 0);
  return name == "localhost" || (numeric.ok() && numeric->is_loopback());
}

// Returns the addresses on which the store listens. They are the addresses of MASTER_ADDR that this
// host has. If it has none of them, they are the addresses of HETCOMM_INTERFACE, or all addresses
// of this host if that variable is not set. This happens with address translation, with a host name
// that means loopback here, and with 0.0.0.0.
Result<std::vector<Address>> listening_hosts(const Config& config, Log& log, const Launch& launch,
                                             const std::vector<Address>& masters) {
  const bool loopback = names_loopback(launch.master_address);
  const std::string_view wanted = config.text(variable::kInterface);
  std::vector<Address> hosts;
  for (const Address& address : masters) {
    if (is_any(address) && !wanted.empty()) continue;
    if (address.is_loopback() == loopback && is_local(address)) hosts.push_back(address);
  }
  Result<std::vector<InterfaceAddress>> chosen = choose_interfaces(config);
  if (hosts.empty() && wanted.empty()) {
    const bool ipv6 = masters.front().family() == AF_INET6;
    Result<Address> any = Address::parse_numeric(ipv6 ? "::" : "0.0.0.0", 0);
    if (!any.ok()) return any.status();
    return std::vector<Address>{*any};
  }
  if (!chosen.ok()) return chosen.status();
  const auto is_chosen = [&](const Address& address) {
    return std::any_of(chosen->begin(), chosen->end(), [&](const InterfaceAddress& entry) {
      return entry.address.to_string() == address.to_string();
    });
  };
  if (!hosts.empty()) {
    if (!wanted.empty() && std::none_of(hosts.begin(), hosts.end(), is_chosen)) {
      log.info(
          "store: MASTER_ADDR '{}' is none of the addresses of HETCOMM_INTERFACE='{}'; the "
          "store listens on it all the same",
          launch.master_address, wanted);
    }
    return hosts;
  }
  for (const InterfaceAddress& entry : *chosen) hosts.push_back(entry.address);
  // Ranks on this host look for the store at the addresses to which the name resolves on this host.
  for (const Address& address : masters) {
    if (address.is_loopback() && !is_chosen(address)) hosts.push_back(address);
  }
  return hosts;
}

// Returns the identity of the store that the ranks of |launch| look for.
Identity store_identity(const Launch& launch) {
  return identity_of(fmt::format("{}/{}", launch.master_port, launch.job.name), "store", 0);
}

// StoreSite holds the sockets on which rank 0 listens for the other ranks. Rank 0 opens them before
// it does anything else, so that it can report any later failure to the other ranks.
class StoreSite {
 public:
  StoreSite(const Config& config, Log& log, const Launch& launch)
      : config_(config), log_(log), launch_(launch) {}

  // Listens at the first free port. If every port is in use, retries until |deadline_ns|. Does not
  // retry if this process has no permission for any of the ports. The sockets may be open even
  // after a failure, for answer().
  Status listen(uint64_t deadline_ns);
  const std::vector<uint16_t>& ports() const { return ports_; }
  StoreListeners take() { return std::exchange(listeners_, {}); }
  // Reports the failure |why| to the other ranks, and returns it.
  Status answer(const Status& why);

 private:
  Status choose_hosts();
  Status listen_until(uint64_t deadline_ns);

  const Config& config_;
  Log& log_;
  const Launch& launch_;
  std::vector<Address> hosts_;
  std::vector<uint16_t> ports_;
  StoreListeners listeners_;
};

// Sets |hosts_|. On failure, sets |hosts_| to the hosts at which the other ranks may look for the
// store, so that answer() can reach these ranks.
Status StoreSite::choose_hosts() {
  Result<std::vector<Address>> masters = resolve_master(config_, launch_);
  Result<std::vector<Address>> hosts =
      masters.ok() ? listening_hosts(config_, log_, launch_, *masters) : masters.status();
  if (hosts.ok()) {
    hosts_ = std::move(hosts).value();
    return {};
  }
  if (masters.ok() && names_loopback(launch_.master_address)) {
    hosts_ = std::move(masters).value();
  } else {
    Result<Address> any = Address::parse_numeric("::", 0);
    if (any.ok() && !is_local(*any)) any = Address::parse_numeric("0.0.0.0", 0);
    if (any.ok()) hosts_ = {*any};
  }
  return hosts.status();
}

Status StoreSite::listen(uint64_t deadline_ns) {
  Result<std::vector<uint16_t>> ports = store_ports(config_, launch_);
  if (!ports.ok()) return ports.status();
  ports_ = std::move(ports).value();
  if (Status failure = choose_hosts(); !failure.ok()) {
    Result<StoreListeners> listeners = listen_for_store(hosts_, ports_);
    if (listeners.ok()) listeners_ = std::move(listeners).value();
    return failure;
  }
  return listen_until(deadline_ns);
}

Status StoreSite::listen_until(uint64_t deadline_ns) {
  for (uint64_t pause = kFirstListenPauseNs;; pause = std::min(2 * pause, kLastListenPauseNs)) {
    Result<StoreListeners> listeners = listen_for_store(hosts_, ports_);
    if (listeners.ok()) {
      listeners_ = std::move(listeners).value();
      return {};
    }
    const bool is_forbidden = listeners.status().code() == Code::kPermissionDenied;
    const Status failure(
        is_forbidden ? Code::kPermissionDenied : Code::kBootstrapFailed,
        fmt::format("rank 0 found no free port from {} to {} for the job's store: {}; "
                    "set MASTER_PORT or HETCOMM_STORE_PORT",
                    ports_.front(), ports_.back(), listeners.status().text()));
    const uint64_t now = now_ns();
    if (is_forbidden || now >= deadline_ns) return failure;
    if (pause == kFirstListenPauseNs) log_.warn("store: {}; it tries again", failure.text());
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause, deadline_ns - now)));
  }
}

Status StoreSite::answer(const Status& why) {
  if (listeners_.sockets.empty()) {
    Result<StoreListeners> again = listen_for_store(hosts_, ports_);
    if (!again.ok()) return why;
    listeners_ = std::move(again).value();
  }
  answer_with_failure(listeners_, store_identity(launch_), why, launch_.size - 1, kAnswerFailureNs);
  return why;
}

// Describes the job for the errors of ranks that did not find their store: they may have found the
// store of another job.
std::string describe(const JobName& job) {
  if (job.name.empty()) return "this job has no name (HETCOMM_JOB)";
  return fmt::format("this is job '{}' by {}, and all its ranks have to agree (HETCOMM_JOB)",
                     printable(job.name), job.source);
}

// LaunchedJob is the job for which the launcher started this process. It holds the job's ranks,
// store and key.
class LaunchedJob {
 public:
  LaunchedJob(const Config& config, Log& log, const Launch& launch,
              std::optional<Secret> configured)
      : config_(config), log_(log), launch_(launch), configured_(configured), secret_(configured) {}

  // |site| holds rank 0's listening sockets. It is null on the other ranks.
  Status start(StoreSite* site, uint64_t deadline_ns);

  const Config& config() const { return config_; }
  Log& log() const { return log_; }

  // The rank and size that the launcher has assigned.
  int rank() const { return launch_.rank; }
  int size() const { return launch_.size; }
  Address local_address() const { return client_ ? client_->local_address() : Address(); }
  bool stays_on_host() const { return names_loopback(launch_.master_address); }
  void set_time_limit(uint64_t limit_ns) {
    if (client_) client_->set_time_limit(limit_ns);
  }
  Result<Secret> secret(uint64_t deadline_ns);
  std::optional<Secret> configured_key() const {
    return configured_ ? std::optional(secret_of_job(*configured_, launch_.job.name))
                       : std::nullopt;
  }
  // Gathers the values of |members|. This process takes part as member |rank|.
  Result<std::vector<std::vector<std::byte>>> gather(const std::string& scope, int rank,
                                                     const Members& members, ConstByteSpan mine,
                                                     uint64_t deadline_ns);
  Result<std::vector<std::byte>> broadcast(const std::string& scope, int rank,
                                           const Members& members, ConstByteSpan mine,
                                           uint64_t deadline_ns);
  // Returns, for each rank of the job, whether it has survived. |find_lost| returns an entry for
  // every rank of the job. Sets |*round| to the name of the round, which is the same on all ranks
  // that get its result.
  Result<std::vector<bool>> survivors(const std::string& scope,
                                      const SurvivorFinder::FindLost& find_lost,
                                      uint64_t deadline_ns, std::string* round);

 private:
  Status explain(const Status& failure) const;
  Credentials store_credentials() const;
  Status start_server(const Credentials& credentials, StoreSite& site);

  const Config config_;
  Log& log_;
  const Launch launch_;
  const std::optional<Secret> configured_;
  std::optional<Secret> secret_;
  std::shared_ptr<const TlsContext> tls_;  // null if TLS is off
  ScopeNames scopes_;
  std::unique_ptr<StoreServer> server_;  // rank 0 only; outlives the client
  std::unique_ptr<StoreClient> client_;  // null in a job of one rank
};

Result<Secret> LaunchedJob::secret(uint64_t deadline_ns) {
  if (!secret_) {
    Result<Secret> key = client_ ? client_->job_key(deadline_ns) : random_secret();
    if (!key.ok()) return explain(key.status());
    secret_ = key.value();
  }
  return secret_of_job(*secret_, launch_.job.name);
}

Status too_long(ConstByteSpan value) {
  return Status(Code::kInvalidArgument,
                fmt::format("an exchange of {} bytes is too long", value.size()));
}

Result<std::vector<std::vector<std::byte>>> LaunchedJob::gather(const std::string& scope, int rank,
                                                                const Members& members,
                                                                ConstByteSpan mine,
                                                                uint64_t deadline_ns) {
  if (mine.size() > kMaxStoreValue) return too_long(mine);
  if (!client_) return std::vector<std::vector<std::byte>>{{mine.begin(), mine.end()}};
  const bool whole = members.form == ExchangeForm::kWhole;
  const std::string name = scopes_.next(scope, whole ? ExchangeKind::kAll : kind_of(members.group));
  auto values = client_->gather(name, rank, members, mine, deadline_ns);
  if (!values.ok()) return explain(values.status());
  return values;
}

Result<std::vector<std::byte>> LaunchedJob::broadcast(const std::string& scope, int rank,
                                                      const Members& members, ConstByteSpan mine,
                                                      uint64_t deadline_ns) {
  if (mine.size() > kMaxStoreValue) return too_long(mine);
  if (!client_) return std::vector<std::byte>(mine.begin(), mine.end());
  const bool whole = members.form == ExchangeForm::kWhole;
  const std::string name =
      scopes_.next(scope, whole ? ExchangeKind::kAll : ExchangeKind::kBroadcast);
  auto value = client_->broadcast(name, rank, members, mine, deadline_ns);
  if (!value.ok()) return explain(value.status());
  return value;
}

// Adds advice to |failure| if the connection to the store is lost.
Status LaunchedJob::explain(const Status& failure) const {
  if (client_ == nullptr || client_->connected()) return failure;
  return Status(failure.code(), fmt::format("{}; {}", failure.text(), kAdvice));
}

// Queries the store until it has decided. The last query is sent a little before the deadline. If
// the round is still undecided then, this query fails it for all ranks.
Result<std::vector<bool>> LaunchedJob::survivors(const std::string& scope,
                                                 const SurvivorFinder::FindLost& find_lost,
                                                 uint64_t deadline_ns, std::string* round) {
  const std::string name = scopes_.next(scope);
  *round = name;
  if (!client_) return std::vector<bool>{true};
  const uint64_t begun = now_ns();
  const uint64_t left_ns = deadline_ns > begun ? deadline_ns - begun : 0;
  const uint64_t end_ns =
      deadline_ns == kForever ? kForever : deadline_ns - std::min(left_ns / 8, kLastQuestionNs);
  for (uint64_t pause = kFirstPauseNs;; pause = std::min(2 * pause, kLastPauseNs)) {
    const std::vector<bool> lost = find_lost();
    if (lost.front()) {
      return Status(Code::kBootstrapFailed,
                    fmt::format("rank 0 is lost, and the job's store with it; {}", kAdvice));
    }
    const uint64_t now = now_ns();
    Result<std::vector<bool>> left = client_->survivors(
        name, lost, now >= end_ns, std::min(deadline_ns, deadline_after(now, kAnswerNs)));
    if (!left.ok()) return explain(left.status());
    if (!left->empty()) return left;
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(std::min(pause, end_ns > now ? end_ns - now : 0)));
  }
}

// A bootstrap of all ranks of a job, or of the surviving ranks.
class EnvironmentBootstrap final : public Bootstrap, private SurvivorFinder {
 public:
  // |members| are ranks of |job| in ascending order and include this rank. |round| names the round
  // of survivors() that found them, and is empty for all ranks of the job. It is part of the names
  // of all exchanges, so a rank that missed the end of an earlier round still meets the others.
  EnvironmentBootstrap(std::shared_ptr<LaunchedJob> job, std::vector<int> members,
                       std::string round)
      : job_(std::move(job)),
        members_(std::move(members)),
        round_(std::move(round)),
        rank_(static_cast<int>(std::find(members_.begin(), members_.end(), job_->rank()) -
                               members_.begin())),
        relay_(job_->config(), job_->log()) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Address local_address() const override { return job_->local_address(); }
  bool stays_on_host() const override { return job_->stays_on_host(); }
  void set_time_limit(uint64_t limit_ns) override { job_->set_time_limit(limit_ns); }
  Result<Secret> secret(uint64_t deadline_ns) override { return job_->secret(deadline_ns); }
  std::optional<Secret> configured_key() const override { return job_->configured_key(); }

  Result<std::vector<std::byte>> broadcast(const std::string& scope, ConstByteSpan mine,
                                           uint64_t deadline_ns) override {
    return job_->broadcast(round_ + scope, rank_, Members::all(size()), mine, deadline_ns);
  }
  Result<std::vector<std::vector<std::byte>>> allgather(const std::string& scope,
                                                        ConstByteSpan mine,
                                                        uint64_t deadline_ns) override {
    return job_->gather(round_ + scope, rank_, Members::all(size()), mine, deadline_ns);
  }
  bool exchanges_by_groups() const override { return true; }
  Result<std::vector<std::vector<std::byte>>> allgather_among(const std::string& scope,
                                                              const RankGroup& group,
                                                              ConstByteSpan mine,
                                                              uint64_t deadline_ns) override {
    return job_->gather(round_ + scope, rank_, Members::of(group, size()), mine, deadline_ns);
  }
  Result<std::vector<std::byte>> broadcast_among(const std::string& scope, const RankGroup& group,
                                                 ConstByteSpan mine,
                                                 uint64_t deadline_ns) override {
    return job_->broadcast(round_ + scope, rank_, Members::of(group, size()), mine, deadline_ns);
  }

  Relay& relay() override { return relay_; }
  SurvivorFinder* survivor_finder() override { return this; }

 private:
  Result<std::unique_ptr<Bootstrap>> survivors(const std::string& scope, const FindLost& find_lost,
                                               uint64_t deadline_ns) override;

  const std::shared_ptr<LaunchedJob> job_;
  const std::vector<int> members_;
  const std::string round_;
  const int rank_;
  Relay relay_;
};

Result<std::unique_ptr<Bootstrap>> EnvironmentBootstrap::survivors(const std::string& scope,
                                                                   const FindLost& find_lost,
                                                                   uint64_t deadline_ns) {
  const auto lost_of_job = [&] {
    const std::vector<bool> lost = find_lost();
    std::vector<bool> all(static_cast<size_t>(job_->size()), true);
    for (size_t i = 0; i < members_.size(); ++i) all[static_cast<size_t>(members_[i])] = lost[i];
    return all;
  };
  std::string round;
  Result<std::vector<bool>> left = job_->survivors(scope, lost_of_job, deadline_ns, &round);
  if (!left.ok()) return left.status();
  std::vector<int> members;
  for (size_t rank = 0; rank < left->size(); ++rank) {
    if (left.value()[rank]) members.push_back(static_cast<int>(rank));
  }
  return std::unique_ptr<Bootstrap>(
      std::make_unique<EnvironmentBootstrap>(job_, std::move(members), round + "/"));
}

// Returns the credentials for the store. A job without a secret uses a publicly known key. The key
// gives no protection, but processes that connect by mistake fail immediately.
Credentials LaunchedJob::store_credentials() const {
  constexpr std::string_view kKnownKey = "hetcomm store of a job without a secret";
  return {.identity = store_identity(launch_),
          .secret = secret_ ? *secret_ : secret_from(std::as_bytes(std::span(kKnownKey)))};
}

Status LaunchedJob::start_server(const Credentials& credentials, StoreSite& site) {
  const auto ranks = static_cast<uint64_t>(launch_.size);
  const uint64_t descriptors = ranks + kStoreDescriptors;
  HETCOMM_RETURN_IF_ERROR(reserve_descriptors(config_, log_, descriptors,
                                              fmt::format("rank 0's store of {} ranks", ranks)));
  Result<Secret> key = random_secret();
  if (!key.ok()) return key.status();
  const Status exhausted(
      Code::kOutOfResources,
      fmt::format("rank 0 has no descriptors left for its store, which needs one for each of {} "
                  "ranks: run `ulimit -n {}` before the program",
                  ranks, advised_descriptor_limit(descriptors)));
  StoreServer::Options options{.credentials = credentials,
                               .job_key = key.value(),
                               .hosts = {},
                               .ports = site.ports(),
                               .bounds = {},
                               .tls = tls_,
                               .ranks = launch_.size,
                               .exhausted = exhausted};
  if (!secret_) {
    options.bounds = StoreServer::Bounds{
        .sessions = static_cast<size_t>(launch_.size) + kExtraSessions,
        .wait_ns = std::max(config_.number(variable::kBootstrapTimeout), kLongestWaitNs)};
  }
  auto server = StoreServer::start(log_, options, site.take());
  if (!server.ok()) return server.status().annotate("rank 0's store");
  server_ = std::move(server).value();
  log_.info("store: rank 0 listens on {}", server_->address().to_string());
  return {};
}

Status LaunchedJob::start(StoreSite* site, uint64_t deadline_ns) {
  Result<std::shared_ptr<const TlsContext>> tls = TlsContext::create(config_, log_);
  if (!tls.ok()) return tls.status().annotate("store");
  tls_ = std::move(tls).value();
  StoreTicket ticket{};
  HETCOMM_RETURN_IF_ERROR(fill_random(ticket));
  StoreClient::Options options{.credentials = store_credentials(),
                               .rank = launch_.rank,
                               .addresses = {},
                               .quiet_ns = secret_ ? kForever : kQuietNs,
                               .tls = tls_,
                               .ticket = ticket};
  if (site != nullptr) {
    HETCOMM_RETURN_IF_ERROR(start_server(options.credentials, *site));
    // The address may be a wildcard. Connecting to a wildcard reaches this host.
    options.addresses = {server_->address()};
  } else {
    Result<std::vector<Address>> hosts = resolve_master(config_, launch_);
    if (!hosts.ok()) return hosts.status();
    Result<std::vector<uint16_t>> ports = store_ports(config_, launch_);
    if (!ports.ok()) return ports.status();
    options.addresses = every_port(hosts.value(), ports.value());
  }
  client_ = std::make_unique<StoreClient>(log_, std::move(options));
  client_->set_time_limit(config_.number(variable::kBootstrapTimeout));
  const Status found = client_->connect(deadline_ns);
  if (found.ok()) return found;
  return Status(found.code(), fmt::format("{}; {}", found.text(), describe(launch_.job)));
}

Result<std::shared_ptr<LaunchedJob>> start_job(const Config& config, Log& log, const Launch& launch,
                                               StoreSite* site, uint64_t deadline_ns) {
  Result<std::optional<Secret>> secret = configured_secret(config, log);
  if (!secret.ok()) return secret.status();
  if (!secret.value()) {
    HETCOMM_RETURN_IF_ERROR(
        allow_without_secret(config, log, launch.rank, launch.size, KeyChannel::kStore));
  }
  auto job = std::make_shared<LaunchedJob>(config, log, launch, secret.value());
  if (launch.size > 1) HETCOMM_RETURN_IF_ERROR(job->start(site, deadline_ns));
  return job;
}

Result<std::shared_ptr<LaunchedJob>> start_rank_zero(const Config& config, Log& log,
                                                     const Launch& launch, uint64_t deadline_ns) {
  StoreSite site(config, log, launch);
  if (Status failure = site.listen(deadline_ns); !failure.ok()) return site.answer(failure);
  Result<std::shared_ptr<LaunchedJob>> job = start_job(config, log, launch, &site, deadline_ns);
  if (!job.ok()) return site.answer(job.status());
  return job;
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> bootstrap_from_environment(const Config& config, Log& log) {
  const uint64_t deadline = deadline_after(now_ns(), config.number(variable::kBootstrapTimeout));
  Result<Launch> launch = read_launch(config);
  if (!launch.ok()) return launch.status();
  const bool hosts_store = launch->size > 1 && launch->rank == 0;
  Result<std::shared_ptr<LaunchedJob>> started =
      hosts_store ? start_rank_zero(config, log, *launch, deadline)
                  : start_job(config, log, *launch, nullptr, deadline);
  if (!started.ok()) return started.status();
  std::shared_ptr<LaunchedJob> job = std::move(started).value();
  std::vector<int> members(static_cast<size_t>(job->size()));
  std::iota(members.begin(), members.end(), 0);
  return std::unique_ptr<Bootstrap>(
      std::make_unique<EnvironmentBootstrap>(std::move(job), std::move(members), ""));
}

}  // namespace hetcomm
