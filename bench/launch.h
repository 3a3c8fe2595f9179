// Starts processes, reads what they print, and makes sure that none of them stays behind: not when
// one fails, not when they stop making progress, not when this process is interrupted.
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
  int cpu = -1;        // core it is bound to; -1: any that this process may use
  bool quiet = false;  // its standard output is of no interest
  int after_port = 0;  // started once somebody listens on this TCP port: a client
};

struct Launch {
  std::vector<Process> processes;
  bool echo_errors = false;  // pass standard error on; else it is part of the failure's text
  std::string error;         // not "": cannot be started, and why
};

using LineFunction = std::function<void(std::string_view line)>;

// Runs until all processes have ended; |on_line| gets every line of their standard output. Returns
// "" or what went wrong: a process that failed, with the last it said, or no line for
// |silence_seconds|.
std::string run(const Launch& launch, double silence_seconds, const LineFunction& on_line);

// Output of one command, "" when it fails.
std::string capture(const Process& process);

// Path of |program| in PATH, "" when there is none.
std::string find_program(const std::string& program);

// Cores that this process may use, in ascending order.
std::vector<int> usable_cpus();

// Port that was free a moment ago.
int free_port();

// Path of this program.
std::string own_path();

}  // namespace bench
