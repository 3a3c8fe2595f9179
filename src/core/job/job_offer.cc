#include "src/core/job/job_offer.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "src/base/bytes.h"
#include "src/net/hash.h"

namespace hetcomm {
namespace {

constexpr uint16_t kVersion = 1;

struct Told {
  JobOffer offer;
  Digest mark{};
};
using ToldByRank = std::vector<std::vector<Told>>;

void write_offer(ByteWriter& writer, const JobOffer& offer) {
  writer.write_raw(offer.job.job);
  writer.write(offer.job.epoch);
  writer.write_raw(offer.job.instance);
  writer.write(offer.rank);
  writer.write(offer.channel);
  writer.write(static_cast<uint32_t>(offer.lost.size()));
  for (const int32_t rank : offer.lost) writer.write(rank);
}

JobOffer read_offer(ByteReader& reader) {
  JobOffer offer;
  const auto read_id = [&reader](std::array<std::byte, 16>& id) {
    const ConstByteSpan bytes = reader.read_raw(id.size());
    std::copy(bytes.begin(), bytes.end(), id.begin());
  };
  read_id(offer.job.job);
  offer.job.epoch = reader.read<uint32_t>();
  read_id(offer.job.instance);
  offer.rank = reader.read<int32_t>();
  offer.channel = reader.read<uint32_t>();
  const auto lost = reader.read<uint32_t>();
  for (size_t i = 0; i < std::min<size_t>(lost, kMostLostRanks); ++i) {
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

std::optional<std::vector<Told>> decode_offers(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  if (reader.read<uint16_t>() != kVersion) return std::nullopt;
  const auto count = reader.read<uint8_t>();
  std::vector<Told> told;
  for (size_t i = 0; i < std::min<size_t>(count, kMostJobOffers); ++i) {
    Told& each = told.emplace_back();
    each.offer = read_offer(reader);
    const ConstByteSpan mark = reader.read_raw(each.mark.size());
    std::copy(mark.begin(), mark.end(), each.mark.begin());
  }
  if (!reader.finished()) return std::nullopt;
  return told;
}

// The offers of all ranks in |job|, by rank; empty where a rank has none, or one with a false
// mark.
std::vector<JobOffer> offers_in(const Identity& job, const Secret& secret, const ToldByRank& all,
                                std::string_view exchange) {
  std::vector<JobOffer> members;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto found = std::find_if(all[rank].begin(), all[rank].end(),
                                    [&](const Told& each) { return each.offer.job == job; });
    if (found == all[rank].end()) return {};
    const Digest mark = mark_of(found->offer, secret, exchange, static_cast<int32_t>(rank));
    if (!equal_in_constant_time(mark, found->mark)) return {};
    members.push_back(found->offer);
  }
  return members;
}

// True if they are different ranks, and none takes another one for lost.
bool are_together(const std::vector<JobOffer>& members) {
  std::set<int32_t> ranks;
  for (const JobOffer& member : members) {
    if (!ranks.insert(member.rank).second) return false;
  }
  return std::none_of(members.begin(), members.end(), [&](const JobOffer& member) {
    return std::any_of(member.lost.begin(), member.lost.end(),
                       [&](int32_t rank) { return ranks.contains(rank); });
  });
}

}  // namespace

std::vector<std::byte> encode_offers(std::span<const OwnJobOffer> own, std::string_view exchange,
                                     int32_t rank) {
  ByteWriter writer;
  writer.write(kVersion);
  writer.write(static_cast<uint8_t>(own.size()));
  for (const OwnJobOffer& each : own) {
    write_offer(writer, each.offer);
    writer.write_raw(mark_of(each.offer, each.secret, exchange, rank));
  }
  return writer.take();
}

Result<std::optional<ChosenJob>> choose_job(std::span<const OwnJobOffer> own,
                                            const std::vector<std::vector<std::byte>>& all,
                                            std::string_view exchange) {
  ToldByRank told;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::optional<std::vector<Told>> offers = decode_offers(all[rank]);
    if (!offers) {
      return Status(Code::kBootstrapFailed,
                    fmt::format("the list of jobs that rank {} is in cannot be read: it comes from "
                                "another version of hetcomm, or its options differ",
                                rank));
    }
    told.push_back(std::move(*offers));
  }
  for (const Told& first : told.front()) {
    const auto mine = std::find_if(own.begin(), own.end(), [&](const OwnJobOffer& each) {
      return each.offer.job == first.offer.job;
    });
    if (mine == own.end()) continue;
    std::vector<JobOffer> members = offers_in(mine->offer.job, mine->secret, told, exchange);
    if (members.empty() || !are_together(members)) continue;
    return std::optional(ChosenJob{static_cast<size_t>(mine - own.begin()), std::move(members)});
  }
  return std::optional<ChosenJob>();
}

}  // namespace hetcomm
