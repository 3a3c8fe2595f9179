#include "src/core/job/membership/rank_profile.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "topology/machine/host_links.h"
#include "topology/machine/machine.h"

namespace hetcomm {
namespace {

constexpr uint8_t kRefusal = 2;  // written in place of the TLS flag
constexpr size_t kMaxRefusal = 1000;
constexpr size_t kMaxContact = 1024;
constexpr size_t kMaxSubnet = 63;  // characters

topology::Port read_port(ByteReader& reader) {
  topology::Port port;
  port.mbit_per_s = std::min(reader.read<uint64_t>(), topology::kMaxMbitPerS);
  const size_t subnets = reader.read_count<uint8_t>(UINT8_MAX, sizeof(uint32_t));
  for (size_t i = 0; i < subnets && !reader.failed(); ++i)
    port.subnets.push_back(reader.read_string(kMaxSubnet));
  port.fabric = reader.read_string(topology::kMaxFabric);
  port.last_resort = reader.read<uint8_t>() != 0;
  return port;
}

void write_port(ByteWriter& writer, const topology::Port& port) {
  writer.write(port.mbit_per_s);
  const size_t subnets = std::min<size_t>(port.subnets.size(), UINT8_MAX);
  writer.write(static_cast<uint8_t>(subnets));
  for (size_t i = 0; i < subnets; ++i) writer.write_string(port.subnets[i]);
  writer.write_string(port.fabric);
  writer.write(static_cast<uint8_t>(port.last_resort ? 1 : 0));
}

PeerInfo::Offer read_offer(ByteReader& reader) {
  PeerInfo::Offer offer;
  offer.name = reader.read_string(kMaxTransportName);
  offer.within_host = reader.read<uint8_t>() != 0;
  const auto latency_ns = reader.read<uint64_t>();
  offer.link = LinkCost::bounded(latency_ns, reader.read<uint64_t>());
  offer.port = read_port(reader);
  const ConstByteSpan contact = reader.read_bytes(kMaxContact);
  offer.contact.assign(contact.begin(), contact.end());
  return offer;
}

}  // namespace

std::vector<std::byte> encode_refusal(const Status& why, uint16_t version) {
  ByteWriter writer;
  writer.write(version);
  writer.write(kRefusal);
  writer.write_string(why.text().substr(0, kMaxRefusal));
  return writer.take();
}

Status read_refusal_or_tls(ByteReader& reader, bool* tls) {
  const auto tells = reader.read<uint8_t>();
  if (tells == kRefusal) {
    return Status(Code::kBootstrapFailed,
                  "it cannot take part: " + printable(reader.read_string(kMaxRefusal)));
  }
  *tls = tells != 0;
  return {};
}

Result<std::vector<std::byte>> read_host_links(ByteReader& reader) {
  const ConstByteSpan links = reader.read_bytes(topology::kMaxHostLinksBytes);
  if (!links.empty()) {
    const Result<topology::HostLinks> read = topology::decode_host_links(links);
    if (!read.ok()) return Status(Code::kBootstrapFailed, std::string(read.status().text()));
  }
  return std::vector<std::byte>(links.begin(), links.end());
}

std::vector<std::byte> encode_profile(const RankProfile& own) {
  ByteWriter writer;
  writer.write(kProfileVersion);
  writer.write(static_cast<uint8_t>(own.tls ? 1 : 0));
  writer.write(own.info.incarnation);
  writer.write_raw(own.instance);
  writer.write_raw(own.info.host);
  writer.write_string(own.info.cluster);
  writer.write_string(own.info.host_label);
  writer.write(own.link_model_bytes);
  writer.write(own.info.credit);
  writer.write(own.info.device_count);
  writer.write_bytes(own.info.host_links);
  writer.write(own.info.known_devices);
  liveness::encode_addresses(own.control, writer);
  writer.write(static_cast<uint8_t>(own.info.offers.size()));
  for (const PeerInfo::Offer& offer : own.info.offers) {
    writer.write_string(offer.name);
    writer.write(static_cast<uint8_t>(offer.within_host ? 1 : 0));
    writer.write(offer.link.latency_ns);
    writer.write(offer.link.bytes_per_s);
    write_port(writer, offer.port);
    writer.write_bytes(offer.contact);
  }
  return writer.take();
}

Status decode_profile(ConstByteSpan bytes, int own_rank, bool own_tls, RankProfile* result) {
  ByteReader reader(bytes);
  if (reader.read<uint16_t>() != kProfileVersion) {
    return Status(
        Code::kBootstrapFailed,
        "it comes from another version of hetcomm: install the same version on all ranks");
  }
  HETCOMM_RETURN_IF_ERROR(read_refusal_or_tls(reader, &result->tls));
  if (result->tls != own_tls) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("it has HETCOMM_TLS={}, rank {} has HETCOMM_TLS={}: set it alike on "
                              "all ranks",
                              own_tls ? "off" : "on", own_rank, own_tls ? "on" : "off"));
  }
  PeerInfo& info = result->info;
  info.incarnation = reader.read<uint32_t>();
  reader.read_into(result->instance);
  reader.read_into(info.host);
  info.cluster = reader.read_string(kMaxClusterName);
  info.host_label = reader.read_string(kMaxHostLabel);
  result->link_model_bytes = reader.read<uint32_t>();
  info.credit = reader.read<uint32_t>();
  info.device_count = std::max<uint32_t>(reader.read<uint32_t>(), 1);
  Result<std::vector<std::byte>> links = read_host_links(reader);
  if (!links.ok()) return links.status();
  info.host_links = std::move(links).value();
  info.known_devices = reader.read<uint32_t>();
  Result<std::vector<Address>> addresses = liveness::decode_addresses(reader);
  if (!addresses.ok()) return addresses.status();
  result->control = std::move(addresses.value());
  const size_t count = reader.read_count<uint8_t>(kMaxOffers);
  info.offers.reserve(count);
  for (size_t i = 0; i < count && !reader.failed(); ++i) {
    info.offers.push_back(read_offer(reader));
  }
  if (!reader.finished())
    return Status(Code::kBootstrapFailed,
                  "it cannot be read: install the same version of hetcomm on all ranks");
  return {};
}

}  // namespace hetcomm
