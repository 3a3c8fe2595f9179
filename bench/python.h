// The driver in Python (bench/driver), which finds the peers of a comparison and draws pictures.
// The rest of hetcomm_bench works without Python.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/implementation.h"

namespace bench {

// Returns whether the driver can serve |option|, such as "--compare" or "--plot". If it cannot,
// prints on standard error what is missing and how to get it.
bool driver_serves(const std::string& option);

// Asks the driver to measure pipelines by |question| (bench/driver/pipelines.py), and calls
// progress(text). Returns "", or the error. |*rows| becomes a JSON document, |*table| text.
std::string measure_pipelines(const std::string& question,
                              const std::function<void(const std::string&)>& progress,
                              std::string* rows, std::string* table);

// Draws |json| into the file |path|. Returns "", or the error.
std::string draw(const std::string& json, const std::string& path);

struct PeerOptions {
  std::vector<std::string> names;  // "ucx", "mpi", ...
  std::string folder;              // of tools/peers; "": build/peers, if it exists
  // Pairs such as "mpi" and "/opt/openmpi/bin/mpicc": this installation replaces those found.
  std::vector<std::pair<std::string, std::string>> paths;
};

// The peers of a comparison that are installed. The destructor removes the folder in which the
// driver has compiled their runners, if that is a temporary one.
class Peers {
 public:
  // Asks the driver for the peers. Ends the process with a message if the driver fails.
  Peers(const PeerOptions& options, const std::vector<Work>& works);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  std::vector<Implementation> take() { return std::move(implementations_); }
  // Returns pairs of a peer's name and why the peer, or a part of it, is missing.
  const std::vector<std::pair<std::string, std::string>>& complaints() const { return complaints_; }

 private:
  std::string scratch_;  // temporary folder of the runners, or ""
  std::vector<Implementation> implementations_;
  std::vector<std::pair<std::string, std::string>> complaints_;
};

}  // namespace bench
