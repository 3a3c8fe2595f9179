// A PciAddress is the address of a PCI function, such as 0000:3b:00.1.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hetcomm::topology {

struct PciAddress {
  uint32_t domain = 0;
  uint8_t bus = 0;
  uint8_t device = 0;    // 0 to 31
  uint8_t function = 0;  // 0 to 7
  auto operator<=>(const PciAddress&) const = default;

  std::string text() const;  // such as "0000:3b:00.1"
};

// Parses "0000:3b:00.1", or "3b:00.1" in domain 0, with hexadecimal digits in either case. Returns
// nothing for any other text.
std::optional<PciAddress> parse_pci_address(std::string_view text);

}  // namespace hetcomm::topology
