#include "bench/peers/peers.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include <fmt/core.h>

#include "bench/loops/collectives.h"

namespace bench {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string peers_folder(const PeerOptions& options) {
  if (!options.folder.empty()) return options.folder;
  // Search upwards from the current folder and from the program.
  std::error_code error;
  for (fs::path start : {fs::current_path(error), fs::path(tools::own_path()).parent_path()}) {
    for (; start.has_relative_path(); start = start.parent_path()) {
      const fs::path candidate = start / "build" / "peers";
      if (fs::is_directory(candidate, error)) return candidate;
    }
  }
  return "";
}

std::string given_path(const PeerOptions& options, const std::string& name) {
  for (const auto& [peer, path] : options.paths) {
    if (peer == name) return path;
  }
  return "";
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string first_nic() {
  const std::string nics = variable("HETCOMM_RDMA_NIC");
  return nics.substr(0, nics.find(','));
}

std::string refuse_one_sided(const Work& work) {
  if (is_one_sided(work.workload.test)) return "its runner has no one-sided operations";
  return refuse_devices(work);
}

std::string refuse_devices(const Work& work) {
  return is_staging(work.workload.test) ? "its runner has host memory only" : "";
}

std::string refuse_collectives(const Work& work) {
  return find_collective(work.workload.test) != nullptr ? "it has no collective operations" : "";
}

std::string refuse_beyond_pairs(const Work& work) {
  if (work.workload.test == "msgrate")
    return "its runner has two ranks; msgrate is compared with mpi";
  if (work.workload.test == "overlap") return "overlap is compared with mpi";
  return refuse_devices(work);
}

std::vector<Implementation> find_peers(const std::string& name, const PeerOptions& options,
                                       Builder& builder, std::string* complaint) {
  if (name == "mpi") return find_mpi(options, builder, complaint);
  if (name == "ucx") return find_ucx(options, builder, complaint);
  if (name == "gloo") return find_gloo(builder, complaint);
  if (name == "iperf3") return find_iperf3(options, complaint);
  if (name == "memcpy") return find_memcpy();
  if (name == "perftest") return find_perftest(complaint);
  *complaint = fmt::format("this peer is unknown; known are {}", kPeerNames);
  return {};
}

}  // namespace bench
