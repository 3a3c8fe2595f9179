// Bootstrap by functions of the caller's. With allgather: two calls for each exchange, sizes and
// then values padded to the largest. With put and get: rank r puts <scope>/r, rank 0 collects and
// puts <scope>/all, so that n ranks cost O(n) calls.
#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "src/base/bytes.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/bootstrap/bootstrap.h"
#include "src/bootstrap/scope.h"
#include "src/bootstrap/secret.h"
#include "src/bootstrap/store_protocol.h"
#include "src/net/hash.h"
#include "src/net/key.h"

namespace hetcomm {
namespace {

using Values = std::vector<std::vector<std::byte>>;

constexpr size_t kTokenBytes = 16;
constexpr size_t kFirstRoom = 16 * 1024;

Status callback_failed(std::string_view what, hetcomm_status_t status) {
  const Code code = static_cast<Code>(status);
  return Status(code == Code::kTimedOut ? Code::kTimedOut : Code::kBootstrapFailed,
                fmt::format("{} returned {} ({})", what, code_name(code), code_text(code)));
}

// How all ranks' values get to all ranks.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual Result<Values> allgather(const std::string& scope, ConstByteSpan mine,
                                   uint64_t deadline_ns) = 0;
};

class AllgatherExchange final : public Exchange {
 public:
  explicit AllgatherExchange(const hetcomm_bootstrap_options_t& options)
      : options_(options), size_(static_cast<size_t>(options.size)) {}

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
      if (sizes[rank] > kMaxStoreValue ||
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
        static_cast<size_t>(options_.size) * (kMaxStoreValue + kTokenBytes + sizeof(uint32_t)) +
        kMaxReplyText + 64;
    std::vector<std::byte> all;
    if (options_.rank == 0) {
      all = collect(prefix, std::move(value), deadline_ns);
      HETCOMM_RETURN_IF_ERROR(put(prefix + "all", all));
    } else {
      Result<std::vector<std::byte>> handed_out = get(prefix + "all", limit, deadline_ns);
      if (!handed_out.ok()) {
        return Status(Code::kBootstrapFailed, fmt::format("waiting for rank 0 in '{}': {}", scope,
                                                          handed_out.status().text()));
      }
      all = std::move(handed_out).value();
    }
    return unpack(all, token);
  }

 private:
  // What rank 0 hands out: a reply as of the store, with all values or with the reason why not.
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
    for (int rank = 1; rank < options_.size; ++rank) {
      Result<std::vector<std::byte>> value =
          get(prefix + std::to_string(rank), kMaxStoreValue + kTokenBytes, own_deadline);
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
               fmt::format("{} did not come", format_ranks(missing, options_.size))));
  }

  Result<Values> unpack(ConstByteSpan all, ConstByteSpan token) const {
    const Status malformed(Code::kBootstrapFailed, "rank 0 has handed out malformed values");
    if (all.size() < kFrameHeaderBytes) return malformed;
    Result<ConstByteSpan> payload = decode_reply(all.subspan(kFrameHeaderBytes));
    if (!payload.ok()) return payload.status();
    ByteReader reader(payload.value());
    Values values;
    for (int rank = 0; rank < options_.size; ++rank) {
      const ConstByteSpan value = reader.read_bytes(kMaxStoreValue + kTokenBytes);
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

  Result<std::vector<std::byte>> get(const std::string& key, size_t limit, uint64_t deadline_ns) {
    std::vector<std::byte> value(std::min(limit, kFirstRoom));
    while (true) {
      const uint64_t now = now_ns();
      const uint64_t left = deadline_ns == kForever ? kForever
                            : deadline_ns > now     ? deadline_ns - now
                                                    : 0;
      size_t size = value.size();
      const hetcomm_status_t status =
          options_.get(options_.user_data, key.c_str(), value.data(), &size, left);
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
  CallbackBootstrap(int rank, int size, std::unique_ptr<Exchange> exchange,
                    std::optional<Secret> configured)
      : rank_(rank), size_(size), exchange_(std::move(exchange)), configured_(configured) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // Collective on its first use: the ranks compare what they have (by a digest), so that a secret
  // which only some were given, or another one, is told apart from a network fault.
  Result<Secret> secret(uint64_t deadline_ns) override {
    if (secret_) return *secret_;
    Result<Secret> fresh = configured_ ? Result<Secret>(*configured_) : random_secret();
    if (!fresh.ok()) return fresh.status();
    ByteWriter mine;
    mine.write(static_cast<uint8_t>(configured_ ? 1 : 0));
    if (configured_) {
      mine.write_raw(check_value(*configured_));
    } else {
      mine.write_raw(rank_ == 0 ? fresh.value() : Secret{});
    }
    Result<Values> all = allgather("secret", mine.bytes(), deadline_ns);
    if (!all.ok()) return all.status();
    HETCOMM_RETURN_IF_ERROR(check_agreement(all.value(), mine.bytes()));
    Secret secret = fresh.value();
    if (!configured_) std::copy_n(all->front().begin() + 1, secret.size(), secret.begin());
    secret_ = secret;
    return secret;
  }

  Result<Values> allgather(const std::string& scope, ConstByteSpan mine,
                           uint64_t deadline_ns) override {
    if (mine.size() > kMaxStoreValue) {
      return Status(Code::kInvalidArgument, fmt::format("exchange of {} bytes", mine.size()));
    }
    if (size_ == 1) return Values{{mine.begin(), mine.end()}};
    return exchange_->allgather(scopes_.next(scope), mine, deadline_ns);
  }

 private:
  static Digest check_value(const Secret& secret) {
    constexpr std::string_view kLabel = "hetcomm secret check 1";
    return hmac_sha256(secret, std::as_bytes(std::span(kLabel)));
  }

  Status check_agreement(const Values& all, ConstByteSpan mine) const {
    std::vector<int> others;
    for (int rank = 0; rank < size_; ++rank) {
      const std::vector<std::byte>& theirs = all[static_cast<size_t>(rank)];
      if (theirs.size() != mine.size()) {
        return Status(Code::kBootstrapFailed, "malformed secret exchange");
      }
      const bool agree = configured_ ? std::equal(theirs.begin(), theirs.end(), mine.begin())
                                     : theirs[0] == mine[0];
      if (!agree) others.push_back(rank);
    }
    if (others.empty()) return {};
    return Status(Code::kPermissionDenied,
                  fmt::format("{} {} not have the job secret that rank {} has{}: set the same "
                              "HETCOMM_SECRET or HETCOMM_SECRET_FILE everywhere, or none",
                              format_ranks(others, size_), others.size() == 1 ? "does" : "do",
                              rank_, configured_ ? "" : " (none)"));
  }

  const int rank_;
  const int size_;
  const std::unique_ptr<Exchange> exchange_;
  const std::optional<Secret> configured_;
  std::optional<Secret> secret_;
  ScopeNames scopes_;
};

Status check_options(const hetcomm_bootstrap_options_t& options) {
  if (options.size < 1 || options.size > kMaxStoreRanks || options.rank < 0 ||
      options.rank >= options.size) {
    return Status(Code::kInvalidArgument,
                  fmt::format("bootstrap: rank {} of {}", options.rank, options.size));
  }
  if ((options.put == nullptr) != (options.get == nullptr)) {
    return Status(Code::kInvalidArgument, "bootstrap: put and get come together");
  }
  if (options.size > 1 && options.put == nullptr && options.allgather == nullptr) {
    return Status(Code::kInvalidArgument, "bootstrap: neither put and get nor allgather is given");
  }
  if (options.secret != nullptr && options.secret_size == 0) {
    return Status(Code::kInvalidArgument, "bootstrap: the secret is empty");
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
  std::unique_ptr<Exchange> exchange;
  if (options.allgather != nullptr) {
    exchange = std::make_unique<AllgatherExchange>(options);
  } else if (options.put != nullptr) {
    exchange = std::make_unique<PutGetExchange>(options);
  }
  return std::unique_ptr<Bootstrap>(
      std::make_unique<CallbackBootstrap>(options.rank, options.size, std::move(exchange), secret));
}

}  // namespace hetcomm
