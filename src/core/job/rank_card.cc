#include "src/core/job/rank_card.h"

#include <algorithm>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "topology/host_links.h"

namespace hetcomm {
namespace {

// Differs from the versions of profiles, which stand in place of cards in small jobs.
constexpr uint16_t kCardVersion = 0x8002;
constexpr uint8_t kRefusedCard = 2;  // in place of whether TLS is wanted
constexpr size_t kMaxRefusedText = 1000;

template <size_t kSize>
void read_array(ByteReader& reader, std::array<std::byte, kSize>& out) {
  const ConstByteSpan bytes = reader.read_raw(kSize);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

Status unreadable() {
  return Status(
      Code::kBootstrapFailed,
      "it cannot be read: install the same version of hetcomm on all ranks, with the same "
      "HETCOMM_SMALL_JOB");
}

}  // namespace

RankCard card_of(const RankProfile& profile) {
  const PeerInfo& info = profile.info;
  RankCard card{.tls = profile.tls,
                .incarnation = info.incarnation,
                .instance = profile.instance,
                .link_model_bytes = profile.link_model_bytes,
                .host = info.host,
                .host_label = info.host_label,
                .cluster = info.cluster,
                .credit = info.credit,
                .host_links = info.host_links,
                .control = profile.control.empty() ? Address() : profile.control.front(),
                .kinds = {}};
  for (const PeerInfo::Offer& offer : info.offers) {
    const bool is_new = std::none_of(card.kinds.begin(), card.kinds.end(),
                                     [&](const auto& each) { return each.name == offer.kind(); });
    if (is_new) card.kinds.push_back({std::string(offer.kind()), offer.within_host, offer.link});
  }
  return card;
}

std::vector<std::byte> encode_card(const RankCard& card) {
  ByteWriter writer;
  writer.write(kCardVersion);
  writer.write(static_cast<uint8_t>(card.tls ? 1 : 0));
  writer.write(card.incarnation);
  writer.write_raw(card.instance);
  writer.write(card.link_model_bytes);
  writer.write_raw(card.host);
  writer.write_string(card.host_label);
  writer.write_string(card.cluster);
  writer.write(card.credit);
  writer.write_bytes(card.host_links);
  card.control.encode(writer);
  writer.write(static_cast<uint8_t>(card.kinds.size()));
  for (const RankCard::Kind& kind : card.kinds) {
    writer.write_string(kind.name);
    writer.write(static_cast<uint8_t>(kind.within_host ? 1 : 0));
    writer.write(kind.link.latency_ns);
    writer.write(kind.link.bytes_per_s);
  }
  return writer.take();
}

std::vector<std::byte> encode_refused_card(const Status& why) {
  ByteWriter writer;
  writer.write(kCardVersion);
  writer.write(kRefusedCard);
  writer.write_string(why.text().substr(0, kMaxRefusedText));
  return writer.take();
}

Result<RankCard> decode_card(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  if (reader.read<uint16_t>() != kCardVersion) return unreadable();
  const auto tells = reader.read<uint8_t>();
  if (tells == kRefusedCard) {
    return Status(Code::kBootstrapFailed,
                  "it cannot take part: " + printable(reader.read_string(kMaxRefusedText)));
  }
  RankCard card;
  card.tls = tells != 0;
  card.incarnation = reader.read<uint32_t>();
  read_array(reader, card.instance);
  card.link_model_bytes = reader.read<uint32_t>();
  read_array(reader, card.host);
  card.host_label = reader.read_string(kMaxHostLabel);
  card.cluster = reader.read_string(kMaxClusterName);
  card.credit = reader.read<uint32_t>();
  const ConstByteSpan links = reader.read_bytes(topology::kMaxHostLinksBytes);
  card.host_links.assign(links.begin(), links.end());
  Result<Address> control = Address::decode(reader);
  // A job of one rank has no control plane.
  if (control.ok()) card.control = control.value();
  const auto count = reader.read<uint8_t>();
  for (size_t i = 0; i < std::min<size_t>(count, kMaxOffers); ++i) {
    RankCard::Kind kind;
    kind.name = reader.read_string(kMaxTransportName);
    kind.within_host = reader.read<uint8_t>() != 0;
    const auto latency_ns = reader.read<uint64_t>();
    kind.link = LinkCost::bounded(latency_ns, reader.read<uint64_t>());
    card.kinds.push_back(std::move(kind));
  }
  if (!reader.finished()) return unreadable();
  return card;
}

}  // namespace hetcomm
