#include "src/liveness/address_book.h"

#include <span>
#include <utility>

#include <fmt/core.h>

namespace hetcomm::liveness {

std::vector<Address> AddressBook::find(int rank) const {
  if (const std::vector<Address>* all = learned(rank)) return *all;
  const auto index = static_cast<size_t>(rank);
  if (index >= address_of_.size()) return {};
  return {addresses_[address_of_[index]].with_port(ports_[index])};
}

const std::vector<Address>* AddressBook::learned(int rank) const {
  const auto index = static_cast<size_t>(rank);
  return index < learned_.size() && !learned_[index].empty() ? &learned_[index] : nullptr;
}

void AddressBook::learn(int rank, std::vector<Address> addresses) {
  if (addresses.empty()) return;
  const auto index = static_cast<size_t>(rank);
  if (index >= learned_.size()) learned_.resize(index + 1);
  learned_[index] = std::move(addresses);
}

std::string AddressBook::text(int rank) const {
  const std::vector<Address>* all = learned(rank);
  if (all == nullptr) return {};
  ByteWriter writer;
  encode_addresses(*all, writer);
  return std::string(reinterpret_cast<const char*>(writer.bytes().data()), writer.bytes().size());
}

bool AddressBook::learn_text(int rank, const std::string& text) {
  ByteReader reader(std::as_bytes(std::span(text)));
  Result<std::vector<Address>> addresses = decode_addresses(reader);
  if (!addresses.ok() || !reader.finished()) return false;
  learn(rank, std::move(addresses).value());
  return true;
}

void encode_addresses(const std::vector<Address>& addresses, ByteWriter& writer) {
  writer.write(static_cast<uint8_t>(addresses.size()));
  for (const Address& address : addresses) address.encode(writer);
}

Result<std::vector<Address>> decode_addresses(ByteReader& reader) {
  const auto count = reader.read<uint8_t>();
  if (count > AddressBook::kMaxAddresses) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("it has {} addresses for control connections, and at most {} are "
                              "allowed: use the same release of hetcomm on all ranks",
                              count, AddressBook::kMaxAddresses));
  }
  std::vector<Address> addresses;
  addresses.reserve(count);
  for (uint8_t i = 0; i < count; ++i) {
    Result<Address> address = Address::decode(reader);
    if (!address.ok()) return address.status();
    addresses.push_back(address.value());
  }
  return addresses;
}

}  // namespace hetcomm::liveness
