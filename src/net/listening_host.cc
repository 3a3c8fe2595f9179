#include "src/net/listening_host.h"

#include <sys/socket.h>

#include <algorithm>
#include <string>

#include <fmt/core.h>

namespace hetcomm {

void ListeningHost::encode(ByteWriter& writer) const {
  writer.write_raw(id);
  const size_t count = std::min(addresses.size(), kMaxListeningAddresses);
  writer.write(static_cast<uint8_t>(count));
  for (size_t i = 0; i < count; ++i) addresses[i].encode(writer);
}

std::optional<ListeningHost> ListeningHost::decode(ByteReader& reader) {
  ListeningHost read;
  const ConstByteSpan id = reader.read_raw(read.id.size());
  std::copy(id.begin(), id.end(), read.id.begin());
  const uint8_t count = reader.read<uint8_t>();
  if (reader.failed() || count == 0 || count > kMaxListeningAddresses) return std::nullopt;
  read.addresses.reserve(count);
  for (uint8_t i = 0; i < count; ++i) {
    Result<Address> address = Address::decode(reader);
    if (!address.ok()) return std::nullopt;
    const int family = address->family();
    if ((family != AF_INET && family != AF_INET6) || address->port() == 0) return std::nullopt;
    read.addresses.push_back(*address);
  }
  return read;
}

Result<std::vector<Address>> usable_addresses(const ListeningHost& mine,
                                              const ListeningHost& theirs) {
  const bool other_host = are_different_hosts(mine.id, theirs.id);
  std::vector<Address> usable;
  usable.reserve(theirs.addresses.size());
  std::string refused;
  const auto scoped = std::find_if(mine.addresses.begin(), mine.addresses.end(),
                                   [](const Address& own) { return own.needs_scope(); });
  const uint32_t scope = scoped != mine.addresses.end() ? scoped->scope() : 0;
  for (const Address& told : theirs.addresses) {
    const Address address = told.with_scope(scope);
    const bool unscoped = address.needs_scope() && address.scope() == 0;
    const bool common =
        std::any_of(mine.addresses.begin(), mine.addresses.end(),
                    [&](const Address& own) { return own.family() == address.family(); });
    const bool foreign = other_host && address.is_loopback();
    const bool shared =
        other_host && std::any_of(mine.addresses.begin(), mine.addresses.end(),
                                  [&](const Address& own) { return own.is_same_host(address); });
    if (common && !foreign && !shared && !unscoped) {
      usable.push_back(address);
    } else {
      refused += fmt::format("{}{}: {}", refused.empty() ? "" : "; ", address.to_string(),
                             foreign    ? "loopback of another host"
                             : shared   ? "this host has the same address"
                             : unscoped ? "link-local, and this rank uses no such address"
                                        : "family not in use here");
    }
  }
  if (usable.empty()) {
    return Status(Code::kUnsupported, "no usable address: " + refused);
  }
  return usable;
}

}  // namespace hetcomm
