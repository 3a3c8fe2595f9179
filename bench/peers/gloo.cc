// Gloo: point-to-point messages over TCP, the only transport that this peer supports.
#include <unistd.h>

#include <fmt/core.h>

#include "bench/loops/collectives.h"
#include "bench/peers/peers.h"

namespace bench {
namespace {

tools::Launch launch_gloo(const std::string& runner, const Work& work) {
  static int count = 0;
  const std::string meeting = fmt::format("hetcomm_bench-gloo-{}-{}", getpid(), ++count);
  tools::Launch launch;
  for (int rank = 0; rank < 2; ++rank) {
    tools::Process process;
    process.command = {runner, "rank=" + std::to_string(rank), "meeting=" + meeting};
    const std::string workload = encode(work.workload);
    for (std::string_view word : split(workload, ' ')) process.command.emplace_back(word);
    // The processes are not bound, because each has a separate thread for the network.
    launch.processes.push_back(std::move(process));
  }
  return launch;
}

std::string version_of_package() {
  tools::Process ask;
  ask.command = {"dpkg-query", "-W", "-f", "${Version}\n", "libgloo-dev"};
  const std::string answer = tools::capture(ask);
  return answer.empty() ? "unknown" : answer.substr(0, answer.find('\n'));
}

// Returns the date of the source that the distribution packaged, if |version| contains one.
std::string short_version(const std::string& version) {
  const size_t git = version.find("git");
  return git == std::string::npos ? version : version.substr(git + 3, 8);
}

}  // namespace

std::vector<Implementation> find_gloo(Builder& builder, std::string* complaint) {
  std::string error;
  const std::string runner =
      builder.build("runner_gloo", {Builder::compiler()}, {"-lgloo"}, &error);
  if (runner.empty()) {
    *complaint =
        error.find("gloo/") != std::string::npos || error.find("-lgloo") != std::string::npos
            ? "no Gloo found: its headers and library (libgloo-dev) are not installed"
            : error;
    return {};
  }
  Implementation gloo;
  const std::string version = version_of_package();
  gloo.info = {fmt::format("gloo-{}", short_version(version)), version, "libgloo-dev"};
  gloo.only_transport = "tcp";
  gloo.refusal = [](const Work& work) -> std::string {
    const std::string refusal = refuse_one_sided(work);
    if (work.workload.test == "reduce_scatter") return "it has no such reduce_scatter";
    if (find_collective(work.workload.test) != nullptr && work.ranks != 2) {
      return "its runner has two ranks";
    }
    return refusal.empty() ? refuse_beyond_pairs(work) : refusal;
  };
  gloo.launch = [runner](const Work& work) { return launch_gloo(runner, work); };
  return {gloo};
}

}  // namespace bench
