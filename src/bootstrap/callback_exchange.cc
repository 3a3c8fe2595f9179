#include "src/bootstrap/callback_exchange.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "src/bootstrap/exchange_names.h"
#include "src/bootstrap/store_protocol.h"
#include "src/net/hash.h"
#include "src/system/clock.h"
#include "src/system/random.h"

namespace hetcomm {
namespace {

using Values = CallbackExchange::Values;

constexpr size_t kTokenBytes = 16;
// A value of an allgather by put and get begins with a random token and its ExchangeForm.
constexpr size_t kHeadBytes = kTokenBytes + 1;
constexpr size_t kFirstRoom = 16 * 1024;
// The buffer size for each value when get_many fetches several. A larger value is fetched again by
// itself.
constexpr size_t kManyRoom = 1024;
// The time limit of a get that only checks whether a key exists.
constexpr uint64_t kLookNs = 50'000'000;

Status callback_failed(std::string_view what, hetcomm_status_t status) {
  const Code code = static_cast<Code>(status);
  return Status(code == Code::kTimedOut ? Code::kTimedOut : Code::kBootstrapFailed,
                fmt::format("{} returned {} ({})", what, code_name(code), code_text(code)));
}

class AllgatherExchange final : public CallbackExchange {
 public:
  explicit AllgatherExchange(const hetcomm_bootstrap_options_t& options)
      : options_(options), size_(static_cast<size_t>(options.size)) {}

  bool has_groups() const override { return false; }

  Result<std::vector<std::byte>> broadcast(const std::string& scope, const Members& members,
                                           ConstByteSpan mine, uint64_t deadline_ns) override {
    Result<Values> all = allgather(scope, members, mine, deadline_ns);
    if (!all.ok()) return all.status();
    return std::move(all->front());
  }

  // An allgather callback stores nothing, so there is nothing to drop.
  Status forget(const std::string& /*scope*/) override { return {}; }

  // Ignores the deadline, because the allgather callback takes no time limit.
  Result<Values> allgather(const std::string& scope, const Members& /*members*/, ConstByteSpan mine,
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
      if (sizes[rank] > kMaxExchangeValue ||
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

class PutGetExchange final : public CallbackExchange {
 public:
  explicit PutGetExchange(const hetcomm_bootstrap_options_t& options) : options_(options) {}

  bool has_groups() const override { return true; }

  Result<std::vector<std::byte>> broadcast(const std::string& scope, const Members& members,
                                           ConstByteSpan mine, uint64_t deadline_ns) override {
    const int root = members.group.first;
    const std::string key = broadcast_key(scope, members);
    if (options_.rank == root) {
      HETCOMM_RETURN_IF_ERROR(put(key, mine));
      return std::vector<std::byte>(mine.begin(), mine.end());
    }
    Result<std::vector<std::byte>> value = get_of(root, key, scope, kMaxExchangeValue, deadline_ns);
    return value.ok() ? std::move(value) : explain(scope, members, value.status());
  }

  // Each value carries a random token. The token lets a rank check that its own value was used, and
  // not the value of another process with the same rank.
  Result<Values> allgather(const std::string& scope, const Members& members, ConstByteSpan mine,
                           uint64_t deadline_ns) override {
    std::array<std::byte, kTokenBytes> token{};
    HETCOMM_RETURN_IF_ERROR(fill_random(token));
    std::vector<std::byte> value(token.begin(), token.end());
    value.push_back(static_cast<std::byte>(members.form));
    value.insert(value.end(), mine.begin(), mine.end());
    const Keys keys(scope, members);
    HETCOMM_RETURN_IF_ERROR(put(keys.key_of(options_.rank), value));
    const RankGroup& group = members.group;
    std::vector<std::byte> all;
    if (options_.rank == group.first) {
      const Frame collected = collect(keys, std::move(value), deadline_ns);
      // Leaders read each other's values directly: together the values are too large for one put.
      const bool verdict_only = keys.reads_alone() && is_success(*collected);
      HETCOMM_RETURN_IF_ERROR(put(keys.all(), verdict_only ? *encode_success({}) : *collected));
      all = *collected;
    } else {
      Result<std::vector<std::byte>> handed_out =
          get_of(group.first, keys.all(), scope, limit_of(group), deadline_ns);
      if (!handed_out.ok()) return explain(scope, members, handed_out.status());
      all = std::move(handed_out).value();
      if (keys.reads_alone() && is_success(all)) all = *collect(keys, {}, deadline_ns);
    }
    return unpack(keys, all, token);
  }

  Status forget(const std::string& scope) override {
    if (options_.delete_key == nullptr) return {};
    const std::string key = broadcast_key(scope, Members::all(options_.size));
    const hetcomm_status_t status = options_.delete_key(options_.user_data, key.c_str());
    if (status == HETCOMM_OK) return {};
    return callback_failed(fmt::format("the delete_key callback for '{}'", key), status);
  }

 private:
  // The keys of one allgather. A group with step 1 uses the same keys as an exchange of all ranks,
  // so ranks that disagree on the form read each other's values and notice it.
  struct Keys {
    Keys(const std::string& name, const Members& of)
        : scope(name),
          members(of),
          prefix(reads_alone() ? fmt::format("hetcomm/{}/+{}/", scope, members.group.step)
                               : fmt::format("hetcomm/{}/", scope)) {}

    // Returns whether each member reads all values itself. Otherwise the first member collects them
    // for all.
    bool reads_alone() const { return members.group.step > 1; }
    std::string key_of(int rank) const { return prefix + std::to_string(rank); }
    std::string all() const {
      return members.group.first == 0 ? prefix + "all"
                                      : fmt::format("{}all {}", prefix, members.group.first);
    }

    const std::string scope;
    const Members members;
    const std::string prefix;
  };

  static std::string broadcast_key(const std::string& scope, const Members& members) {
    return fmt::format("hetcomm/{}/{}{}", scope,
                       members.form == ExchangeForm::kGroups ? "told/" : "", members.group.first);
  }
  static size_t limit_of(const RankGroup& group) {
    return static_cast<size_t>(group.count) * (kMaxExchangeValue + kHeadBytes + sizeof(uint32_t)) +
           kMaxReplyText + 64;
  }
  static bool is_success(ConstByteSpan reply) {
    return reply.size() >= kFrameHeaderBytes && decode_reply(reply.subspan(kFrameHeaderBytes)).ok();
  }

  // Returns the reason for |failure|. If this rank was waiting for rank 0, the reason is the
  // failure that rank 0 published for its own exchange. That failure is also the reason if it says
  // that the ranks disagree on the form. Otherwise, or if rank 0 published no failure, returns
  // |failure| itself.
  Status explain(const std::string& scope, const Members& members, const Status& failure) {
    if (members.form == ExchangeForm::kWhole) return failure;
    Result<std::vector<std::byte>> told =
        get(fmt::format("hetcomm/{}/all", scope), limit_of({.count = members.ranks}),
            deadline_after(now_ns(), kLookNs));
    if (!told.ok() || told->size() < kFrameHeaderBytes) return failure;
    const auto reply = decode_reply(ConstByteSpan(told.value()).subspan(kFrameHeaderBytes));
    if (reply.ok()) return failure;
    const bool waits_for_it = members.group.first == 0;
    return waits_for_it || tells_disagreement_on_form(reply.status().text()) ? reply.status()
                                                                             : failure;
  }

  // Fails if |rank|, whose value begins with |head|, exchanges values in another form.
  static Status check_form(const Keys& keys, int rank, ConstByteSpan head) {
    const ExchangeForm mine = keys.members.form;
    if (head.size() < kHeadBytes || head[kTokenBytes] == static_cast<std::byte>(mine)) return {};
    return disagreement_on_form(
        fmt::format("rank {}", rank), keys.scope,
        mine == ExchangeForm::kWhole ? ExchangeForm::kGroups : ExchangeForm::kWhole);
  }

  // Reads the values of all members. Returns them encoded like a reply of the store, or an encoded
  // failure if some are missing. If |mine|, this rank's value, is empty, its own value is read back
  // too.
  Frame collect(const Keys& keys, std::vector<std::byte> mine, uint64_t deadline_ns) {
    // Collecting stops a little before the deadline, so that a failure reaches the other ranks in
    // time.
    const uint64_t now = now_ns();
    const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    const uint64_t own_deadline = deadline_ns == kForever
                                      ? kForever
                                      : deadline_ns - std::min<uint64_t>(left / 8, 1'000'000'000);
    ByteWriter payload;
    std::vector<int> missing;
    const size_t known = mine.empty() ? 0 : 1;
    if (known != 0) payload.write_bytes(mine);
    const Fetched fetched = fetch_from(keys, known, own_deadline);
    for (int index = static_cast<int>(known); index < keys.members.group.count; ++index) {
      const int rank = keys.members.group.rank(index);
      Result<std::vector<std::byte>> alone = std::vector<std::byte>();
      std::optional<ConstByteSpan> value = fetched.value(index);
      if (!value) {
        alone = get(keys.key_of(rank), kMaxExchangeValue + kHeadBytes, own_deadline);
        if (alone.ok()) value = alone.value();
      }
      if (value) {
        if (Status other = check_form(keys, rank, *value); !other.ok())
          return encode_failure(other);
        payload.write_bytes(*value);
      } else if (alone.status().code() == Code::kTimedOut) {
        missing.push_back(rank);
      } else {
        return encode_failure(alone.status().annotate(fmt::format("value of rank {}", rank)));
      }
    }
    if (missing.empty()) return encode_success(payload.bytes());
    return encode_failure(
        Status(Code::kBootstrapFailed,
               fmt::format("{} did not join; check that they started and use the same exchange, or "
                           "raise HETCOMM_BOOTSTRAP_TIMEOUT",
                           format_ranks(missing, options_.size))));
  }

  // The values of the members starting at |first|, fetched by one call.
  struct Fetched {
    int first = 0;
    std::vector<std::byte> values;
    std::vector<size_t> sizes;  // empty: the call fetched nothing

    // Returns the value of |member|, or nothing if it has to be fetched alone.
    std::optional<ConstByteSpan> value(int member) const {
      const auto index = static_cast<size_t>(member - first);
      if (index >= sizes.size() || sizes[index] > kManyRoom) return std::nullopt;
      return ConstByteSpan(values).subspan(index * kManyRoom, sizes[index]);
    }
  };

  // Fetches the values of the members from index |first| on by one call of get_many. Returns no
  // values if there is no such callback or fewer than two values are wanted. Ignores a failure: it
  // recurs when the values are fetched one by one, which shows whose value is missing.
  Fetched fetch_from(const Keys& keys, size_t first, uint64_t deadline_ns) {
    const RankGroup& group = keys.members.group;
    const auto count = static_cast<size_t>(group.count) - first;
    if (options_.get_many == nullptr || count < 2) return {};
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) {
      names.push_back(keys.key_of(group.rank(static_cast<int>(first + i))));
    }
    std::vector<const char*> pointers;
    for (const std::string& name : names) pointers.push_back(name.c_str());
    Fetched fetched{.first = static_cast<int>(first),
                    .values = std::vector<std::byte>(count * kManyRoom),
                    .sizes = std::vector<size_t>(count)};
    const hetcomm_status_t status =
        options_.get_many(options_.user_data, count, pointers.data(), kManyRoom,
                          fetched.values.data(), fetched.sizes.data(), time_left(deadline_ns));
    if (status != HETCOMM_OK) return {};
    return fetched;
  }

  Result<Values> unpack(const Keys& keys, ConstByteSpan all, ConstByteSpan token) const {
    const RankGroup& group = keys.members.group;
    const Status malformed(Code::kBootstrapFailed,
                           fmt::format("rank {} has sent malformed values; does every rank use the "
                                       "same release of hetcomm?",
                                       group.first));
    if (all.size() < kFrameHeaderBytes) return malformed;
    Result<ConstByteSpan> payload = decode_reply(all.subspan(kFrameHeaderBytes));
    if (!payload.ok()) return payload.status();
    ByteReader reader(payload.value());
    Values values;
    for (int index = 0; index < group.count; ++index) {
      const int rank = group.rank(index);
      const ConstByteSpan value = reader.read_bytes(kMaxExchangeValue + kHeadBytes);
      HETCOMM_RETURN_IF_ERROR(check_form(keys, rank, value));
      if (value.size() < kHeadBytes) return malformed;
      if (rank == options_.rank && !equal_in_constant_time(value.first(kTokenBytes), token)) {
        return Status(Code::kBootstrapFailed,
                      fmt::format("two processes say that they are rank {}, or the store holds "
                                  "values of an earlier run",
                                  rank));
      }
      values.emplace_back(value.begin() + kHeadBytes, value.end());
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

  Result<std::vector<std::byte>> get_of(int rank, const std::string& key, const std::string& scope,
                                        size_t limit, uint64_t deadline_ns) {
    Result<std::vector<std::byte>> value = get(key, limit, deadline_ns);
    if (value.ok()) return value;
    return Status(Code::kBootstrapFailed, fmt::format("waiting for rank {} in '{}': {}", rank,
                                                      scope, value.status().text()));
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

}  // namespace

std::unique_ptr<CallbackExchange> make_callback_exchange(
    const hetcomm_bootstrap_options_t& options) {
  if (options.allgather != nullptr) return std::make_unique<AllgatherExchange>(options);
  if (options.put != nullptr) return std::make_unique<PutGetExchange>(options);
  return nullptr;
}

}  // namespace hetcomm
