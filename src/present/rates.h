// Formats rates for people.
#pragma once

#include <cstdint>
#include <string>

namespace hetcomm::present {

// Returns text such as "200 Gbit/s", or "rate unknown" for 0.
std::string rate_text(uint64_t mbit_per_s);
// Returns text such as "12.5 GB/s". GB are 10^9 bytes.
std::string byte_rate_text(uint64_t bytes_per_s);

}  // namespace hetcomm::present
