// Finds the libraries to compare with, and says how each is launched.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/implementation.h"
#include "bench/peers/builder.h"

namespace bench {

struct PeerOptions {
  std::string folder;  // of tools/peers; "": build/peers, if it is there
  // "mpi", "/opt/openmpi/bin/mpicc": use this one, instead of those found
  std::vector<std::pair<std::string, std::string>> paths;
};

// Names that --compare knows, for messages.
inline constexpr const char* kPeerNames = "ucx, mpi, gloo, iperf3, memcpy, perftest";

// All implementations of the peer |name| that are there, which share |builder|. |complaint| says
// why there is none, or what is missing of it.
std::vector<Implementation> find_peers(const std::string& name, const PeerOptions& options,
                                       Builder& builder, std::string* complaint);

// Folder of installed peers: |options.folder|, else build/peers of the tree that the current folder
// or this program belongs to; "" when there is none.
std::string peers_folder(const PeerOptions& options);

// Each finds what its name says.
std::vector<Implementation> find_mpi(const PeerOptions& options, Builder& builder,
                                     std::string* complaint);
std::vector<Implementation> find_ucx(const PeerOptions& options, Builder& builder,
                                     std::string* complaint);
std::vector<Implementation> find_gloo(Builder& builder, std::string* complaint);
std::vector<Implementation> find_iperf3(const PeerOptions& options, std::string* complaint);
std::vector<Implementation> find_memcpy();
std::vector<Implementation> find_perftest(std::string* complaint);

// The memcpy peer's process does this: it copies, and prints measurement lines.
int run_memcpy(const Workload& workload);

// The path that was given for |name|, "" if none.
std::string given_path(const PeerOptions& options, const std::string& name);

// "" when the environment has no such variable.
std::string variable(const char* name);
// The first NIC that hetcomm's rdma transport would take, as "mlx5_0" or "mlx5_0:1"; "": its
// choice.
std::string first_nic();

// Refuse what a runner has not: one-sided operations or memory of devices.
std::string refuse_one_sided(const Work& work);
std::string refuse_devices(const Work& work);
std::string refuse_collectives(const Work& work);
// Refuses what only two ranks in host memory can do.
std::string refuse_beyond_pairs(const Work& work);

}  // namespace bench
