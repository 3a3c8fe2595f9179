// Runs the Python driver (bench/driver). The driver finds the peers of a comparison, measures
// pipelines over links, and draws pictures. The rest of hetcomm_bench works without Python.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/implementation.h"

namespace bench {

// Returns whether the driver supports |option|, such as "--compare" or "--plot". If it does not,
// prints on standard error what is missing and how to get it.
bool driver_serves(const std::string& option);

// Lets the driver measure the pipelines of |question| (bench/driver/pipelines.py). Calls |progress|
// with each line of progress. Returns "", or the error. Sets |*rows| to a JSON document and
// |*table| to text.
std::string measure_pipelines(const std::string& question,
                              const std::function<void(const std::string&)>& progress,
                              std::string* rows, std::string* table);

// Draws |json| into the file |path|. Returns "", or the error.
std::string draw(const std::string& json, const std::string& path);

struct PeerOptions {
  std::vector<std::string> names;  // "ucx", "mpi", ...
  std::string folder;              // where tools/peers installed peers; "": build/peers, if any
  // Pairs such as "mpi" and "/opt/openmpi/bin/mpicc": this installation replaces those found.
  std::vector<std::pair<std::string, std::string>> paths;
};

// Peers holds the installed peers of a comparison. If the driver compiled their runners in a
// temporary folder, the destructor removes that folder.
class Peers {
 public:
  // Requests the peers from the driver. Exits the process with a message if the driver fails.
  Peers(const PeerOptions& options, const std::vector<Work>& works);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  std::vector<Implementation> take() { return std::move(implementations_); }
  // Returns pairs of a peer's name and the reason why the peer, or a part of it, is missing.
  const std::vector<std::pair<std::string, std::string>>& complaints() const { return complaints_; }

 private:
  std::string scratch_;  // temporary folder of the runners, or ""
  std::vector<Implementation> implementations_;
  std::vector<std::pair<std::string, std::string>> complaints_;
};

}  // namespace bench
