#include "bench/peers/builder.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/core.h>

#include "bench/peers/sources.h"
#include "tools/common/launch.h"

namespace bench {
namespace {

namespace fs = std::filesystem;

// Mixes |text| into |*hash| by FNV-1a.
void mix(uint64_t* hash, std::string_view text) {
  for (const char byte : text) {
    *hash = (*hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3U;
  }
}

// Returns the line of a compiler's output that describes the error.
std::string first_error(const std::string& text) {
  const size_t mark = std::min(text.find("error:"), text.find("undefined reference"));
  if (mark == std::string::npos) return text;
  const size_t start = text.rfind('\n', mark) + 1;
  return "its runner cannot be compiled: " + text.substr(start, text.find('\n', mark) - start);
}

bool write_sources(const fs::path& root) {
  for (unsigned i = 0; i < kRunnerSourceCount; ++i) {
    const fs::path path = root / kRunnerSources[i].path;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    std::ofstream file(path, std::ios::binary);
    file << kRunnerSources[i].text;
    if (!file.flush()) return false;
  }
  return true;
}

}  // namespace

Builder::~Builder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

std::string Builder::folder() {
  std::error_code error;
  if (!peers_folder_.empty()) {
    // Use the peers' folder. It is not created if it does not exist.
    const fs::path kept = fs::path(peers_folder_) / "runners";
    fs::create_directory(kept, error);
    if (access(kept.c_str(), W_OK) == 0) return kept;
  }
  if (temporary_.empty()) {
    std::string pattern = fs::temp_directory_path(error) / "hetcomm_bench-XXXXXX";
    if (mkdtemp(pattern.data()) != nullptr) temporary_ = pattern;
  }
  return temporary_;
}

std::string Builder::build(const std::string& runner, const std::vector<std::string>& command,
                           const std::vector<std::string>& libraries, std::string* error) {
  if (command[0].empty()) {
    *error = "a C++ compiler is needed to build its runner (c++, g++, clang++ or $CXX)";
    return "";
  }
  const std::string root = folder();
  if (root.empty()) {
    *error = "no folder to build its runner in";
    return "";
  }
  tools::Process compile;
  compile.command = command;
  for (const char* word : {"-x", "c++", "-std=c++17", "-O3", "-w"})
    compile.command.emplace_back(word);
  compile.command.push_back("-I" + root);
  compile.command.push_back(root + "/bench/peers/" + runner + ".cc");
  for (const char* word : {"-x", "none"}) compile.command.emplace_back(word);
  compile.command.insert(compile.command.end(), libraries.begin(), libraries.end());
  for (const char* word : {"-lstdc++", "-lm", "-pthread"}) compile.command.emplace_back(word);

  uint64_t hash = 0xcbf29ce484222325U;
  for (const std::string& word : compile.command) mix(&hash, word);
  for (unsigned i = 0; i < kRunnerSourceCount; ++i) mix(&hash, kRunnerSources[i].text);
  const std::string program = fmt::format("{}/{}-{:016x}", root, runner, hash);
  if (access(program.c_str(), X_OK) == 0) return program;

  // The program is compiled under another name and renamed, so that a second hetcomm_bench never
  // runs a partial program.
  const std::string unfinished = fmt::format("{}.{}", program, getpid());
  compile.command.insert(compile.command.end(), {"-o", unfinished});
  tools::Launch launch;
  launch.processes.push_back(compile);
  if (!write_sources(root)) {
    *error = "cannot write to " + root;
    return "";
  }
  const std::string failure = tools::run(launch, 120, [](std::string_view) {});
  if (!failure.empty()) {
    *error = first_error(failure);
    return "";
  }
  std::error_code renamed;
  fs::rename(unfinished, program, renamed);
  return renamed ? unfinished : program;
}

std::string Builder::compiler() {
  const char* chosen = secure_getenv("CXX");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  for (const char* name : {"c++", "g++", "clang++"}) {
    std::string path = tools::find_program(name);
    if (!path.empty()) return path;
  }
  return "";
}

}  // namespace bench
