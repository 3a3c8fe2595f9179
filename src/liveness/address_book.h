// The addresses at which the control planes of all ranks listen. In a small job every rank has told
// all its addresses. In a large one the digest has told one of each rank; the others are learned
// from that rank, or from those that know it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/net/address.h"

namespace hetcomm::liveness {

class AddressBook {
 public:
  // At most this many addresses of one rank are kept.
  static constexpr size_t kMaxAddresses = 8;

  // |places| are addresses without ports; a rank's own has the index |place_of[rank]|.
  AddressBook(std::vector<Address> places, std::vector<uint32_t> place_of,
              std::vector<uint16_t> ports)
      : places_(std::move(places)), place_of_(std::move(place_of)), ports_(std::move(ports)) {}
  AddressBook() = default;

  // Returns all addresses that |rank| has told, or else the one of the digest.
  std::vector<Address> find(int rank) const;
  // |rank| listens at |addresses|, which are all that it has.
  void learn(int rank, std::vector<Address> addresses);

  // The addresses of |rank| for learn_text() on another rank; empty if only one is known.
  std::string text(int rank) const;
  // Returns false, and learns nothing, where |text| cannot be read.
  bool learn_text(int rank, const std::string& text);

 private:
  std::vector<Address> places_;
  std::vector<uint32_t> place_of_;
  std::vector<uint16_t> ports_;
  const std::vector<Address>* learned(int rank) const;

  std::vector<std::vector<Address>> learned_;  // by rank; empty, or ends early: not learned
};

void encode_addresses(const std::vector<Address>& addresses, ByteWriter& writer);
// At most AddressBook::kMaxAddresses.
Result<std::vector<Address>> decode_addresses(ByteReader& reader);

}  // namespace hetcomm::liveness
