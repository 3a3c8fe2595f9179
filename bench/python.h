// The driver in Python (bench/driver), which finds the peers of a comparison and draws pictures.
// Everything else of hetcomm_bench works without Python.
#pragma once

#include <string>
#include <vector>

#include "bench/implementation.h"

namespace bench {

// Whether the driver can serve |option|, "--compare" or "--plot". Says on standard error what is
// missing and how to get it.
bool driver_serves(const std::string& option);

// Draws |json| into the file |path|. Returns "", or the error.
std::string draw(const std::string& json, const std::string& path);

struct PeerOptions {
  std::vector<std::string> names;  // of peers: "ucx", "mpi", ...
  std::string folder;              // created by tools/peers; "": build/peers, if it exists
  // "mpi", "/opt/openmpi/bin/mpicc": use this installation instead of those found
  std::vector<std::pair<std::string, std::string>> paths;
};

// The peers of a comparison that are there. Their runners may lie in a folder that this object
// removes.
class Peers {
 public:
  // Looks for the peers. Ends the process with a text if the driver fails.
  Peers(const PeerOptions& options, const std::vector<Work>& works);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  std::vector<Implementation> take() { return std::move(implementations_); }
  // Returns why a peer, or a part of it, is missing, by name.
  const std::vector<std::pair<std::string, std::string>>& complaints() const { return complaints_; }

 private:
  std::string scratch_;  // "": there is none
  std::vector<Implementation> implementations_;
  std::vector<std::pair<std::string, std::string>> complaints_;
};

}  // namespace bench
