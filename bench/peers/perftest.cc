// perftest: verbs without a library above them. Its tools measure one size with one server and one
// client, here both on this host and over one adapter. So each point is a separate launch.
#include "bench/peers/perftest.h"

#include <algorithm>
#include <filesystem>

#include <fmt/core.h>

#include "bench/peers/peers.h"

namespace bench {
namespace {

namespace fs = std::filesystem;

struct Tool {
  const char* test;
  const char* command;
};
constexpr Tool kTools[] = {
    {"latency", "ib_send_lat"},
    {"bandwidth", "ib_send_bw"},
    {"bibandwidth", "ib_send_bw -b"},
    {"put_latency", "ib_write_lat"},
    {"put_bandwidth", "ib_write_bw"},
    {"put_notify_latency", "ib_send_lat"},
    {"put_notify_bandwidth", "ib_send_bw"},
    {"get_latency", "ib_read_lat"},
    {"get_bandwidth", "ib_read_bw"},
    {"fetch_add_latency", "ib_atomic_lat -A FETCH_AND_ADD"},
    {"fetch_add_rate", "ib_atomic_bw -A FETCH_AND_ADD"},
};

constexpr int64_t kLatencyIterations = 1000;
constexpr int64_t kFewestIterations = 5;
// Number of bytes for a bandwidth, which takes a moment on an adapter and seconds in emulation.
constexpr int64_t kBandwidthBytes = 256 << 20;
constexpr int64_t kMaxIterations = 5000;

void add_device(std::vector<std::string>* command) {
  const std::string first = first_nic();
  const size_t colon = first.find(':');
  if (!first.empty()) command->insert(command->end(), {"-d", first.substr(0, colon)});
  if (colon != std::string::npos) command->insert(command->end(), {"-i", first.substr(colon + 1)});
  const std::string index = variable("HETCOMM_RDMA_GID_INDEX");
  if (!index.empty() && index != "auto") command->insert(command->end(), {"-x", index});
}

std::vector<std::string> command_for(const Workload& workload, const std::string& port) {
  const Point& point = workload.points[0];
  std::vector<std::string> command;
  const std::string tool = perftest_tool(workload.test);
  for (const std::string_view word : split(tool, ' ')) command.emplace_back(word);
  add_device(&command);
  command.insert(command.end(), {"-F", "-p", port});
  // Atomics have a fixed size of one word.
  if (workload.test.compare(0, 10, "fetch_add_") != 0) {
    command.insert(command.end(), {"-s", std::to_string(point.bytes)});
  }
  if (!is_latency(workload.test)) {
    command.insert(command.end(), {"-t", std::to_string(point.window)});
  }
  // The tool runs by count instead of by time. By time it would count only what has completed by
  // then, which may be no long message at all.
  int64_t count = workload.iterations;
  if (count == 0 && is_latency(workload.test)) count = kLatencyIterations;
  if (count == 0) {
    const auto in_all = kBandwidthBytes / static_cast<int64_t>(std::max<uint64_t>(point.bytes, 1));
    count = std::min(std::max<int64_t>(in_all, 2 * point.window), kMaxIterations);
  }
  command.insert(command.end(), {"-n", std::to_string(std::max(count, kFewestIterations))});
  return command;
}

tools::Launch launch_perftest(const Work& work) {
  const int port = tools::free_port();
  tools::Process server;
  server.command = command_for(work.workload, std::to_string(port));
  server.quiet = true;
  server.cpu = cpu_of_rank(work, 1);
  tools::Process client;
  client.command = server.command;
  client.command.emplace_back("127.0.0.1");
  client.cpu = cpu_of_rank(work, 0);
  client.after_port = port;
  tools::Launch launch;
  launch.processes = {server, client};
  return launch;
}

std::string refuse(const Work& work) {
  const std::string tool = perftest_tool(work.workload.test);
  if (tool.empty()) return "it has nothing like it";
  const std::string program = tool.substr(0, tool.find(' '));
  if (tools::find_program(program).empty()) return fmt::format("there is no {} in PATH", program);
  const std::vector<Point>& points = work.workload.points;
  const bool empty = std::any_of(points.begin(), points.end(),
                                 [](const Point& point) { return point.bytes == 0; });
  return empty ? "it has no empty messages" : "";
}

std::string version_of(const std::string& program) {
  tools::Process ask;
  // It prints its version and ends with status 1.
  ask.command = {"/bin/sh", "-c", program + " --version; exit 0"};
  const std::string answer = tools::capture(ask);
  const size_t mark = answer.find("ersion");
  const size_t start = mark == std::string::npos ? mark : answer.find_first_of("0123456789", mark);
  if (start == std::string::npos) return "unknown";
  return answer.substr(start, answer.find_first_of(" \n", start) - start);
}

}  // namespace

std::string perftest_tool(const std::string& test) {
  for (const Tool& tool : kTools) {
    if (test == tool.test) return tool.command;
  }
  return "";
}

bool parse_perftest(const Workload& workload, std::string_view line, Measurement* out_measurement) {
  const Point& point = workload.points[0];
  std::string text(line);
  std::replace(text.begin(), text.end(), '\t', ' ');
  std::vector<double> numbers;
  for (const std::string_view word : split(text, ' ')) {
    const std::string number(word);
    char* end = nullptr;
    numbers.push_back(std::strtod(number.c_str(), &end));
    if (*end != '\0') return false;
  }
  const size_t columns = is_latency(workload.test) ? 9 : 5;
  if (numbers.size() != columns || numbers[0] != static_cast<double>(point.bytes)) return false;
  Measurement measurement;
  measurement.point = point;
  measurement.iterations = measurement.messages = static_cast<int64_t>(numbers[1]);
  if (is_latency(workload.test)) {
    measurement.min_us = numbers[2];
    measurement.max_us = numbers[3];
    measurement.p50_us = numbers[4];
    measurement.total_us = numbers[5] * numbers[1];
    measurement.stdev_us = numbers[6];
    measurement.p99_us = numbers[7];
    measurement.p999_us = numbers[8];
  } else {
    if (workload.test == "bibandwidth") measurement.messages *= 2;
    // The tool prints units of 2^20 bytes per second to a hundredth and messages per us to a
    // millionth. The more precise one depends on the size.
    const bool by_bytes = numbers[3] / 1e-2 > numbers[4] / 1e-6;
    const double per_us = by_bytes ? numbers[3] * 1.048576 / numbers[0] : numbers[4];
    measurement.total_us = static_cast<double>(measurement.messages) / per_us;
  }
  *out_measurement = measurement;
  return measurement.iterations > 0 && measurement.total_us > 0;
}

std::vector<Implementation> find_perftest(std::string* complaint) {
  const std::string program = tools::find_program("ib_write_lat");
  if (program.empty()) {
    *complaint = "no perftest found: ib_write_lat is not in PATH (package perftest)";
    return {};
  }
  std::error_code error;
  if (!fs::exists("/sys/class/infiniband", error) || fs::is_empty("/sys/class/infiniband", error)) {
    *complaint = "no RDMA device here: /sys/class/infiniband is empty";
    return {};
  }
  Implementation perftest;
  const std::string version = version_of(program);
  perftest.info = {"perftest-" + version, version, program};
  perftest.only_transport = "rdma";
  perftest.point_by_point = true;
  perftest.refusal = refuse;
  perftest.launch = launch_perftest;
  perftest.parser = [](const Work& work) -> LineParser {
    return [workload = work.workload](std::string_view line, Measurement* out_measurement) {
      return parse_perftest(workload, line, out_measurement);
    };
  };
  return {perftest};
}

}  // namespace bench
