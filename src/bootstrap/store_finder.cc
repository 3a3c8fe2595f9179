#include "src/bootstrap/store_finder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "src/bootstrap/store_protocol.h"
#include "src/net/connector.h"
#include "src/net/poller.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kFirstLimitNs = kSecond;  // time limit of an attempt; doubles after each timeout
constexpr uint64_t kLastLimitNs = 10 * kSecond;
constexpr uint64_t kFirstRetryNs = kSecond / 20;  // pause after a failed attempt; doubles each time
constexpr uint64_t kLastRetryNs = kSecond / 2;
constexpr uint64_t kForeignPauseNs = 3 * kSecond;
constexpr uint64_t kReportNs = 10 * kSecond;

constexpr uint64_t kConfirmNs = 5 * kSecond;
constexpr uint64_t kSilentNs = kSecond;  // after this time an attempt counts as unanswered
constexpr uint64_t kLookNs = kSecond / 10;

// The outcome of the attempts at one address.
enum class Verdict : uint8_t {
  kNone,     // no attempt has ended yet
  kClosed,   // no process listens there
  kSilent,   // no answer in time, or the connection broke
  kForeign,  // another service or job
  kJoined,   // a store of this job, in which another process has this rank
  kSecret,   // a store with another secret
  kEnded     // rank 0 has failed, and reports why
};

// Tries one address repeatedly, with pauses. An attempt makes a connection, proves the secret on
// it, and reads the store's greeting.
class Target final : public ConnectHandler, public Watcher {
 public:
  Target(Log& log, const StoreClient::Options& options, Poller& poller, const Address& address)
      : log_(log),
        options_(options),
        poller_(poller),
        address_(address),
        limit_ns_(options.relay ? kLastLimitNs : kFirstLimitNs) {}
  ~Target() { drop_socket(); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  const Address& address() const { return address_; }
  const std::string& error() const { return error_; }
  bool denied() const { return denied_; }
  Verdict verdict() const { return verdict_; }
  const Status& reason() const { return reason_; }
  bool found() const { return greeted_; }
  bool closed() const { return closed_; }
  // Returns whether the verdict() comes from an attempt that ended at |since_ns| or later.
  bool has_answered_since(uint64_t since_ns) const { return answer_ns_ >= since_ns; }
  bool has_failed() const { return !error_.empty() && connector_ == nullptr && !socket_.valid(); }
  // Returns whether an attempt has ended at |since_ns| or later, or has been unanswered for
  // kSilentNs.
  bool has_result_since(uint64_t since_ns, uint64_t now) const {
    const bool tries = connector_ != nullptr || socket_.valid();
    return result_ns_ >= since_ns || (tries && now >= begun_ns_ + kSilentNs);
  }
  FoundStore take() {
    poller_.remove(socket_.get(), *this);
    return {.socket = std::move(socket_), .id = id_};
  }

  uint64_t next_timer_ns() const {
    if (socket_.valid()) return kForever;
    return connector_ ? connector_->next_timer_ns() : next_attempt_ns_;
  }

  void advance(uint64_t now, uint64_t deadline) {
    if (socket_.valid()) return;
    if (connector_ == nullptr && now >= next_attempt_ns_) start(now, deadline);
    if (connector_ != nullptr) connector_->expire(now);
  }

  void on_connect(Result<StreamSocket> socket) override {
    const std::unique_ptr<Connector> ended = std::move(connector_);
    if (socket.ok()) {
      wait_for_greeting(std::move(socket).value());
      return;
    }
    closed_ = !ended->refused().empty();
    denied_ = socket.status().code() == Code::kPermissionDenied ||
              socket.status().code() == Code::kUnsupported;
    switch (ended->denial()) {
      case Denial::kSecret:
        note(Verdict::kSecret, socket.status());
        break;
      case Denial::kEnded:
        denied_ = true;
        note(Verdict::kEnded, ended->denial_reason());
        break;
      case Denial::kIdentity:
      case Denial::kOther:
        note(Verdict::kForeign, socket.status());
        break;
      case Denial::kNone:
        note(closed_   ? Verdict::kClosed
             : denied_ ? Verdict::kForeign
                       : Verdict::kSilent,
             socket.status());
        break;
    }
  }

  void on_events(uint32_t /*events*/) override {
    if (!socket_.flushed()) (void)socket_.flush();
    read_greeting();
  }

 private:
  void start(uint64_t now, uint64_t deadline) {
    Hello hello = make_hello(options_.credentials, options_.relay ? Role::kRelay : Role::kStore,
                             options_.rank, options_.relay.value_or(0));
    if (options_.ticket) hello.extra.assign(options_.ticket->begin(), options_.ticket->end());
    begun_ns_ = now;
    attempt_end_ns_ = std::min(now + limit_ns_, deadline);
    connector_ = Connector::create(poller_, {address_}, options_.credentials.secret,
                                   std::move(hello), attempt_end_ns_, *this, options_.tls);
  }

  // Waits for the greeting without a time limit: the store has proved itself, but may be busy with
  // thousands of clients.
  void wait_for_greeting(StreamSocket socket) {
    socket_ = std::move(socket);
    in_.clear();
    const uint32_t events = EPOLLIN | (socket_.flushed() ? 0 : uint32_t{EPOLLOUT});
    if (Status status = poller_.add(socket_.get(), events, *this); !status.ok()) {
      socket_.reset();
      note(Verdict::kSilent, status);
      return;
    }
    read_greeting();
  }

  void read_greeting() {
    while (socket_.valid() && !greeted_) {
      const bool has_length = in_.size() >= kFrameHeaderBytes;
      const size_t length = has_length ? ByteReader(in_).read<uint32_t>() : 0;
      if (length > sizeof(int32_t) + sizeof(uint32_t) + kMaxReplyText) {
        return lose(Status(Code::kBootstrapFailed, "a malformed greeting"));
      }
      const size_t wanted = kFrameHeaderBytes + length;
      if (has_length && in_.size() == wanted) return judge_greeting();
      std::array<std::byte, kMaxReplyText> chunk;
      const ssize_t got =
          socket_.receive(chunk.data(), std::min(chunk.size(), wanted - in_.size()));
      if (got > 0) {
        in_.insert(in_.end(), chunk.begin(), chunk.begin() + got);
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        return lose(Status(Code::kPeerLost, "the store ended the connection; it is tried again"));
      } else if (errno == EAGAIN) {
        const uint32_t events = EPOLLIN | (socket_.flushed() ? 0 : uint32_t{EPOLLOUT});
        (void)poller_.modify(socket_.get(), events, *this);
        return;
      }
    }
  }

  void judge_greeting() {
    Result<ConstByteSpan> greeting = decode_reply(ConstByteSpan(in_).subspan(kFrameHeaderBytes));
    if (greeting.ok() && greeting->size() != id_.size()) {
      return lose(Status(Code::kBootstrapFailed, "a malformed greeting"));
    }
    greeted_ = greeting.ok();
    if (greeted_) {
      std::copy(greeting->begin(), greeting->end(), id_.begin());
      return;
    }
    denied_ = greeting.status().code() == Code::kPermissionDenied;
    lose(greeting.status(), denied_ ? Verdict::kJoined : Verdict::kSilent);
  }

  void lose(const Status& why, Verdict verdict = Verdict::kSilent) {
    drop_socket();
    closed_ = false;
    note(verdict, why);
  }

  void drop_socket() {
    if (socket_.valid()) poller_.remove(socket_.get(), *this);
    socket_.reset();
  }

  // Records a verdict and schedules the next attempt. kSecret and kEnded are replaced only by
  // another answer, not by silence or a closed port.
  void note(Verdict verdict, const Status& why) {
    const uint64_t now = now_ns();
    result_ns_ = now;
    if (verdict == Verdict::kSilent && now >= attempt_end_ns_) {
      limit_ns_ = std::min(2 * limit_ns_, kLastLimitNs);
      next_attempt_ns_ = now + kFirstRetryNs;
    } else if (denied_) {
      next_attempt_ns_ = now + kForeignPauseNs;
    } else {
      next_attempt_ns_ = now + pause_ns_;
      pause_ns_ = std::min(2 * pause_ns_, kLastRetryNs);
    }
    const bool is_answer = verdict != Verdict::kClosed && verdict != Verdict::kSilent;
    const bool decided = verdict_ == Verdict::kSecret || verdict_ == Verdict::kEnded;
    if (decided && !is_answer) return;
    verdict_ = verdict;
    answer_ns_ = now;
    reason_ = why;
    remember(std::string(why.text()));
  }

  // Keeps the text without the address that the connector added, because describe() groups
  // addresses with equal texts.
  void remember(std::string text) {
    const std::string name = address_.to_string() + ": ";
    if (const size_t at = text.find(name); at != std::string::npos) text.erase(0, at + name.size());
    if (text == error_) return;
    error_ = std::move(text);
    log_.debug("store: {}{}", name, error_);
  }

  Log& log_;
  const StoreClient::Options& options_;
  Poller& poller_;
  const Address address_;
  std::unique_ptr<Connector> connector_;
  StreamSocket socket_;        // after the handshake; its greeting is pending or received
  std::vector<std::byte> in_;  // bytes of the greeting
  bool greeted_ = false;
  StoreId id_{};  // the id of the store that has greeted
  std::string error_;
  bool denied_ = false;  // the last attempt reached a service that rejects this rank
  bool closed_ = false;  // the last attempt found no process listening
  Verdict verdict_ = Verdict::kNone;
  Status reason_;
  uint64_t limit_ns_;  // time limit of the next attempt
  uint64_t pause_ns_ = kFirstRetryNs;
  uint64_t begun_ns_ = 0;
  uint64_t attempt_end_ns_ = 0;
  uint64_t next_attempt_ns_ = 0;
  uint64_t result_ns_ = 0;  // when the last attempt ended; 0: none has ended
  uint64_t answer_ns_ = 0;  // when |verdict_| was last recorded
};

using Targets = std::vector<std::unique_ptr<Target>>;

const Target* find_verdict(const Targets& targets, Verdict verdict) {
  for (const auto& target : targets) {
    if (target->verdict() == verdict) return target.get();
  }
  return nullptr;
}

bool all_have_results_since(const Targets& targets, uint64_t since_ns, uint64_t now) {
  return std::all_of(targets.begin(), targets.end(),
                     [&](const auto& target) { return target->has_result_since(since_ns, now); });
}

// Decides whether this rank was turned away for good. Waits for a second answer after kConfirmNs,
// since the first may come from what is left of an earlier job.
class Confirmation {
 public:
  explicit Confirmation(Log& log) : log_(log) {}

  bool is_final(const Targets& targets, uint64_t now) {
    const Target* away = find_verdict(targets, Verdict::kEnded);
    if (away == nullptr) away = find_verdict(targets, Verdict::kSecret);
    if (away == nullptr) {
      confirm_ns_ = kForever;
      return false;
    }
    if (confirm_ns_ == kForever && all_have_results_since(targets, 1, now)) {
      confirm_ns_ = now + kConfirmNs;
      log_.warn("store: {} turned this rank away: {}; it looks once more after {}",
                away->address().to_string(), away->reason().text(), duration_text(kConfirmNs));
    }
    return now >= confirm_ns_ && all_have_results_since(targets, confirm_ns_, now) &&
           is_confirmed(targets);
  }
  uint64_t next_timer_ns(const Targets& targets, uint64_t now) const {
    const bool away = find_verdict(targets, Verdict::kEnded) != nullptr ||
                      find_verdict(targets, Verdict::kSecret) != nullptr;
    return away ? now + kLookNs : kForever;
  }

 private:
  // The answer of a failed rank 0 remains valid, although rank 0 may have exited since. A store
  // with another secret must have answered again: if it has exited, its port is free for this job's
  // store.
  bool is_confirmed(const Targets& targets) const {
    return std::any_of(targets.begin(), targets.end(), [&](const auto& target) {
      return target->verdict() == Verdict::kEnded ||
             (target->verdict() == Verdict::kSecret && target->has_answered_since(confirm_ns_));
    });
  }

  Log& log_;
  uint64_t confirm_ns_ = kForever;
};

// Returns a list of port ranges, such as "29500, 29502-29516".
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

// Returns the last error of each address, such as "10.0.0.1:29500: not a hetcomm peer;
// 10.0.0.1:29501-29516: Connection refused". Services that rejected this rank come first, because
// the store is probably among them.
std::string describe(const Targets& targets) {
  using Error = std::pair<bool, std::string>;  // "no service rejected us", and the text
  std::map<Error, std::map<std::string, std::set<int>>> failed_at;
  for (const auto& target : targets) {
    const std::string name = target->address().to_string();
    const std::string error = target->error().empty() ? "no answer" : target->error();
    failed_at[{!target->denied(), error}][name.substr(0, name.rfind(':'))].insert(
        target->address().port());
  }
  std::string text;
  for (const auto& [error, hosts] : failed_at) {
    for (const auto& [host, ports] : hosts) {
      text += fmt::format("{}{}:{}", text.empty() ? "" : "; ", host, ranges(ports));
    }
    text += ": " + error.second;
  }
  return text;
}

// Returns the error of the search. A foreign service on some ports does not make it
// PERMISSION_DENIED, since the store may only be late. If all addresses reject this rank, a failed
// proof is the likely reason.
Status failure_of(const Targets& targets, const StoreClient::Options& options,
                  std::string_view within) {
  const bool all_denied = std::all_of(targets.begin(), targets.end(),
                                      [](const auto& target) { return target->denied(); });
  if (options.relay) {
    return Status(all_denied ? Code::kPermissionDenied : Code::kBootstrapFailed, describe(targets));
  }
  if (const Target* ended = find_verdict(targets, Verdict::kEnded)) {
    return Status(ended->reason().code(),
                  fmt::format("rank 0 has failed at {}: {}; see its log",
                              ended->address().to_string(), ended->reason().text()));
  }
  const bool away = all_denied || find_verdict(targets, Verdict::kSecret) != nullptr ||
                    find_verdict(targets, Verdict::kJoined) != nullptr;
  return Status(away ? Code::kPermissionDenied : Code::kBootstrapFailed,
                fmt::format("rank 0's store was not found{}: {}; check that rank 0 runs and that "
                            "MASTER_ADDR and MASTER_PORT lead to it",
                            within, describe(targets)));
}

}  // namespace

Result<FoundStore> find_store(Log& log, const StoreClient::Options& options, uint64_t deadline_ns,
                              uint64_t limit_ns, bool was_found) {
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) return poller.status();
  Targets targets;
  targets.reserve(options.addresses.size());
  for (const Address& address : options.addresses) {
    targets.push_back(std::make_unique<Target>(log, options, poller.value(), address));
  }
  Confirmation confirmation(log);
  uint64_t report_ns = deadline_after(now_ns(), kReportNs);
  while (true) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) break;
    if (now >= report_ns) {
      log.warn("still looking for {}: {}", options.service(), describe(targets));
      report_ns = kForever;
    }
    uint64_t timer = std::min({deadline_ns, report_ns, confirmation.next_timer_ns(targets, now)});
    for (const auto& target : targets) {
      target->advance(now, deadline_ns);
      timer = std::min(timer, target->next_timer_ns());
    }
    if (timer > now) poller->wait(timer - now);
    poller->poll();
    for (const auto& target : targets) {
      if (target->found()) return target->take();
    }
    const auto all = [&](auto&& has) {
      return std::all_of(targets.begin(), targets.end(),
                         [&](const auto& target) { return has(*target); });
    };
    if (options.relay && all([](const Target& target) { return target.has_failed(); })) break;
    if (was_found && all([](const Target& target) { return target.closed(); })) break;
    if (!options.relay && confirmation.is_final(targets, now_ns())) break;
  }
  const bool early = now_ns() < deadline_ns;
  const bool has_limit = limit_ns != 0 && limit_ns != kForever;
  return failure_of(targets, options,
                    early       ? ""
                    : has_limit ? " within " + duration_text(limit_ns)
                                : " in time");
}

}  // namespace hetcomm
