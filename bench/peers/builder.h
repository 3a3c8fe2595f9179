// Compiles runners: programs that need the headers of a library that hetcomm does not depend on.
// This program contains their sources. The result is stored in the peers' folder, under a name that
// depends on source and command. Without that folder it is stored in a temporary one, which this
// object removes.
#pragma once

#include <string>
#include <vector>

namespace bench {

class Builder {
 public:
  explicit Builder(std::string peers_folder) : peers_folder_(std::move(peers_folder)) {}
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // Compiles bench/peers/|runner|.cc by |command|, to which the source, an include path and "-o"
  // are added, then |libraries|. Returns the path of the program, or "" with the compiler's error
  // in |error|.
  std::string build(const std::string& runner, const std::vector<std::string>& command,
                    const std::vector<std::string>& libraries, std::string* error);

  // Returns the plain C++ compiler: $CXX, c++, g++ or clang++, or "" if there is none.
  static std::string compiler();

 private:
  std::string folder();

  std::string peers_folder_;
  std::string temporary_;
};

}  // namespace bench
