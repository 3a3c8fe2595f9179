#include "bench/python.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
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

// Time limit in which the driver must write some output. Compiling a runner takes some seconds.
constexpr double kSilenceSeconds = 300;

// Returns the interpreters to try: only HETCOMM_PYTHON if it is set, or none if there is no python3
// in PATH. A distribution installs matplotlib for its own interpreter, which may not be the first
// in PATH.
std::vector<std::string> find_interpreters() {
  if (tools::is_set("HETCOMM_PYTHON")) return {std::getenv("HETCOMM_PYTHON")};
  const std::string first = tools::find_program("python3");
  const std::string system = "/usr/bin/python3";
  if (first.empty()) return {};
  return first == system ? std::vector{first} : std::vector{first, system};
}

// Returns the variable in which driver_serves() keeps the interpreter that it has chosen.
std::string& interpreter() {
  static std::string chosen;
  return chosen;
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

// Returns a process that runs the driver with |arguments|.
tools::Process driver(const std::vector<std::string>& arguments) {
  tools::Process process;
  // With -B, Python writes no bytecode files into an installation. With -X utf8, JSON is UTF-8 in
  // any locale.
  process.command = {interpreter(), "-B", "-X", "utf8", driver_folder()};
  process.command.insert(process.command.end(), arguments.begin(), arguments.end());
  return process;
}

// Runs a command of the driver with |input| on its standard input. Calls |use| with the lines of
// its standard output, and passes its standard error on. Returns "", or the error.
std::string run_driver(const std::vector<std::string>& arguments, const std::string& input,
                       double silence_seconds, const std::function<void(std::string_view)>& use) {
  tools::Launch launch;
  launch.echo_errors = true;
  launch.processes.push_back(driver(arguments));
  launch.processes.back().input = input;
  return tools::run(launch, silence_seconds, use);
}

std::string run_driver(const std::vector<std::string>& arguments, const std::string& input,
                       std::string* output) {
  return run_driver(arguments, input, kSilenceSeconds,
                    [&](std::string_view line) { output->append(line); });
}

// Returns the folder build/peers of the source tree that contains the current folder or this
// program; "" if there is none.
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

// Returns the launch of |processes|. Replaces "{meeting}" in their commands with a new name, by
// which the processes find each other.
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
    Implementation::Launcher launcher;
    launcher.refusal = work.value("refusal", "");
    if (launcher.refusal.empty()) {
      launcher.launch = [processes = work["processes"]] { return launch_of(processes); };
    }
    implementation.works.push_back(std::move(launcher));
  }
  return implementation;
}

// Returns the reason why the chosen interpreter cannot serve |option|, or "".
std::string lack_of_interpreter(const std::string& option) {
  std::vector<std::string> lines;
  tools::Launch launch;
  launch.processes.push_back(driver({"check", option.substr(2)}));
  const std::string failure = tools::run(launch, kSilenceSeconds, [&](std::string_view line) {
    lines.emplace_back(line.substr(0, line.find('\n')));
  });
  if (failure.empty()) return "";
  if (lines.size() > 1) return lines[1];
  return fmt::format("{} needs Python 3, and {} does not run: name another by HETCOMM_PYTHON",
                     option, interpreter());
}

}  // namespace

bool driver_serves(const std::string& option) {
  const char* const rest = "; everything but --compare and --plot works without";
  if (getauxval(AT_SECURE) != 0) {
    std::fprintf(stderr,
                 "hetcomm_bench: %s starts Python and compilers, which variables choose: a "
                 "privileged program does not%s\n",
                 option.c_str(), rest);
    return false;
  }
  const std::vector<std::string> interpreters = find_interpreters();
  if (interpreters.empty()) {
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
  std::string lacks;
  for (const std::string& python : interpreters) {
    interpreter() = python;
    const std::string lack = lack_of_interpreter(option);
    if (lack.empty()) return true;
    if (lacks.empty()) lacks = lack;
  }
  std::fprintf(stderr, "hetcomm_bench: %s%s\n", lacks.c_str(), rest);
  return false;
}

std::string measure_pipelines(const std::string& question,
                              const std::function<void(const std::string&)>& progress,
                              std::string* rows, std::string* table) {
  constexpr std::string_view kProgress = "progress: ";
  // The driver itself limits the time of each job.
  constexpr double kNoLimit = 1e9;
  std::string output;
  const std::string failure =
      run_driver({"pipelines"}, question, kNoLimit, [&](std::string_view line) {
        if (line.starts_with(kProgress)) {
          progress(std::string(line.substr(kProgress.size())));
        } else {
          output.append(line);
        }
      });
  if (!failure.empty()) return failure;
  const Json answer = Json::parse(output, nullptr, false);
  if (answer.is_discarded()) return "the driver's answer is not JSON";
  *rows = answer["rows"].dump(2) + "\n";
  *table = answer["table"].get<std::string>();
  return "";
}

std::string draw(const std::string& json, const std::string& path) {
  std::string output;
  return run_driver({"plot", path}, json, &output);
}

Peers::Peers(const PeerOptions& options, const std::vector<Work>& works) {
  Json question = {{"with", options.names},
                   {"folder", options.folder.empty() ? peers_folder() : options.folder},
                   {"paths", options.paths},
                   {"program", tools::own_path()},
                   {"works", Json::array()}};
  for (const Work& work : works) question["works"].push_back(question_of(work));
  std::string output;
  std::string asked;
  try {
    asked = question.dump();
  } catch (const Json::exception&) {
    tools::fail("looking for the peers: the path of a folder or of a peer is not UTF-8");
  }
  const std::string failure = run_driver({"peers"}, asked, &output);
  const Json answer = Json::parse(output, nullptr, false);
  if (!failure.empty() || answer.is_discarded()) {
    tools::fail("looking for the peers: " +
                (failure.empty() ? "the driver's answer is not JSON" : failure));
  }
  scratch_ = answer["scratch"].get<std::string>();
  for (const Json& each : answer["implementations"]) {
    implementations_.push_back(implementation_of(each));
  }
  for (const auto& [name, complaint] : answer["complaints"].items()) {
    complaints_.emplace_back(name, complaint.get<std::string>());
  }
}

Peers::~Peers() {
  if (scratch_.empty()) return;
  std::error_code ignored;
  fs::remove_all(scratch_, ignored);
}

}  // namespace bench
