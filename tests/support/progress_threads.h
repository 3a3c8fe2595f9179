// Lists this process's progress threads, as reported by Linux.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace hetcomm::test {

// Returns the progress threads' folders under /proc.
inline std::vector<std::filesystem::path> progress_threads() {
  std::vector<std::filesystem::path> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "hetcomm") found.push_back(task.path());
  }
  return found;
}

}  // namespace hetcomm::test
