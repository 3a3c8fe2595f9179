#include "topology/machine/pci_address.h"

#include <charconv>

#include <fmt/core.h>

namespace hetcomm::topology {
namespace {

// Reads |text| as one hexadecimal number. Returns nothing if |text| is not such a number, or if the
// number is greater than |most|.
std::optional<uint32_t> parse_hex(std::string_view text, uint32_t most) {
  uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  if (error != std::errc() || stop != end || value > most) return std::nullopt;
  return value;
}

}  // namespace

std::string PciAddress::text() const {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

std::optional<PciAddress> parse_pci_address(std::string_view text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const size_t second = text.rfind(':');
  if (second == std::string_view::npos || second == 0 || second > dot) return std::nullopt;
  const size_t first = text.rfind(':', second - 1);
  const bool has_domain = first != std::string_view::npos;
  const size_t bus = has_domain ? first + 1 : 0;
  const auto domain_part = has_domain ? parse_hex(text.substr(0, first), UINT32_MAX) : 0;
  const auto bus_part = parse_hex(text.substr(bus, second - bus), 0xff);
  const auto device_part = parse_hex(text.substr(second + 1, dot - second - 1), 0x1f);
  const auto function_part = parse_hex(text.substr(dot + 1), 7);
  if (!domain_part || !bus_part || !device_part || !function_part) return std::nullopt;
  return PciAddress{*domain_part, static_cast<uint8_t>(*bus_part),
                    static_cast<uint8_t>(*device_part), static_cast<uint8_t>(*function_part)};
}

}  // namespace hetcomm::topology
