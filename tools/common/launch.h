// Starts processes, reads their output, and terminates all of them if one fails, if they make no
// progress, or if this process is interrupted.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tools {

struct Process {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // added to the inherited one
  int cpu = -1;       // core that the process is bound to; -1: any usable core
  std::string input;  // standard input; "": none
};

struct Launch {
  std::vector<Process> processes;
  bool echo_errors = false;  // pass standard error on instead of adding it to the error text
};

using LineFunction = std::function<void(std::string_view line)>;

// Starts the processes of |launch|, and waits until all have exited. If one fails, the others are
// killed after a few seconds. Calls |on_line| with every line of their standard output. Returns "",
// or the error: a process could not be started or failed, or nothing arrived on standard output for
// |silence_seconds|. If a process failed, the error includes the end of the processes' standard
// error, unless that was passed on.
std::string run(const Launch& launch, double silence_seconds, const LineFunction& on_line);

// Returns the path of |program| in PATH, or "" if there is none.
std::string find_program(const std::string& program);

// Returns the cores that this process may use, in ascending order.
std::vector<int> usable_cpus();

// Returns a port that is currently free, or 0 on failure. Another process may take the port at any
// time.
int free_port();

// Returns the path of this program.
std::string own_path();

}  // namespace tools
