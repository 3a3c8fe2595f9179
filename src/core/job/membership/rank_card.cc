#include "src/core/job/membership/rank_card.h"

#include <sys/socket.h>

#include <algorithm>

#include "src/base/bytes.h"

namespace hetcomm {
namespace {

// Differs from all profile versions, so a rank detects that it has received a profile instead of a
// card. Ranks that consider the job small (HETCOMM_SMALL_JOB) send profiles.
constexpr uint16_t kCardVersion = 0x8004;
constexpr uint16_t kFirstCardVersion = 0x8000;

Status of_another_version() {
  return Status(Code::kBootstrapFailed,
                "it comes from another version of hetcomm: install the same version on all ranks");
}

Status unreadable() {
  return Status(
      Code::kBootstrapFailed,
      "it cannot be read: install the same version of hetcomm on all ranks, with the same "
      "HETCOMM_SMALL_JOB");
}

// Returns the first address that other hosts can use; an unset address if there is none.
Address first_of_host(const std::vector<Address>& addresses) {
  const auto found = std::find_if(addresses.begin(), addresses.end(),
                                  [](const Address& each) { return each.family() != AF_UNIX; });
  return found != addresses.end() ? *found : Address();
}

// Reads |*control|. Returns whether it is valid: either unset, or an address that other hosts may
// be able to reach.
bool read_control(ByteReader& reader, Address* control) {
  if (reader.read<uint8_t>() == 0) return true;
  Result<Address> told = Address::decode(reader);
  if (!told.ok() || told->family() == AF_UNIX || told->port() == 0) return false;
  *control = told.value();
  return true;
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
                .device_count = info.device_count,
                .host_links = info.host_links,
                .known_devices = info.known_devices,
                .control = first_of_host(profile.control),
                .kinds = {}};
  card.kinds.reserve(info.offers.size());
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
  writer.write(kProfileVersion);
  writer.write(card.incarnation);
  writer.write_raw(card.instance);
  writer.write(card.link_model_bytes);
  writer.write_raw(card.host);
  writer.write_string(card.host_label);
  writer.write_string(card.cluster);
  writer.write(card.credit);
  writer.write(card.device_count);
  writer.write_bytes(card.host_links);
  writer.write(card.known_devices);
  const bool has_control = card.control.family() != AF_UNSPEC;
  writer.write(static_cast<uint8_t>(has_control ? 1 : 0));
  if (has_control) card.control.encode(writer);
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
  return encode_refusal(why, kCardVersion);
}

Result<RankCard> decode_card(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  const auto version = reader.read<uint16_t>();
  if (version != kCardVersion) {
    return version >= kFirstCardVersion ? of_another_version() : unreadable();
  }
  RankCard card;
  HETCOMM_RETURN_IF_ERROR(read_refusal_or_tls(reader, &card.tls));
  if (reader.read<uint16_t>() != kProfileVersion) return of_another_version();
  card.incarnation = reader.read<uint32_t>();
  reader.read_into(card.instance);
  card.link_model_bytes = reader.read<uint32_t>();
  reader.read_into(card.host);
  card.host_label = reader.read_string(kMaxHostLabel);
  card.cluster = reader.read_string(kMaxClusterName);
  card.credit = reader.read<uint32_t>();
  card.device_count = std::max<uint32_t>(reader.read<uint32_t>(), 1);
  Result<std::vector<std::byte>> links = read_host_links(reader);
  if (!links.ok()) return links.status();
  card.host_links = std::move(links).value();
  card.known_devices = reader.read<uint32_t>();
  if (!read_control(reader, &card.control)) {
    return Status(Code::kBootstrapFailed,
                  "it has no address for control connections that other hosts could reach");
  }
  const size_t count = reader.read_count<uint8_t>(kMaxOffers);
  for (size_t i = 0; i < count && !reader.failed(); ++i) {
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
