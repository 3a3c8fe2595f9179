#include "bench/python.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/common/job.h"
#include "tools/common/launch.h"
#include "tools/common/session.h"

namespace bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Compiling a runner takes some seconds.
constexpr double kSilenceSeconds = 300;

std::string interpreter() {
  return tools::is_set("HETCOMM_PYTHON") ? std::getenv("HETCOMM_PYTHON")
                                         : tools::find_program("python3");
}

// Returns the driver's folder, as installed or in a build tree, or "" if there is none.
std::string driver_folder() {
  const fs::path bin = fs::path(tools::own_path()).parent_path();
  for (const char* data : {HETCOMM_DATA_FROM_BIN, "../share"}) {
    const fs::path folder = (bin / data / "hetcomm/bench/driver").lexically_normal();
    std::error_code error;
    if (fs::exists(folder / "__main__.py", error)) return folder;
  }
  return "";
}

// Runs a command of the driver with |input| on its standard input. |output| gets what it prints,
// and standard error what it complains about. Returns "", or the error.
std::string run_driver(const std::vector<std::string>& arguments, const std::string& input,
                       std::string* output) {
  tools::Launch launch;
  launch.echo_errors = true;
  tools::Process process;
  // -B: no file is written into an installation.
  process.command = {interpreter(), "-B", driver_folder()};
  process.command.insert(process.command.end(), arguments.begin(), arguments.end());
  process.input = input;
  launch.processes.push_back(std::move(process));
  return tools::run(launch, kSilenceSeconds, [&](std::string_view line) { output->append(line); });
}

// Returns build/peers of the source tree around the current folder or this program. "": none.
std::string peers_folder() {
  std::error_code error;
  for (fs::path start : {fs::current_path(error), fs::path(tools::own_path()).parent_path()}) {
    for (; start.has_relative_path(); start = start.parent_path()) {
      const fs::path candidate = start / "build" / "peers";
      if (fs::is_directory(candidate, error)) return candidate;
    }
  }
  return "";
}

std::string new_scratch() {
  std::error_code error;
  std::string pattern = fs::temp_directory_path(error) / "hetcomm_bench-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) tools::fail("no folder for the runners of the peers");
  return pattern;
}

Json question_of(const Work& work) {
  Json points = Json::array();
  for (const Point& point : work.workload.points) points.push_back({point.bytes, point.window});
  Json words = Json::array();
  const std::string workload = encode(work.workload);
  for (const std::string_view word : split(workload, ' ')) words.push_back(std::string(word));
  return {{"test", work.workload.test},
          {"transport", work.transport},
          {"ranks", work.ranks},
          {"bind", work.bind},
          {"points", points},
          {"iterations", work.workload.iterations},
          {"words", words}};
}

// Returns processes whose "{meeting}" is a fresh name.
tools::Launch launch_of(const Json& processes) {
  static int count = 0;
  const std::string meeting = fmt::format("hetcomm_bench-{}-{}", getpid(), ++count);
  constexpr std::string_view kMark = "{meeting}";
  tools::Launch launch;
  for (const Json& each : processes) {
    tools::Process process;
    for (const Json& entry : each["command"]) {
      std::string word = entry.get<std::string>();
      if (const size_t at = word.find(kMark); at != std::string::npos) {
        word.replace(at, kMark.size(), meeting);
      }
      process.command.push_back(std::move(word));
    }
    for (const auto& [name, value] : each["environment"].items()) {
      process.environment.emplace_back(name, value.get<std::string>());
    }
    process.cpu = each["cpu"].get<int>();
    launch.processes.push_back(std::move(process));
  }
  return launch;
}

Implementation implementation_of(const Json& json) {
  Implementation implementation;
  implementation.info = {json["name"].get<std::string>(), json["version"].get<std::string>(),
                         json["origin"].get<std::string>()};
  implementation.only_transport = json["transport"].get<std::string>();
  for (const Json& work : json["works"]) {
    Implementation::Part part;
    part.refusal = work.value("refusal", "");
    if (part.refusal.empty()) {
      part.launch = [processes = work["processes"]] { return launch_of(processes); };
    }
    implementation.works.push_back(std::move(part));
  }
  return implementation;
}

}  // namespace

bool driver_serves(const std::string& option) {
  const char* const rest = "; everything but --compare and --plot works without";
  const std::string python = interpreter();
  if (python.empty()) {
    std::fprintf(
        stderr,
        "hetcomm_bench: %s needs Python 3, and there is no python3 in PATH: install it, or "
        "name one by HETCOMM_PYTHON%s\n",
        option.c_str(), rest);
    return false;
  }
  if (driver_folder().empty()) {
    std::fprintf(stderr,
                 "hetcomm_bench: %s needs share/hetcomm/bench/driver, which is not beside %s: "
                 "install hetcomm whole%s\n",
                 option.c_str(), tools::own_path().c_str(), rest);
    return false;
  }
  std::string output;
  const std::string failure = run_driver({"check", option.substr(2)}, "", &output);
  // A driver that runs has said what it lacks.
  if (output.empty()) {
    std::fprintf(stderr,
                 "hetcomm_bench: %s needs Python 3, and %s does not run: name another by "
                 "HETCOMM_PYTHON%s\n",
                 option.c_str(), python.c_str(), rest);
  }
  return failure.empty();
}

std::string draw(const std::string& json, const std::string& path) {
  std::string output;
  return run_driver({"plot", path}, json, &output);
}

Peers::Peers(const PeerOptions& options, const std::vector<Work>& works) : scratch_(new_scratch()) {
  Json question = {{"with", options.names},
                   {"folder", options.folder.empty() ? peers_folder() : options.folder},
                   {"paths", options.paths},
                   {"scratch", scratch_},
                   {"program", tools::own_path()},
                   {"works", Json::array()}};
  for (const Work& work : works) question["works"].push_back(question_of(work));
  std::string output;
  const std::string failure = run_driver({"peers"}, question.dump(), &output);
  const Json answer = Json::parse(output, nullptr, false);
  if (!failure.empty() || answer.is_discarded()) {
    std::error_code ignored;
    fs::remove_all(scratch_, ignored);
    tools::fail("looking for the peers: " + failure);
  }
  for (const Json& each : answer["implementations"]) {
    implementations_.push_back(implementation_of(each));
  }
  for (const auto& [name, complaint] : answer["complaints"].items()) {
    complaints_.emplace_back(name, complaint.get<std::string>());
  }
}

Peers::~Peers() {
  std::error_code ignored;
  fs::remove_all(scratch_, ignored);
}

}  // namespace bench
