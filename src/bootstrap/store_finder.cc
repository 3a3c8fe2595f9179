#include "src/bootstrap/store_finder.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/net/connector.h"

namespace hetcomm {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kFirstLimitNs = kSecond;  // of one attempt; doubles when it was too short
constexpr uint64_t kLastLimitNs = 10 * kSecond;
constexpr uint64_t kFirstRetryNs = kSecond / 20;  // after a refusal; doubles
constexpr uint64_t kLastRetryNs = kSecond / 2;
constexpr uint64_t kForeignPauseNs = 3 * kSecond;
constexpr uint64_t kReportNs = 10 * kSecond;

// One address: an attempt under way, or a pause until the next.
class Target final : public ConnectHandler {
 public:
  Target(Log& log, const StoreClient::Options& options, const Address& address)
      : log_(log),
        options_(options),
        address_(address),
        limit_ns_(options.relay ? kLastLimitNs : kFirstLimitNs) {}

  const Address& address() const { return address_; }
  const std::string& error() const { return error_; }
  bool denied() const { return denied_; }
  bool found() const { return socket_.valid(); }
  bool has_failed() const { return !error_.empty() && connector_ == nullptr; }
  StreamSocket take() { return std::move(socket_); }

  uint64_t next_timer_ns() const {
    return connector_ ? connector_->next_timer_ns() : next_attempt_ns_;
  }

  void advance(Poller& poller, uint64_t now, uint64_t deadline) {
    if (connector_ == nullptr && now >= next_attempt_ns_) start(poller, now, deadline);
    if (connector_ != nullptr) connector_->expire(now);
  }

  void on_connect(Result<StreamSocket> socket) override {
    const std::unique_ptr<Connector> ended = std::move(connector_);
    if (socket.ok()) {
      socket_ = std::move(socket).value();
      return;
    }
    const uint64_t now = now_ns();
    const Code code = socket.status().code();
    denied_ = code == Code::kPermissionDenied || code == Code::kUnsupported;
    remember(std::string(socket.status().text()));
    if (now >= attempt_end_ns_) {
      limit_ns_ = std::min(2 * limit_ns_, kLastLimitNs);
      next_attempt_ns_ = now + kFirstRetryNs;
    } else if (denied_) {
      next_attempt_ns_ = now + kForeignPauseNs;
    } else {
      next_attempt_ns_ = now + pause_ns_;
      pause_ns_ = std::min(2 * pause_ns_, kLastRetryNs);
    }
  }

 private:
  void start(Poller& poller, uint64_t now, uint64_t deadline) {
    Hello hello = make_hello(options_.credentials, options_.relay ? Role::kRelay : Role::kStore,
                             options_.rank, options_.relay.value_or(0));
    attempt_end_ns_ = std::min(now + limit_ns_, deadline);
    connector_ = Connector::create(poller, {address_}, options_.credentials.secret,
                                   std::move(hello), attempt_end_ns_, *this, options_.tls);
  }

  // The connector's text names the address, which the report groups by; only the rest is kept.
  void remember(std::string text) {
    const std::string name = address_.to_string() + ": ";
    if (const size_t at = text.find(name); at != std::string::npos) text.erase(0, at + name.size());
    if (text == error_) return;
    error_ = std::move(text);
    log_.debug("store: {}{}", name, error_);
  }

  Log& log_;
  const StoreClient::Options& options_;
  const Address address_;
  std::unique_ptr<Connector> connector_;
  StreamSocket socket_;
  std::string error_;
  bool denied_ = false;
  uint64_t limit_ns_;  // of the next attempt
  uint64_t pause_ns_ = kFirstRetryNs;
  uint64_t attempt_end_ns_ = 0;
  uint64_t next_attempt_ns_ = 0;
};

// "29500, 29502-29516"
std::string ranges(const std::set<int>& ports) {
  std::string text;
  for (auto port = ports.begin(); port != ports.end();) {
    const int first = *port;
    int last = first;
    while (++port != ports.end() && *port == last + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

// "10.0.0.1:29500: not a hetcomm peer; 10.0.0.1:29501-29516: Connection refused". First who
// answered and refused: that is likely to be the store.
std::string describe(const std::vector<std::unique_ptr<Target>>& targets) {
  using Error = std::pair<bool, std::string>;  // not denied, text
  std::map<Error, std::map<std::string, std::set<int>>> places;
  for (const auto& target : targets) {
    const std::string name = target->address().to_string();
    const std::string error = target->error().empty() ? "no answer" : target->error();
    places[{!target->denied(), error}][name.substr(0, name.rfind(':'))].insert(
        target->address().port());
  }
  std::string text;
  for (const auto& [error, hosts] : places) {
    for (const auto& [host, ports] : hosts) {
      text += fmt::format("{}{}:{}", text.empty() ? "" : "; ", host, ranges(ports));
    }
    text += ": " + error.second;
  }
  return text;
}

}  // namespace

Result<StreamSocket> find_store(Log& log, const StoreClient::Options& options, uint64_t deadline_ns,
                                uint64_t limit_ns) {
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) return poller.status();
  std::vector<std::unique_ptr<Target>> targets;
  targets.reserve(options.addresses.size());
  for (const Address& address : options.addresses) {
    targets.push_back(std::make_unique<Target>(log, options, address));
  }
  uint64_t report_ns = deadline_after(now_ns(), kReportNs);
  while (true) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) break;
    if (now >= report_ns) {
      log.warn("still looking for {}: {}", options.service(), describe(targets));
      report_ns = kForever;
    }
    uint64_t timer = std::min(deadline_ns, report_ns);
    for (const auto& target : targets) {
      target->advance(poller.value(), now, deadline_ns);
      timer = std::min(timer, target->next_timer_ns());
    }
    if (timer > now) poller->wait(timer - now);
    poller->poll();
    for (const auto& target : targets) {
      if (target->found()) return target->take();
    }
    if (options.relay && std::all_of(targets.begin(), targets.end(),
                                     [](const auto& target) { return target->has_failed(); })) {
      break;
    }
  }
  // A service of another kind on one port says nothing while the store is merely late; but when
  // nothing else answered, a failed proof is the likely reason.
  const bool denied = std::all_of(targets.begin(), targets.end(),
                                  [](const auto& target) { return target->denied(); });
  if (options.relay) {
    return Status(denied ? Code::kPermissionDenied : Code::kBootstrapFailed, describe(targets));
  }
  return Status(
      denied ? Code::kPermissionDenied : Code::kBootstrapFailed,
      fmt::format(
          "rank 0's store was not found{}: {}; check that rank 0 runs and that "
          "MASTER_ADDR and MASTER_PORT lead to it",
          limit_ns == 0 || limit_ns == kForever ? " in time" : " within " + duration_text(limit_ns),
          describe(targets)));
}

}  // namespace hetcomm
