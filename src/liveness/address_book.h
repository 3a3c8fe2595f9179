// AddressBook holds the addresses at which the control planes of all ranks listen. In a small job
// every rank has sent all its addresses. In a large job the digest contains one address of each
// rank, and the rank's other addresses are learned from that rank or from ranks that have learned
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/net/address.h"

namespace hetcomm::liveness {

class AddressBook {
 public:
  // The largest number of addresses kept for one rank.
  static constexpr size_t kMaxAddresses = 8;

  // |addresses| have no ports. Rank r listens at addresses[address_of[r]], port ports[r].
  AddressBook(std::vector<Address> addresses, std::vector<uint32_t> address_of,
              std::vector<uint16_t> ports)
      : addresses_(std::move(addresses)),
        address_of_(std::move(address_of)),
        ports_(std::move(ports)) {}
  AddressBook() = default;

  // Returns all addresses that |rank| has sent, or the one from the digest if it has sent none.
  std::vector<Address> find(int rank) const;
  // Records that |rank| listens at |addresses| and at no others. An empty list changes nothing.
  void learn(int rank, std::vector<Address> addresses);

  // Encodes the addresses of |rank| for learn_text() on another rank. Returns "" if only the
  // address from the digest is known.
  std::string text(int rank) const;
  // Records the addresses in |text|. Returns false, and records nothing, if |text| is malformed.
  bool learn_text(int rank, const std::string& text);

 private:
  std::vector<Address> addresses_;
  std::vector<uint32_t> address_of_;
  std::vector<uint16_t> ports_;
  const std::vector<Address>* learned(int rank) const;

  // The addresses that ranks have sent, by rank. If a rank has sent none, its entry is empty or
  // beyond the end.
  std::vector<std::vector<Address>> learned_;
};

void encode_addresses(const std::vector<Address>& addresses, ByteWriter& writer);
// Decodes at most AddressBook::kMaxAddresses addresses. Fails if there are more or one is
// malformed.
Result<std::vector<Address>> decode_addresses(ByteReader& reader);

}  // namespace hetcomm::liveness
