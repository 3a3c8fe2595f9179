// Bootstrap by functions of the caller's. With allgather: two calls for each exchange, sizes and
// then values padded to the largest. With put and get: rank r puts <scope>/r, rank 0 collects and
// puts <scope>/all, so that n ranks cost O(n) calls.
//
// The secret goes from rank 0 to all, which costs no meeting of the ranks; whether they agree about
// it shows in the exchange that follows, where each one's value carries a mark of its secret.
// Others may read what is exchanged. So the mark of a configured secret is salted by rank 0 and
// slow to compute, and a random key is deleted once that exchange has ended: by then all ranks have
// it.
#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "src/base/bytes.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/base/text.h"
#include "src/bootstrap/bootstrap.h"
#include "src/bootstrap/exchange_names.h"
#include "src/bootstrap/secret.h"
#include "src/bootstrap/store_protocol.h"
#include "src/net/hash.h"
#include "src/net/key.h"

namespace hetcomm {
namespace {

using Values = std::vector<std::vector<std::byte>>;

constexpr size_t kTokenBytes = 16;
constexpr size_t kSecretBytes = 1 + std::tuple_size_v<Digest>;  // what rank 0 broadcasts
constexpr size_t kMarkBytes = 2 * kSecretBytes - 1;             // with a digest of the job's name
constexpr size_t kMaxValue = kMaxStoreValue + kMarkBytes;
constexpr size_t kFirstRoom = 16 * 1024;
// Room for each value when many ranks are asked at once. A larger value is asked for again, alone.
constexpr size_t kManyRoom = 1024;

Status callback_failed(std::string_view what, hetcomm_status_t status) {
  const Code code = static_cast<Code>(status);
  return Status(code == Code::kTimedOut ? Code::kTimedOut : Code::kBootstrapFailed,
                fmt::format("{} returned {} ({})", what, code_name(code), code_text(code)));
}

// An exchange brings values from rank to rank.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Rank 0's value, to all ranks; what the others say does not count.
  virtual Result<std::vector<std::byte>> broadcast(const std::string& scope, ConstByteSpan mine,
                                                   uint64_t deadline_ns) = 0;
  // All ranks' values, to all ranks.
  virtual Result<Values> allgather(const std::string& scope, ConstByteSpan mine,
                                   uint64_t deadline_ns) = 0;
  // Rank 0: what it broadcast under |scope| is needed no more.
  virtual Status forget(const std::string& scope) = 0;
};

class AllgatherExchange final : public Exchange {
 public:
  explicit AllgatherExchange(const hetcomm_bootstrap_options_t& options)
      : options_(options), size_(static_cast<size_t>(options.size)) {}

  Result<std::vector<std::byte>> broadcast(const std::string& scope, ConstByteSpan mine,
                                           uint64_t deadline_ns) override {
    Result<Values> all = allgather(scope, mine, deadline_ns);
    if (!all.ok()) return all.status();
    return std::move(all->front());
  }

  // Nothing was stored.
  Status forget(const std::string& /*scope*/) override { return {}; }

  // The callback has no time limit; it is the caller's.
  Result<Values> allgather(const std::string& scope, ConstByteSpan mine,
                           uint64_t /*deadline_ns*/) override {
    const Digest scope_digest = sha256(std::as_bytes(std::span(scope)));
    ByteWriter head;
    head.write(static_cast<uint32_t>(mine.size()));
    head.write_raw(scope_digest);
    Result<std::vector<std::byte>> heads = gather(head.bytes());
    if (!heads.ok()) return heads.status();
    std::vector<size_t> sizes(size_);
    size_t largest = 0;
    ByteReader reader(heads.value());
    for (size_t rank = 0; rank < size_; ++rank) {
      sizes[rank] = reader.read<uint32_t>();
      largest = std::max(largest, sizes[rank]);
      if (sizes[rank] > kMaxValue ||
          !equal_in_constant_time(reader.read_raw(scope_digest.size()), scope_digest)) {
        return Status(Code::kBootstrapFailed,
                      fmt::format("allgather: rank {} is not in exchange '{}': the ranks' calls "
                                  "differ, or the callback mixes them up",
                                  rank, scope));
      }
    }
    if (largest == 0) return Values(size_);
    std::vector<std::byte> padded(mine.begin(), mine.end());
    padded.resize(largest);
    Result<std::vector<std::byte>> all = gather(padded);
    if (!all.ok()) return all.status();
    Values values(size_);
    for (size_t rank = 0; rank < size_; ++rank) {
      const ConstByteSpan value = ConstByteSpan(all.value()).subspan(rank * largest, sizes[rank]);
      values[rank].assign(value.begin(), value.end());
    }
    return values;
  }

 private:
  Result<std::vector<std::byte>> gather(ConstByteSpan mine) {
    std::vector<std::byte> all(mine.size() * size_);
    const hetcomm_status_t status =
        options_.allgather(options_.user_data, mine.data(), mine.size(), all.data());
    if (status != HETCOMM_OK) return callback_failed("the allgather callback", status);
    return all;
  }

  const hetcomm_bootstrap_options_t options_;
  const size_t size_;
};

class PutGetExchange final : public Exchange {
 public:
  explicit PutGetExchange(const hetcomm_bootstrap_options_t& options) : options_(options) {}

  Result<std::vector<std::byte>> broadcast(const std::string& scope, ConstByteSpan mine,
                                           uint64_t deadline_ns) override {
    const std::string key = broadcast_key(scope);
    if (options_.rank != 0) return get_of_rank_0(key, scope, kMaxValue, deadline_ns);
    HETCOMM_RETURN_IF_ERROR(put(key, mine));
    return std::vector<std::byte>(mine.begin(), mine.end());
  }

  // Each value carries a token, by which a rank sees that its own value is the one that counted.
  Result<Values> allgather(const std::string& scope, ConstByteSpan mine,
                           uint64_t deadline_ns) override {
    std::array<std::byte, kTokenBytes> token{};
    HETCOMM_RETURN_IF_ERROR(fill_random(token));
    std::vector<std::byte> value(token.begin(), token.end());
    value.insert(value.end(), mine.begin(), mine.end());
    const std::string prefix = "hetcomm/" + scope + "/";
    HETCOMM_RETURN_IF_ERROR(put(prefix + std::to_string(options_.rank), value));
    const size_t limit =
        static_cast<size_t>(options_.size) * (kMaxValue + kTokenBytes + sizeof(uint32_t)) +
        kMaxReplyText + 64;
    std::vector<std::byte> all;
    if (options_.rank == 0) {
      all = collect(prefix, std::move(value), deadline_ns);
      HETCOMM_RETURN_IF_ERROR(put(prefix + "all", all));
    } else {
      Result<std::vector<std::byte>> handed_out =
          get_of_rank_0(prefix + "all", scope, limit, deadline_ns);
      if (!handed_out.ok()) return handed_out.status();
      all = std::move(handed_out).value();
    }
    return unpack(all, token);
  }

  Status forget(const std::string& scope) override {
    if (options_.delete_key == nullptr) return {};
    const std::string key = broadcast_key(scope);
    const hetcomm_status_t status = options_.delete_key(options_.user_data, key.c_str());
    if (status == HETCOMM_OK) return {};
    return callback_failed(fmt::format("the delete_key callback for '{}'", key), status);
  }

 private:
  static std::string broadcast_key(const std::string& scope) { return "hetcomm/" + scope + "/0"; }

  // Returns what rank 0 hands out: a reply like the store's, with all values or the reason for
  // which there are none.
  std::vector<std::byte> collect(const std::string& prefix, std::vector<std::byte> mine,
                                 uint64_t deadline_ns) {
    // Rank 0 gives up a little earlier, so that its reason reaches the others in time.
    const uint64_t now = now_ns();
    const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    const uint64_t own_deadline = deadline_ns == kForever
                                      ? kForever
                                      : deadline_ns - std::min<uint64_t>(left / 8, 1'000'000'000);
    ByteWriter payload;
    payload.write_bytes(mine);
    std::vector<int> missing;
    const Fetched fetched = fetch_others(prefix, own_deadline);
    for (int rank = 1; rank < options_.size; ++rank) {
      if (const std::optional<ConstByteSpan> value = fetched.value(rank)) {
        payload.write_bytes(*value);
        continue;
      }
      Result<std::vector<std::byte>> value =
          get(prefix + std::to_string(rank), kMaxValue + kTokenBytes, own_deadline);
      if (value.ok()) {
        payload.write_bytes(value.value());
      } else if (value.status().code() == Code::kTimedOut) {
        missing.push_back(rank);
      } else {
        return *encode_failure(value.status().annotate(fmt::format("value of rank {}", rank)));
      }
    }
    if (missing.empty()) return *encode_success(payload.bytes());
    return *encode_failure(
        Status(Code::kBootstrapFailed,
               fmt::format("{} did not join; check that they started and use the same exchange, or "
                           "raise HETCOMM_BOOTSTRAP_TIMEOUT",
                           format_ranks(missing, options_.size))));
  }

  // The values that one call fetched of the ranks from 1 on.
  struct Fetched {
    std::vector<std::byte> values;
    std::vector<size_t> sizes;  // empty: nothing came

    // Nothing where the rank is to be asked alone.
    std::optional<ConstByteSpan> value(int rank) const {
      const auto index = static_cast<size_t>(rank - 1);
      if (index >= sizes.size() || sizes[index] > kManyRoom) return std::nullopt;
      return ConstByteSpan(values).subspan(index * kManyRoom, sizes[index]);
    }
  };

  // Whatever fails shows again, and which rank it is, when they are asked one by one.
  Fetched fetch_others(const std::string& prefix, uint64_t deadline_ns) {
    const auto count = static_cast<size_t>(options_.size - 1);
    if (options_.get_many == nullptr || count < 2) return {};
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) names.push_back(prefix + std::to_string(i + 1));
    std::vector<const char*> keys;
    for (const std::string& name : names) keys.push_back(name.c_str());
    Fetched fetched{.values = std::vector<std::byte>(count * kManyRoom),
                    .sizes = std::vector<size_t>(count)};
    const hetcomm_status_t status =
        options_.get_many(options_.user_data, count, keys.data(), kManyRoom, fetched.values.data(),
                          fetched.sizes.data(), time_left(deadline_ns));
    if (status != HETCOMM_OK) return {};
    return fetched;
  }

  Result<Values> unpack(ConstByteSpan all, ConstByteSpan token) const {
    const Status malformed(
        Code::kBootstrapFailed,
        "rank 0 has sent malformed values; does every rank use the same release of hetcomm?");
    if (all.size() < kFrameHeaderBytes) return malformed;
    Result<ConstByteSpan> payload = decode_reply(all.subspan(kFrameHeaderBytes));
    if (!payload.ok()) return payload.status();
    ByteReader reader(payload.value());
    Values values;
    for (int rank = 0; rank < options_.size; ++rank) {
      const ConstByteSpan value = reader.read_bytes(kMaxValue + kTokenBytes);
      if (value.size() < kTokenBytes) return malformed;
      if (rank == options_.rank && !equal_in_constant_time(value.first(kTokenBytes), token)) {
        return Status(Code::kBootstrapFailed,
                      fmt::format("two processes say that they are rank {}, or the store holds "
                                  "values of an earlier run",
                                  rank));
      }
      values.emplace_back(value.begin() + kTokenBytes, value.end());
    }
    if (!reader.finished()) return malformed;
    return values;
  }

  Status put(const std::string& key, ConstByteSpan value) {
    const hetcomm_status_t status =
        options_.put(options_.user_data, key.c_str(), value.data(), value.size());
    if (status == HETCOMM_OK) return {};
    return callback_failed(fmt::format("the put callback for '{}'", key), status);
  }

  static uint64_t time_left(uint64_t deadline_ns) {
    const uint64_t now = now_ns();
    if (deadline_ns == kForever) return kForever;
    return deadline_ns > now ? deadline_ns - now : 0;
  }

  Result<std::vector<std::byte>> get_of_rank_0(const std::string& key, const std::string& scope,
                                               size_t limit, uint64_t deadline_ns) {
    Result<std::vector<std::byte>> value = get(key, limit, deadline_ns);
    if (value.ok()) return value;
    return Status(Code::kBootstrapFailed,
                  fmt::format("waiting for rank 0 in '{}': {}", scope, value.status().text()));
  }

  Result<std::vector<std::byte>> get(const std::string& key, size_t limit, uint64_t deadline_ns) {
    std::vector<std::byte> value(std::min(limit, kFirstRoom));
    while (true) {
      size_t size = value.size();
      const hetcomm_status_t status = options_.get(options_.user_data, key.c_str(), value.data(),
                                                   &size, time_left(deadline_ns));
      if (status != HETCOMM_OK) {
        return callback_failed(fmt::format("the get callback for '{}'", key), status);
      }
      const bool fits = size <= value.size();
      if (size > limit) {
        return Status(Code::kBootstrapFailed, fmt::format("'{}' has {} bytes", key, size));
      }
      value.resize(size);
      if (fits) return value;
    }
  }

  const hetcomm_bootstrap_options_t options_;
};

class CallbackBootstrap final : public Bootstrap {
 public:
  CallbackBootstrap(Log& log, int rank, int size, std::string job,
                    std::unique_ptr<Exchange> exchange, std::optional<Secret> configured)
      : log_(log),
        rank_(rank),
        size_(size),
        job_(std::move(job)),
        exchange_(std::move(exchange)),
        configured_(configured) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Address local_address() const override { return {}; }
  // The caller's exchange has its own limits and texts.
  void set_time_limit(uint64_t /*limit_ns*/) override {}

  // Collective on its first use. A rank that was given another secret than rank 0, or alone none,
  // goes on with its own: the next exchange tells it and all others, so that this is told apart
  // from a network fault.
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
          exchange_->broadcast(scope, writer.bytes(), deadline_ns);
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
    if (mine.size() > kMaxStoreValue) {
      return Status(Code::kInvalidArgument,
                    fmt::format("a broadcast of {} bytes is too long", mine.size()));
    }
    if (size_ == 1) return std::vector<std::byte>(mine.begin(), mine.end());
    return exchange_->broadcast(scopes_.next(scope), mine, deadline_ns);
  }

  Result<Values> allgather(const std::string& scope, ConstByteSpan mine,
                           uint64_t deadline_ns) override {
    if (mine.size() > kMaxStoreValue) {
      return Status(Code::kInvalidArgument,
                    fmt::format("an exchange of {} bytes is too long", mine.size()));
    }
    if (size_ == 1) return Values{{mine.begin(), mine.end()}};
    if (!compare_next_) return exchange_->allgather(scopes_.next(scope), mine, deadline_ns);
    std::vector<std::byte> marked = mark_;
    marked.insert(marked.end(), mine.begin(), mine.end());
    Result<Values> all = exchange_->allgather(scopes_.next(scope), marked, deadline_ns);
    delete_key();
    if (!all.ok()) return all;
    HETCOMM_RETURN_IF_ERROR(check_agreement(all.value()));
    for (std::vector<std::byte>& value : all.value()) {
      value.erase(value.begin(), value.begin() + kMarkBytes);
    }
    compare_next_ = false;
    return all;
  }

  SurvivorFinder* survivor_finder() override { return nullptr; }

 private:
  // Makes the mark: it says whether a secret was configured, what tells it from others, and which
  // job this is. Random keys cannot be guessed, so a quick digest will do for them.
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

  // The exchange has ended, well or not: no rank waits for the key any more.
  void delete_key() {
    if (key_scope_.empty()) return;
    if (Status status = exchange_->forget(key_scope_); !status.ok()) {
      log_.warn("the job's random key stays in the caller's store: {}", status.text());
    }
    key_scope_.clear();
  }

  // In front of each value stands its rank's mark.
  Status check_agreement(const Values& all) const {
    const std::vector<std::byte>& mine = mark_;
    std::vector<int> others;
    std::vector<int> of_other_jobs;
    bool key_differs = false;
    for (int rank = 0; rank < size_; ++rank) {
      const std::vector<std::byte>& theirs = all[static_cast<size_t>(rank)];
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
  const std::unique_ptr<Exchange> exchange_;
  const std::optional<Secret> configured_;
  std::optional<Secret> secret_;
  std::vector<std::byte> mark_;  // of this rank's secret
  std::string key_scope_;        // rank 0: the key was published under it and not deleted yet
  bool compare_next_ = false;    // the ranks have not compared their secrets yet
  ScopeNames scopes_;
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
  std::unique_ptr<Exchange> exchange;
  if (options.allgather != nullptr) {
    exchange = std::make_unique<AllgatherExchange>(options);
  } else if (options.put != nullptr) {
    exchange = std::make_unique<PutGetExchange>(options);
  }
  return std::unique_ptr<Bootstrap>(std::make_unique<CallbackBootstrap>(
      log, options.rank, options.size, std::string(config.text(Variable::kJob)),
      std::move(exchange), secret));
}

}  // namespace hetcomm
