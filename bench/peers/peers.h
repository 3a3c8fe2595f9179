// Finds the libraries to compare with, and describes how to launch each.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/implementation.h"
#include "bench/peers/builder.h"

namespace bench {

struct PeerOptions {
  std::string folder;  // created by tools/peers; "": build/peers, if it exists
  // "mpi", "/opt/openmpi/bin/mpicc": use this installation instead of those found
  std::vector<std::pair<std::string, std::string>> paths;
};

// Names that --compare accepts, for messages.
inline constexpr const char* kPeerNames = "ucx, mpi, gloo, iperf3, memcpy, perftest";

// Returns all available implementations of the peer |name|. They share |builder|. |complaint|
// explains why there is none, or which part of it is missing.
std::vector<Implementation> find_peers(const std::string& name, const PeerOptions& options,
                                       Builder& builder, std::string* complaint);

// Returns the folder of installed peers: |options.folder|, else build/peers of the source tree
// around the current folder or this program. "" if there is none.
std::string peers_folder(const PeerOptions& options);

// Each finds the implementations of the library in its name.
std::vector<Implementation> find_mpi(const PeerOptions& options, Builder& builder,
                                     std::string* complaint);
std::vector<Implementation> find_ucx(const PeerOptions& options, Builder& builder,
                                     std::string* complaint);
std::vector<Implementation> find_gloo(Builder& builder, std::string* complaint);
std::vector<Implementation> find_iperf3(const PeerOptions& options, std::string* complaint);
std::vector<Implementation> find_memcpy();
std::vector<Implementation> find_perftest(std::string* complaint);

// Runs the memcpy peer's process: copies, and prints measurement lines.
int run_memcpy(const Workload& workload);

// Returns the given path for |name|, or "" if none.
std::string given_path(const PeerOptions& options, const std::string& name);

// Returns "" if the environment has no such variable.
std::string variable(const char* name);
// Returns the first NIC that hetcomm's rdma transport would use, as "mlx5_0" or "mlx5_0:1". "": the
// transport decides.
std::string first_nic();

// Each returns why a runner without one-sided operations or device memory refuses |work|, or "".
std::string refuse_one_sided(const Work& work);
std::string refuse_devices(const Work& work);
std::string refuse_collectives(const Work& work);
// Returns why a runner refuses works that need more than two ranks in host memory, or "".
std::string refuse_beyond_pairs(const Work& work);

}  // namespace bench
