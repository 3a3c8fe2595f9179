#include "bench/implementation.h"

#include <algorithm>

#include <fmt/core.h>

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
  for (size_t rank = 0; rank < launch.processes.size(); ++rank) {
    launch.processes[rank].cpu = cpu_of_rank(work, static_cast<int>(rank));
  }
  return launch;
}

// Converts the bytes of a stream to messages of |point|'s size.
Measurement as_messages(Measurement stream, const Point& point) {
  const double bytes = static_cast<double>(std::max<uint64_t>(point.bytes, 1));
  const double messages = static_cast<double>(stream.point.bytes) / bytes;
  stream.iterations = stream.messages = std::max<int64_t>(static_cast<int64_t>(messages), 1);
  stream.total_us *= static_cast<double>(stream.messages) / messages;
  stream.point = point;
  return stream;
}

std::string measure_launch(const Implementation& implementation, const Work& work,
                           double silence_seconds, const RowFunction& on_row) {
  const LineParser parser =
      implementation.parser ? implementation.parser(work) : LineParser(decode);
  size_t count = 0;
  const auto report = [&](const Measurement& measurement) {
    Row row = make_row(work, implementation.info.name, measurement);
    if (!implementation.only_transport.empty()) row.transport = implementation.only_transport;
    ++count;
    on_row(row);
  };
  const std::string failure =
      tools::run(implementation.launch(work), silence_seconds, [&](std::string_view line) {
        Measurement measurement;
        if (!parser(line, &measurement)) return;
        if (!implementation.is_stream) return report(measurement);
        for (const Point& point : work.workload.points) report(as_messages(measurement, point));
      });
  if (!failure.empty()) return failure;
  if (count < work.workload.points.size()) return "the ranks ended before all sizes were measured";
  return "";
}

}  // namespace

std::string measure(const Implementation& implementation, const Work& work, double silence_seconds,
                    const RowFunction& on_row) {
  if (implementation.refusal) {
    const std::string refusal = implementation.refusal(work);
    if (!refusal.empty()) return refusal;
  }
  if (!implementation.point_by_point) {
    return measure_launch(implementation, work, silence_seconds, on_row);
  }
  Work part = work;
  for (const Point& point : work.workload.points) {
    part.workload.points = {point};
    std::string failure = measure_launch(implementation, part, silence_seconds, on_row);
    if (!failure.empty()) return failure;
  }
  return "";
}

Implementation make_hetcomm() {
  Implementation hetcomm;
  hetcomm.info = {"hetcomm", hetcomm_version_string(), tools::own_path()};
  hetcomm.launch = launch_ranks;
  return hetcomm;
}

int cpu_of_rank(const Work& work, int rank) {
  static const std::vector<int> cpus = tools::usable_cpus();
  if (!work.bind || static_cast<size_t>(work.ranks) > cpus.size()) return -1;
  return cpus[static_cast<size_t>(rank)];
}

}  // namespace bench
