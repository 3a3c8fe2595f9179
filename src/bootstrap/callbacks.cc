// CallbackBootstrap exchanges values through the caller's functions.
//
// Rank 0 broadcasts a random key, or a salt if it has a configured secret. With put and get it does
// not wait for the other ranks. In the next exchange each rank's value carries a mark of its
// secret, which shows whether all ranks agree. Strangers may be able to read the exchanged values.
// Therefore the mark of a configured secret is salted by rank 0 and slow to compute. A random key
// is deleted once all ranks have it, which is after the first exchange with marks.
#include <algorithm>
#include <optional>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "src/bootstrap/bootstrap.h"
#include "src/bootstrap/callback_exchange.h"
#include "src/bootstrap/exchange_names.h"
#include "src/bootstrap/relay.h"
#include "src/bootstrap/secret.h"
#include "src/bootstrap/store_protocol.h"
#include "src/bootstrap/variables.h"
#include "src/net/hash.h"
#include "src/net/key.h"
#include "src/system/clock.h"
#include "src/system/random.h"

namespace hetcomm {
namespace {

using Values = std::vector<std::vector<std::byte>>;

// Rank 0's broadcast is a flag, and a salt or a key.
constexpr size_t kSecretBytes = 1 + std::tuple_size_v<Digest>;
// A mark is a flag, a digest of the secret, and a digest of the job's name.
constexpr size_t kMarkBytes = 2 * kSecretBytes - 1;
static_assert(kMaxStoreValue + kMarkBytes <= kMaxExchangeValue);

class CallbackBootstrap final : public Bootstrap {
 public:
  CallbackBootstrap(const Config& config, Log& log, int rank, int size, std::string job,
                    std::unique_ptr<CallbackExchange> exchange, std::optional<Secret> configured)
      : log_(log),
        rank_(rank),
        size_(size),
        job_(std::move(job)),
        exchange_(std::move(exchange)),
        configured_(configured),
        relay_(config, log) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Address local_address() const override { return {}; }
  // Ignored: no error text of this bootstrap names the user's time limit.
  void set_time_limit(uint64_t /*limit_ns*/) override {}

  // Collective on its first use. A rank keeps its own secret if that differs from rank 0's, or if
  // only one of the two has a configured secret. The next exchange reports the disagreement to all
  // ranks, so it can be distinguished from a network fault.
  Result<Secret> secret(uint64_t deadline_ns) override {
    if (secret_) return *secret_;
    Result<Secret> mine = configured_ ? Result<Secret>(*configured_) : random_secret();
    if (!mine.ok()) return mine.status();
    Secret secret = mine.value();
    if (size_ > 1) {
      Digest own_salt{};
      HETCOMM_RETURN_IF_ERROR(fill_random(own_salt));
      ByteWriter writer;
      writer.write(static_cast<uint8_t>(configured_ ? 1 : 0));
      writer.write_raw(configured_ ? ConstByteSpan(own_salt) : ConstByteSpan(secret.bytes()));
      const std::string scope = scopes_.next("secret");
      if (rank_ == 0 && !configured_) key_scope_ = scope;
      Result<std::vector<std::byte>> first =
          exchange_->broadcast(scope, Members::all(size_), writer.bytes(), deadline_ns);
      if (!first.ok()) return first.status();
      if (first->size() != kSecretBytes) {
        return Status(
            Code::kBootstrapFailed,
            "a rank has sent a malformed secret; does every rank use the same release of hetcomm?");
      }
      const bool handed_out = first->front() == std::byte{0};
      if (!configured_ && handed_out) {
        Secret::Bytes bytes{};
        std::copy_n(first->begin() + 1, bytes.size(), bytes.begin());
        secret = Secret(bytes);
        wipe(bytes);
      }
      HETCOMM_RETURN_IF_ERROR(make_mark(secret, ConstByteSpan(first.value()).subspan(1)));
      compare_next_ = true;
    }
    secret_ = secret_of_job(secret, job_);
    return *secret_;
  }

  std::optional<Secret> configured_key() const override {
    return configured_ ? std::optional(secret_of_job(*configured_, job_)) : std::nullopt;
  }

  Result<std::vector<std::byte>> broadcast(const std::string& scope, ConstByteSpan mine,
                                           uint64_t deadline_ns) override {
    return broadcast_to(scope, Members::all(size_), mine, deadline_ns);
  }

  Result<Values> allgather(const std::string& scope, ConstByteSpan mine,
                           uint64_t deadline_ns) override {
    if (compare_next_) {
      Result<Values> all = marked_allgather(scope, Members::all(size_), mine, deadline_ns);
      compare_next_ = compare_next_ && !all.ok();
      return all;
    }
    HETCOMM_RETURN_IF_ERROR(check_length(mine));
    if (size_ == 1) return Values{{mine.begin(), mine.end()}};
    return exchange_->allgather(scopes_.next(scope), Members::all(size_), mine, deadline_ns);
  }

  bool exchanges_by_groups() const override { return size_ == 1 || exchange_->has_groups(); }

  Result<Values> allgather_among(const std::string& scope, const RankGroup& group,
                                 ConstByteSpan mine, uint64_t deadline_ns) override {
    HETCOMM_RETURN_IF_ERROR(check_group());
    return marked_allgather(scope, Members::of(group, size_), mine, deadline_ns);
  }

  Result<std::vector<std::byte>> broadcast_among(const std::string& scope, const RankGroup& group,
                                                 ConstByteSpan mine,
                                                 uint64_t deadline_ns) override {
    HETCOMM_RETURN_IF_ERROR(check_group());
    return broadcast_to(scope, Members::of(group, size_), mine, deadline_ns);
  }

  Relay& relay() override { return relay_; }
  SurvivorFinder* survivor_finder() override { return nullptr; }

 private:
  static bool is_whole(const Members& members) { return members.form == ExchangeForm::kWhole; }

  static Status check_length(ConstByteSpan mine) {
    if (mine.size() <= kMaxStoreValue) return {};
    return Status(Code::kInvalidArgument,
                  fmt::format("an exchange of {} bytes is too long", mine.size()));
  }
  Status check_group() const {
    if (exchanges_by_groups()) return {};
    return Status(Code::kUnsupported, "an allgather callback serves all ranks together");
  }

  Result<std::vector<std::byte>> broadcast_to(const std::string& scope, const Members& members,
                                              ConstByteSpan mine, uint64_t deadline_ns) {
    HETCOMM_RETURN_IF_ERROR(check_length(mine));
    if (size_ == 1) return std::vector<std::byte>(mine.begin(), mine.end());
    const ExchangeKind kind = is_whole(members) ? ExchangeKind::kAll : ExchangeKind::kBroadcast;
    return exchange_->broadcast(scopes_.next(scope, kind), members, mine, deadline_ns);
  }

  // Gathers values that carry their ranks' marks, and compares the marks. Exchanges by groups
  // always compare them: together the blocks and their leaders compare all marks, but no rank can
  // tell when the last group has done so.
  Result<Values> marked_allgather(const std::string& scope, const Members& members,
                                  ConstByteSpan mine, uint64_t deadline_ns) {
    HETCOMM_RETURN_IF_ERROR(check_length(mine));
    if (size_ == 1) return Values{{mine.begin(), mine.end()}};
    std::vector<std::byte> marked = mark_;
    marked.insert(marked.end(), mine.begin(), mine.end());
    const ExchangeKind kind = is_whole(members) ? ExchangeKind::kAll : kind_of(members.group);
    Result<Values> all =
        exchange_->allgather(scopes_.next(scope, kind), members, marked, deadline_ns);
    // After an exchange within a block, ranks of other blocks may still need the key. After an
    // exchange of leaders, all ranks have it.
    if (kind != ExchangeKind::kBlocks) delete_key();
    if (!all.ok()) return all;
    HETCOMM_RETURN_IF_ERROR(check_agreement(members.group, all.value()));
    for (std::vector<std::byte>& value : all.value()) {
      value.erase(value.begin(), value.begin() + static_cast<ptrdiff_t>(mark_.size()));
    }
    return all;
  }

  // Makes this rank's mark: a flag for a configured secret, a digest of the secret, and a digest of
  // the job's name. Random keys cannot be guessed, so a fast digest is enough for them.
  Status make_mark(const Secret& secret, ConstByteSpan salt) {
    Result<Digest> check =
        configured_ ? slow_digest(secret, salt) : Result<Digest>(hmac_sha256(secret, salt));
    if (!check.ok()) return check.status();
    ByteWriter writer;
    writer.write(static_cast<uint8_t>(configured_ ? 1 : 0));
    writer.write_raw(check.value());
    writer.write_raw(sha256(std::as_bytes(std::span(job_))));
    mark_ = writer.take();
    return {};
  }

  // Deletes the random key that this rank has published. The exchange with marks has ended. Either
  // all ranks have the key by now, or the bootstrap has failed and the key is useless.
  void delete_key() {
    if (key_scope_.empty()) return;
    if (Status status = exchange_->forget(key_scope_); !status.ok()) {
      log_.warn("the job's random key stays in the caller's store: {}", status.text());
    }
    key_scope_.clear();
  }

  // Checks that the mark at the beginning of each value equals this rank's mark.
  Status check_agreement(const RankGroup& group, const Values& all) const {
    if (mark_.empty()) return {};
    const std::vector<std::byte>& mine = mark_;
    std::vector<int> others;
    std::vector<int> of_other_jobs;
    bool key_differs = false;
    for (int index = 0; index < group.count; ++index) {
      const int rank = group.rank(index);
      const std::vector<std::byte>& theirs = all[static_cast<size_t>(index)];
      if (theirs.size() < kMarkBytes) {
        return Status(
            Code::kBootstrapFailed,
            "a rank has sent a malformed secret; does every rank use the same release of hetcomm?");
      }
      const auto job = mine.begin() + static_cast<ptrdiff_t>(kSecretBytes);
      if (!std::equal(job, mine.end(), theirs.begin() + static_cast<ptrdiff_t>(kSecretBytes))) {
        of_other_jobs.push_back(rank);
      }
      if (std::equal(mine.begin(), job, theirs.begin())) continue;
      key_differs = key_differs || (!configured_ && theirs.front() == mine.front());
      others.push_back(rank);
    }
    if (!of_other_jobs.empty()) {
      return Status(
          Code::kPermissionDenied,
          fmt::format("{} {} another HETCOMM_JOB than rank {} ('{}')",
                      format_ranks(of_other_jobs, size_),
                      of_other_jobs.size() == 1 ? "has" : "have", rank_, printable(job_)));
    }
    if (others.empty()) return {};
    if (key_differs) {
      return Status(Code::kBootstrapFailed,
                    "the ranks have got different keys: two processes say that they are rank 0, or "
                    "the store holds values of an earlier run");
    }
    return Status(Code::kPermissionDenied,
                  fmt::format("{} {} not have the job secret that rank {} has{}: set the same "
                              "HETCOMM_SECRET or HETCOMM_SECRET_FILE everywhere, or none",
                              format_ranks(others, size_), others.size() == 1 ? "does" : "do",
                              rank_, configured_ ? "" : " (none)"));
  }

  Log& log_;
  const int rank_;
  const int size_;
  const std::string job_;
  const std::unique_ptr<CallbackExchange> exchange_;
  const std::optional<Secret> configured_;
  std::optional<Secret> secret_;
  std::vector<std::byte> mark_;  // the mark of this rank's secret
  std::string key_scope_;        // rank 0: the scope of a published key that is not yet deleted
  bool compare_next_ = false;    // true from secret() until an allgather has compared the secrets
  ScopeNames scopes_;
  Relay relay_;
};

Status check_options(const hetcomm_bootstrap_options_t& options) {
  if (options.size < 1 || options.size > kMaxStoreRanks || options.rank < 0 ||
      options.rank >= options.size) {
    return Status(Code::kInvalidArgument, fmt::format("options: rank {} of {} ranks does not exist",
                                                      options.rank, options.size));
  }
  if ((options.put == nullptr) != (options.get == nullptr)) {
    return Status(Code::kInvalidArgument, "options: set both put and get, or neither");
  }
  if (options.size > 1 && options.put == nullptr && options.allgather == nullptr) {
    return Status(Code::kInvalidArgument, "options: set put and get, or allgather");
  }
  if (options.secret != nullptr && options.secret_size == 0) {
    return Status(Code::kInvalidArgument, "options: the secret is empty");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> bootstrap_from_callbacks(
    const Config& config, Log& log, const hetcomm_bootstrap_options_t& options) {
  HETCOMM_RETURN_IF_ERROR(check_options(options));
  std::optional<Secret> secret;
  if (options.secret != nullptr) {
    secret = secret_from({static_cast<const std::byte*>(options.secret), options.secret_size});
  } else {
    Result<std::optional<Secret>> configured = configured_secret(config, log);
    if (!configured.ok()) return configured.status();
    secret = configured.value();
  }
  if (!secret) {
    HETCOMM_RETURN_IF_ERROR(
        allow_without_secret(config, log, options.rank, options.size, KeyChannel::kCallbacks));
  }
  return std::unique_ptr<Bootstrap>(std::make_unique<CallbackBootstrap>(
      config, log, options.rank, options.size, std::string(config.text(variable::kJob)),
      make_callback_exchange(options), secret));
}

}  // namespace hetcomm
