// Reads files that are named on the command line.
#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include <fmt/core.h>

namespace hetcomm_info {

// Returns the content of the file called |name|. Throws std::runtime_error if it cannot be read.
inline std::string read_file(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(fmt::format("{} cannot be read", name));
  return text.str();
}

}  // namespace hetcomm_info
