// iperf3: one TCP stream over the loopback, the rate of a plain socket. It has no messages, so one
// figure applies to every size.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "bench/peers/peers.h"

namespace bench {
namespace {

tools::Launch launch_iperf3(const std::string& program, const Work& work) {
  const int port_number = tools::free_port();
  const std::string port = std::to_string(port_number);
  tools::Process server;
  server.command = {program, "--server", "--one-off", "--bind", "127.0.0.1", "--port", port};
  server.quiet = true;
  server.cpu = cpu_of_rank(work, 1);
  tools::Process client;
  client.command = {program, "--client", "127.0.0.1", "--port", port, "--time", "1", "--json"};
  client.cpu = cpu_of_rank(work, 0);
  client.after_port = port_number;
  tools::Launch launch;
  launch.processes = {server, client};
  return launch;
}

std::string refuse(const Work& work) {
  return work.workload.test == "bandwidth" ? "" : "iperf3 measures bandwidth only";
}

// Collects the client's JSON object. Its first and last lines consist of a brace only.
class StreamParser {
 public:
  bool parse(std::string_view line, Measurement* out_measurement) {
    if (line == "{") object_.clear();
    object_ += line;
    if (line != "}") return false;
    const nlohmann::json answer = nlohmann::json::parse(object_, nullptr, false);
    const auto pointer = nlohmann::json::json_pointer("/end/sum_received");
    if (answer.is_discarded() || !answer.contains(pointer)) return false;
    const nlohmann::json& received = answer[pointer];
    out_measurement->messages = out_measurement->iterations = 1;
    out_measurement->point.bytes = received.value("bytes", uint64_t{0});
    out_measurement->total_us = received.value("seconds", 0.0) * 1e6;
    return out_measurement->total_us > 0;
  }

 private:
  std::string object_;
};

std::string version_of(const std::string& program) {
  tools::Process ask;
  ask.command = {program, "--version"};
  const std::string answer = tools::capture(ask);
  const size_t start = answer.find(' ') + 1;
  return answer.substr(start, answer.find_first_of(" \n", start) - start);
}

}  // namespace

std::vector<Implementation> find_iperf3(const PeerOptions& options, std::string* complaint) {
  std::string program = given_path(options, "iperf3");
  if (program.empty()) program = tools::find_program("iperf3");
  const std::string version = program.empty() ? "" : version_of(program);
  if (version.empty()) {
    *complaint = "no iperf3 found: the program is not in PATH";
    return {};
  }
  Implementation iperf3;
  iperf3.info = {"iperf3-" + version, version, program};
  iperf3.only_transport = "tcp";
  iperf3.is_stream = true;
  iperf3.refusal = refuse;
  iperf3.launch = [program](const Work& work) { return launch_iperf3(program, work); };
  iperf3.parser = [](const Work&) -> LineParser {
    auto parser = std::make_shared<StreamParser>();
    return [parser](std::string_view line, Measurement* out_measurement) {
      return parser->parse(line, out_measurement);
    };
  };
  return {iperf3};
}

}  // namespace bench
