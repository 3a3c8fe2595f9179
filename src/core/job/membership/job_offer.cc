#include "src/core/job/membership/job_offer.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/packed.h"
#include "src/core/job/membership/job_digest.h"
#include "src/net/hash.h"

namespace hetcomm {
namespace {

constexpr uint16_t kOfferVersion = 2;
constexpr size_t kMaxLostBytes = kMaxLostRanks * sizeof(int32_t);
// The most bytes for one job's lists of lost ranks, in a part or digest. A job with more is not
// shared.
constexpr size_t kMaxListBytes = 4096;

struct Told {
  JobOffer offer;
  Digest mark{};
};

void write_identity(ByteWriter& writer, const Identity& job) {
  writer.write_raw(job.job);
  writer.write(job.epoch);
  writer.write_raw(job.instance);
}

Identity read_identity(ByteReader& reader) {
  Identity job{};
  reader.read_into(job.job);
  job.epoch = reader.read<uint32_t>();
  reader.read_into(job.instance);
  return job;
}

void write_offer(ByteWriter& writer, const JobOffer& offer) {
  write_identity(writer, offer.job);
  writer.write(offer.rank);
  writer.write(offer.channel);
  writer.write(static_cast<uint32_t>(offer.lost.size()));
  for (const int32_t rank : offer.lost) writer.write(rank);
}

JobOffer read_offer(ByteReader& reader) {
  JobOffer offer;
  offer.job = read_identity(reader);
  offer.rank = reader.read<int32_t>();
  offer.channel = reader.read<uint32_t>();
  const auto lost = reader.read<uint32_t>();
  if (lost > kMaxLostRanks || offer.rank < 0 || offer.channel == UINT32_MAX) reader.fail();
  for (size_t i = 0; !reader.failed() && i < lost; ++i) {
    offer.lost.push_back(reader.read<int32_t>());
  }
  return offer;
}

Digest mark_of(const JobOffer& offer, const Secret& secret, std::string_view exchange,
               int32_t rank) {
  ByteWriter writer;
  writer.write_string("hetcomm mesh offer");  // part of the protocol between ranks
  writer.write_string(exchange);
  writer.write(rank);
  write_offer(writer, offer);
  return hmac_sha256(secret, writer.bytes());
}

void add(Digest& sum, const Digest& mark) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] ^= mark[i];
}

std::optional<std::vector<Told>> decode_offers(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  if (reader.read<uint16_t>() != kOfferVersion) return std::nullopt;
  const auto count = reader.read<uint8_t>();
  if (count > kMaxJobOffers) return std::nullopt;
  std::vector<Told> told;
  for (size_t i = 0; i < count; ++i) {
    Told& each = told.emplace_back();
    each.offer = read_offer(reader);
    reader.read_into(each.mark);
  }
  if (!reader.finished()) return std::nullopt;
  return told;
}

// A job that is offered by all ranks of a block, or of the communicator.
struct Offered {
  Identity job;
  Digest mark{};  // the exclusive or of all marks
  // Ranks in the job and their channels, in rank order.
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> channels;
  // The distinct lists of lost ranks, encoded. |list_of| has the index of each rank's list, in rank
  // order.
  std::vector<std::string> lists;
  std::vector<uint32_t> list_of;
};

const Told* find(const std::vector<Told>& told, const Identity& job) {
  const auto found = std::find_if(told.begin(), told.end(),
                                  [&](const Told& each) { return each.offer.job == job; });
  return found == told.end() ? nullptr : &*found;
}

const Offered* find(const std::vector<Offered>& offered, const Identity& job) {
  const auto found = std::find_if(offered.begin(), offered.end(),
                                  [&](const Offered& each) { return each.job == job; });
  return found == offered.end() ? nullptr : &*found;
}

std::string bytes_of(const std::vector<int32_t>& ranks) {
  std::string bytes(ranks.size() * sizeof(int32_t), '\0');
  if (!ranks.empty()) std::memcpy(bytes.data(), ranks.data(), bytes.size());
  return bytes;
}

std::vector<int32_t> ranks_of(const std::string& bytes) {
  std::vector<int32_t> ranks(bytes.size() / sizeof(int32_t));
  if (!ranks.empty()) std::memcpy(ranks.data(), bytes.data(), bytes.size());
  return ranks;
}

std::vector<std::byte> encode(const std::vector<Offered>& all) {
  ByteWriter writer;
  writer.write(kOfferVersion);
  writer.write(static_cast<uint8_t>(all.size()));
  for (const Offered& each : all) {
    write_identity(writer, each.job);
    writer.write_raw(each.mark);
    write_packed(writer, each.ranks.size());
    write_column(writer, each.ranks);
    write_column(writer, each.channels);
    write_texts(writer, each.lists);
    write_column(writer, each.list_of);
  }
  return writer.take();
}

std::optional<std::vector<Offered>> decode(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  if (reader.read<uint16_t>() != kOfferVersion) return std::nullopt;
  const auto count = reader.read<uint8_t>();
  if (count > kMaxJobOffers) return std::nullopt;
  std::vector<Offered> all;
  for (size_t i = 0; i < count; ++i) {
    Offered& each = all.emplace_back();
    each.job = read_identity(reader);
    reader.read_into(each.mark);
    const uint64_t ranks = read_packed(reader);
    if (reader.failed() || ranks > JobDigest::kMaxRanks) return std::nullopt;
    each.ranks = read_column(reader, ranks, INT32_MAX);
    each.channels = read_column(reader, ranks, UINT32_MAX);
    each.lists = read_texts(
        reader, {.count = ranks, .bytes_each = kMaxLostBytes, .bytes_all = kMaxListBytes});
    each.list_of = read_column(reader, ranks, static_cast<uint32_t>(each.lists.size()));
    if (reader.failed()) return std::nullopt;
  }
  if (!reader.finished()) return std::nullopt;
  return all;
}

// Adds |list| for the next rank of |offered|. Returns false if the different lists together are too
// long.
bool add_list(Offered& offered, const std::string& list) {
  const auto known = std::find(offered.lists.begin(), offered.lists.end(), list);
  offered.list_of.push_back(static_cast<uint32_t>(known - offered.lists.begin()));
  if (known != offered.lists.end()) return true;
  size_t bytes = list.size();
  for (const std::string& each : offered.lists) bytes += each.size();
  offered.lists.push_back(list);
  return bytes <= kMaxListBytes;
}

// Appends the ranks of |more|, which follow those of |to|. Returns false if there are too many
// ranks, or if their lists of lost ranks are too long.
bool append(Offered& to, const Offered& more) {
  if (to.ranks.size() + more.ranks.size() > JobDigest::kMaxRanks) return false;
  add(to.mark, more.mark);
  to.ranks.insert(to.ranks.end(), more.ranks.begin(), more.ranks.end());
  to.channels.insert(to.channels.end(), more.channels.begin(), more.channels.end());
  return std::all_of(more.list_of.begin(), more.list_of.end(),
                     [&](uint32_t list) { return add_list(to, more.lists[list]); });
}

// Returns whether the offers of all ranks in |offered| carry marks made with |secret|.
bool is_marked(const Offered& offered, const Secret& secret, std::string_view exchange) {
  Digest sum{};
  for (size_t rank = 0; rank < offered.ranks.size(); ++rank) {
    const JobOffer offer{.job = offered.job,
                         .rank = static_cast<int32_t>(offered.ranks[rank]),
                         .channel = offered.channels[rank],
                         .lost = ranks_of(offered.lists[offered.list_of[rank]])};
    add(sum, mark_of(offer, secret, exchange, static_cast<int32_t>(rank)));
  }
  return equal_in_constant_time(sum, offered.mark);
}

// Returns whether the ranks are distinct, and none considers another lost.
bool are_together(const Offered& offered) {
  std::set<int32_t> ranks;
  for (const uint32_t rank : offered.ranks) {
    if (!ranks.insert(static_cast<int32_t>(rank)).second) return false;
  }
  return std::none_of(offered.lists.begin(), offered.lists.end(), [&](const std::string& list) {
    const std::vector<int32_t> lost = ranks_of(list);
    return std::any_of(lost.begin(), lost.end(),
                       [&](int32_t rank) { return ranks.contains(rank); });
  });
}

Status unreadable_offer(const std::string& whose) {
  return Status(Code::kBootstrapFailed,
                fmt::format("the list of jobs that {} in cannot be read: it comes from another "
                            "version of hetcomm, or its options differ",
                            whose));
}

}  // namespace

std::vector<std::byte> encode_offers(std::span<const OwnJobOffer> own, std::string_view exchange,
                                     int32_t rank) {
  ByteWriter writer;
  writer.write(kOfferVersion);
  writer.write(static_cast<uint8_t>(own.size()));
  for (const OwnJobOffer& each : own) {
    write_offer(writer, each.offer);
    writer.write_raw(mark_of(each.offer, each.secret, exchange, rank));
  }
  return writer.take();
}

Result<std::vector<std::byte>> JobOfferMaker::part(
    int first, const std::vector<std::vector<std::byte>>& cards) const {
  std::vector<std::vector<Told>> told;
  for (size_t i = 0; i < cards.size(); ++i) {
    std::optional<std::vector<Told>> offers = decode_offers(cards[i]);
    if (!offers) return unreadable_offer(fmt::format("rank {} is", static_cast<size_t>(first) + i));
    told.push_back(std::move(*offers));
  }
  std::vector<Offered> all;
  for (const Told& of_first : told.front()) {
    if (find(all, of_first.offer.job) != nullptr) continue;
    Offered offered{.job = of_first.offer.job};
    bool fits = true;
    for (const std::vector<Told>& offers : told) {
      const Told* const each = find(offers, offered.job);
      if (each == nullptr) break;
      add(offered.mark, each->mark);
      offered.ranks.push_back(static_cast<uint32_t>(each->offer.rank));
      offered.channels.push_back(each->offer.channel);
      fits = fits && add_list(offered, bytes_of(each->offer.lost));
    }
    if (fits && offered.ranks.size() == told.size()) all.push_back(std::move(offered));
  }
  return encode(all);
}

Result<std::vector<std::byte>> JobOfferMaker::digest(
    const std::vector<std::vector<std::byte>>& parts) const {
  std::vector<Offered> all;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::optional<std::vector<Offered>> part = decode(parts[i]);
    if (!part) return unreadable_offer(fmt::format("block {} of ranks is", i));
    if (i == 0) {
      all = std::move(*part);
      continue;
    }
    std::erase_if(all, [&](Offered& each) {
      const Offered* const more = find(*part, each.job);
      return more == nullptr || !append(each, *more);
    });
  }
  return encode(all);
}

Result<std::optional<ChosenJob>> choose_job(std::span<const OwnJobOffer> own, ConstByteSpan digest,
                                            size_t size, std::string_view exchange) {
  const std::optional<std::vector<Offered>> all = decode(digest);
  if (!all) return unreadable_offer("all ranks are");
  for (const Offered& offered : *all) {
    const auto mine = std::find_if(own.begin(), own.end(), [&](const OwnJobOffer& each) {
      return each.offer.job == offered.job;
    });
    if (mine == own.end() || offered.ranks.size() != size) continue;
    if (!is_marked(offered, mine->secret, exchange) || !are_together(offered)) continue;
    ChosenJob chosen{.own = static_cast<size_t>(mine - own.begin()), .channels = offered.channels};
    for (const uint32_t rank : offered.ranks) chosen.ranks.push_back(static_cast<int32_t>(rank));
    return std::optional(std::move(chosen));
  }
  return std::optional<ChosenJob>();
}

}  // namespace hetcomm
