#include "src/present/rates.h"

#include <fmt/core.h>

namespace hetcomm::present {

std::string rate_text(uint64_t mbit_per_s) {
  if (mbit_per_s == 0) return "rate unknown";
  if (mbit_per_s < 1000) return fmt::format("{} Mbit/s", mbit_per_s);
  return fmt::format("{:.4g} Gbit/s", static_cast<double>(mbit_per_s) / 1e3);
}

std::string byte_rate_text(uint64_t bytes_per_s) {
  const auto rate = static_cast<double>(bytes_per_s);
  if (rate >= 1e9) return fmt::format("{:.4g} GB/s", rate / 1e9);
  if (rate >= 1e6) return fmt::format("{:.4g} MB/s", rate / 1e6);
  return fmt::format("{:.4g} kB/s", rate / 1e3);
}

}  // namespace hetcomm::present
