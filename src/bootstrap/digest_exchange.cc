#include "src/bootstrap/digest_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/bootstrap/relay_chain.h"
#include "src/bootstrap/store_protocol.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kPieceBytes = 60 * 1024;  // size of the pieces that rank 0 broadcasts
constexpr size_t kInlineBytes = 256;       // the largest value that is sent along with its size
constexpr uint64_t kMarginNs = 1'000'000'000;

bool is_large(Bootstrap& bootstrap) {
  return bootstrap.size() > std::max(1, bootstrap.relay().small_job()) &&
         bootstrap.exchanges_by_groups();
}

// Encodes |result|, which is a value or a failure, for other ranks.
Bytes encode_result(const Result<Bytes>& result) {
  return *(result.ok() ? encode_success(result.value()) : encode_failure(result.status()));
}

Result<Bytes> decode_result(ConstByteSpan bytes) {
  Result<ConstByteSpan> payload =
      decode_reply(bytes.subspan(std::min(bytes.size(), kFrameHeaderBytes)));
  if (!payload.ok()) return payload.status();
  return Bytes(payload->begin(), payload->end());
}

Status malformed(int rank) {
  return Status(
      Code::kBootstrapFailed,
      fmt::format("rank {} has sent a malformed value; does every rank use the same release "
                  "of hetcomm?",
                  rank));
}

Status too_large(uint64_t size) {
  return Status(Code::kInvalidArgument,
                fmt::format("{} bytes are too many to be handed down to all ranks", size));
}

// Performs this rank's part of an exchange in a large job.
class LargeExchange {
 public:
  // Makes the digest of |maker|, or hands down rank 0's |mine| if |maker| is null.
  LargeExchange(Bootstrap& bootstrap, const std::string& scope, const DigestMaker* maker,
                ConstByteSpan mine, uint64_t deadline_ns)
      : bootstrap_(bootstrap),
        relay_(bootstrap.relay()),
        scope_(scope),
        maker_(maker),
        size_(bootstrap.size()),
        rank_(bootstrap.rank()),
        deadline_ns_(deadline_ns) {
    const uint64_t now = now_ns();
    const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    margin_ns_ = deadline_ns == kForever ? 0 : std::min(left / 8, kMarginNs);
    const int length = block_size_of(size_);
    const int first = rank_ / length * length;
    block_ = {.first = first, .step = 1, .count = std::min(length, size_ - first)};
    leaders_ = {.first = 0, .step = length, .count = (size_ + length - 1) / length};
    if (maker_ == nullptr && rank_ == 0) value_ = Bytes(mine.begin(), mine.end());
  }

  Result<Bytes> run(ConstByteSpan card) {
    Result<Secret> secret = bootstrap_.secret(deadline_ns_);
    if (!secret.ok()) return secret.status();
    relay_.start(secret.value(), rank_, bootstrap_.local_address());
    meet_block(card);
    // After a failure this rank still takes part in the next steps, because the others would wait
    // for it.
    if (leads()) meet_leaders();
    Bytes verdict;
    if (rank_ == 0) verdict = make_verdict();
    auto told =
        bootstrap_.broadcast_among(scope_, {.count = size_}, verdict, deadline_ns_ - margin_ns_);
    if (!told.ok()) return told.status();
    Result<Bytes> handed = decode_result(told.value());
    if (!handed.ok()) return handed.status();
    HETCOMM_RETURN_IF_ERROR(failure_);
    return receive(handed.value());
  }

 private:
  bool leads() const { return rank_ == block_.first; }
  // Returns the deadline minus |margins| safety margins. Earlier steps time out sooner, which
  // leaves time to report a failure to the other ranks.
  uint64_t earlier(int margins) const {
    return deadline_ns_ - static_cast<uint64_t>(margins) * margin_ns_;
  }

  // Exchanges cards and relay contacts within this block.
  void meet_block(ConstByteSpan card) {
    ByteWriter mine;
    relay_.contact().encode(mine);
    mine.write_raw(card);
    auto told = bootstrap_.allgather_among(scope_, block_, mine.bytes(), earlier(3));
    if (!told.ok()) {
      failure_ = told.status();
      return;
    }
    for (int index = 0; index < block_.count; ++index) {
      ByteReader reader(told.value()[static_cast<size_t>(index)]);
      Result<RelayContact> contact = RelayContact::decode(reader);
      if (!contact.ok()) {
        failure_ = malformed(block_.rank(index));
        return;
      }
      const ConstByteSpan rest = reader.read_raw(reader.left());
      cards_.emplace_back(rest.begin(), rest.end());
      if (block_.rank(index) < rank_) {
        sources_.insert(sources_.begin(), {.rank = block_.rank(index), .contact = *contact});
      }
    }
  }

  // Returns this block's part, or the reason why there is none, encoded in at most |room| bytes.
  Bytes make_part(size_t room) const {
    Result<Bytes> part = Bytes();
    if (!failure_.ok()) {
      part = failure_;
    } else if (maker_ != nullptr) {
      part = maker_->part(block_.first, cards_);
    }
    Bytes bytes = encode_result(part);
    if (bytes.size() <= room) return bytes;
    return encode_result(
        Status(Code::kOutOfResources,
               fmt::format("what ranks {} to {} say of themselves takes {} bytes; {} are the most",
                           block_.first, block_.first + block_.count - 1, bytes.size(), room)));
  }

  void meet_leaders() {
    ByteWriter mine;
    relay_.contact().encode(mine);
    mine.write_raw(make_part(kMaxStoreValue - mine.bytes().size()));
    auto told = bootstrap_.allgather_among(scope_, leaders_, mine.bytes(), earlier(2));
    if (!told.ok()) {
      if (failure_.ok()) failure_ = of_leaders(told.status());
      return;
    }
    std::vector<Bytes> parts;
    failure_ = {};
    for (int index = 0; index < leaders_.count && failure_.ok(); ++index) {
      const int rank = leaders_.rank(index);
      ByteReader reader(told.value()[static_cast<size_t>(index)]);
      Result<RelayContact> contact = RelayContact::decode(reader);
      if (!contact.ok()) {
        failure_ = malformed(rank);
        return;
      }
      if (rank < rank_) {
        sources_.insert(sources_.begin(), {.rank = rank, .contact = std::move(contact).value()});
      }
      Result<Bytes> part = decode_result(reader.read_raw(reader.left()));
      failure_ = part.status();
      if (part.ok()) parts.push_back(std::move(part).value());
    }
    if (!failure_.ok() || maker_ == nullptr) return;
    Result<Bytes> digest = maker_->digest(parts);
    failure_ = digest.status();
    if (digest.ok()) value_ = std::move(digest).value();
  }

  Status of_leaders(const Status& failure) const {
    return failure.annotate(fmt::format(
        "leaders of blocks of {} ranks, each of which may wait for its block", leaders_.step));
  }

  // Returns the message that rank 0 broadcasts: the size and hash of the value that is handed down
  // and rank 0's relay contact, or the reason why there is no value.
  Bytes make_verdict() {
    if (failure_.ok() && value_->size() > kMaxHandout) failure_ = too_large(value_->size());
    if (!failure_.ok()) return encode_result(failure_);
    ByteWriter verdict;
    handout_of(*value_).encode(verdict);
    relay_.contact().encode(verdict);
    return encode_result(verdict.take());
  }

  Result<Bytes> receive(ConstByteSpan verdict) {
    ByteReader reader(verdict);
    Result<Handout> handout = Handout::decode(reader);
    if (!handout.ok()) return handout.status();
    Result<RelayContact> root = RelayContact::decode(reader);
    if (!root.ok() || !reader.finished()) return malformed(0);
    relay_.expect_readers(last_key(*handout), readers());
    if (value_) {
      if (handout_of(*value_) != *handout) {
        return Status(
            Code::kInternal,
            fmt::format("rank {} has made another digest than rank 0; does every rank use "
                        "the same release of hetcomm?",
                        rank_));
      }
      offer(relay_, *value_, deadline_after(now_ns(), time_left()));
      return *std::move(value_);
    }
    const bool has_root = !sources_.empty() && sources_.back().rank == 0;
    if (!has_root) sources_.push_back({.rank = 0, .contact = std::move(root).value()});
    return pull(relay_, *handout, sources_, deadline_ns_);
  }

  // Returns the number of ranks that have this rank as their first source.
  size_t readers() const {
    const bool next_member = rank_ + 1 < block_.first + block_.count;
    const bool next_leader = maker_ == nullptr && leads() && rank_ + leaders_.step < size_;
    return (next_member ? 1u : 0u) + (next_leader ? 1u : 0u);
  }

  uint64_t time_left() const {
    const uint64_t now = now_ns();
    return deadline_ns_ > now ? deadline_ns_ - now : 0;
  }

  Bootstrap& bootstrap_;
  Relay& relay_;
  const std::string scope_;
  const DigestMaker* const maker_;
  const int size_;
  const int rank_;
  const uint64_t deadline_ns_;
  uint64_t margin_ns_ = 0;
  RankGroup block_;
  RankGroup leaders_;
  Status failure_;  // why this rank has no value; OK if nothing has failed
  std::vector<Bytes> cards_;
  std::vector<RelaySource> sources_;  // nearest rank first
  std::optional<Bytes> value_;        // set on ranks that have the value without pulling it
};

Result<Bytes> hand_down_by_pieces(Bootstrap& bootstrap, const std::string& scope,
                                  ConstByteSpan mine, uint64_t deadline_ns) {
  ByteWriter writer;
  writer.write(static_cast<uint64_t>(mine.size()));
  auto size = bootstrap.broadcast(scope + " size", writer.bytes(), deadline_ns);
  if (!size.ok()) return size.status();
  ByteReader reader(size.value());
  const auto total = reader.read<uint64_t>();
  if (!reader.finished()) return malformed(0);
  if (total > kMaxHandout) return too_large(total);
  Bytes result;
  while (result.size() < total) {
    const size_t length = std::min<size_t>(kPieceBytes, total - result.size());
    const ConstByteSpan piece =
        bootstrap.rank() == 0 ? mine.subspan(result.size(), length) : ConstByteSpan();
    auto told = bootstrap.broadcast(fmt::format("{} {}", scope, result.size()), piece, deadline_ns);
    if (!told.ok()) return told.status();
    if (told->size() != length) return malformed(0);
    result.insert(result.end(), told->begin(), told->end());
  }
  return result;
}

}  // namespace

Status last_refused_reader(Bootstrap& bootstrap) { return bootstrap.relay().last_rejection(); }

int block_size_of(int size) {
  int64_t block = 2;
  while (size >= 9 * block * block) block *= 2;
  return static_cast<int>(block);
}

Result<Bytes> exchange_digest(Bootstrap& bootstrap, const std::string& scope, ConstByteSpan card,
                              const DigestMaker& maker, uint64_t deadline_ns) {
  if (is_large(bootstrap)) {
    return LargeExchange(bootstrap, scope, &maker, {}, deadline_ns).run(card);
  }
  auto cards = bootstrap.allgather(scope, card, deadline_ns);
  if (!cards.ok()) return cards.status();
  Result<Bytes> part = maker.part(0, cards.value());
  if (!part.ok()) return part.status();
  return maker.digest({part.value()});
}

Result<Bytes> hand_down(Bootstrap& bootstrap, const std::string& scope, ConstByteSpan mine,
                        uint64_t deadline_ns) {
  if (!is_large(bootstrap)) return hand_down_by_pieces(bootstrap, scope, mine, deadline_ns);
  ByteWriter head;
  head.write(static_cast<uint64_t>(mine.size()));
  if (mine.size() <= kInlineBytes) head.write_raw(mine);
  auto told = bootstrap.broadcast_among(scope + " size", {.count = bootstrap.size()}, head.bytes(),
                                        deadline_ns);
  if (!told.ok()) return told.status();
  ByteReader reader(told.value());
  const auto size = reader.read<uint64_t>();
  if (reader.failed()) return malformed(0);
  if (size > kMaxHandout) return too_large(size);
  if (size <= kInlineBytes) {
    const ConstByteSpan value = reader.read_raw(reader.left());
    if (value.size() != size) return malformed(0);
    return Bytes(value.begin(), value.end());
  }
  return LargeExchange(bootstrap, scope, nullptr, mine, deadline_ns).run({});
}

}  // namespace hetcomm
