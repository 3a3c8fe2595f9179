// Starts processes, reads their output, and ensures that none of them is left behind: not if one
// fails, not if they make no progress, not if this process is interrupted.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

struct Process {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's own
  int cpu = -1;        // core that it is bound to; -1: any that this process may use
  bool quiet = false;  // its standard output is ignored
  int after_port = 0;  // the process, a client, starts when this TCP port has a listener
};

struct Launch {
  std::vector<Process> processes;
  bool echo_errors = false;  // pass standard error on; else it is added to the failure's text
  std::string error;         // why it cannot be started; "": it can
};

using LineFunction = std::function<void(std::string_view line)>;

// Runs until all processes have ended. |on_line| gets every line of their standard output. Returns
// "" or the error: a process that failed, with its last output, or no line for |silence_seconds|.
std::string run(const Launch& launch, double silence_seconds, const LineFunction& on_line);

// Output of one command, or "" if it fails.
std::string capture(const Process& process);

// Path of |program| in PATH, or "" if there is none.
std::string find_program(const std::string& program);

// Cores that this process may use, in ascending order.
std::vector<int> usable_cpus();

// A port that was free a moment ago.
int free_port();

// Path of this program.
std::string own_path();

}  // namespace bench
