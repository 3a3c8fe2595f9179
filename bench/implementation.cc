#include "bench/implementation.h"

#include <hetcomm/info.h>

#include "tools/common/job.h"

namespace bench {
namespace {

tools::Launch launch_ranks(const Work& work) {
  tools::Launch launch;
  launch.echo_errors = true;
  std::vector<std::string> command = {tools::own_path(), "--runner"};
  for (std::string& word : encode_words(work)) command.push_back(std::move(word));
  launch.processes = tools::ranks_on_this_host(command, work.ranks);
  const std::vector<int> cpus = tools::usable_cpus();
  if (!work.bind || launch.processes.size() > cpus.size()) return launch;
  for (size_t rank = 0; rank < launch.processes.size(); ++rank) {
    launch.processes[rank].cpu = cpus[rank];
  }
  return launch;
}

}  // namespace

std::string measure(const Implementation& implementation, size_t number, const Work& work,
                    double silence_seconds, const RowFunction& on_row) {
  const Implementation::Launcher& launcher = implementation.works.at(number);
  if (!launcher.refusal.empty()) return launcher.refusal;
  size_t count = 0;
  std::string failure = tools::run(launcher.launch(), silence_seconds, [&](std::string_view line) {
    Measurement measurement;
    if (!decode(line, &measurement)) return;
    Row row = make_row(work, implementation.info.name, measurement);
    if (!implementation.only_transport.empty()) row.transport = implementation.only_transport;
    ++count;
    on_row(row);
  });
  if (failure.empty() && count < work.workload.points.size()) {
    return "the ranks ended before all sizes were measured";
  }
  return failure;
}

Implementation make_hetcomm(const std::vector<Work>& works) {
  Implementation hetcomm;
  hetcomm.info = {"hetcomm", hetcomm_version_string(), tools::own_path()};
  for (const Work& work : works) {
    hetcomm.works.push_back({"", [work] { return launch_ranks(work); }});
  }
  return hetcomm;
}

}  // namespace bench
