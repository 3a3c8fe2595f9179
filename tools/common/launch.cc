#include "tools/common/launch.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <fmt/core.h>

namespace tools {
namespace {

constexpr double kGraceSeconds = 5;
constexpr size_t kKeptErrorBytes = 8000;

// The maximum number of process groups that the signal handler can terminate.
constexpr size_t kMaxGroups = 256;
std::array<std::atomic<pid_t>, kMaxGroups> running_groups;

void remember_group(pid_t group) {
  for (std::atomic<pid_t>& entry : running_groups) {
    pid_t none = 0;
    if (entry.compare_exchange_strong(none, group)) return;
  }
}
void forget_group(pid_t group) {
  for (std::atomic<pid_t>& entry : running_groups) {
    pid_t expected = group;
    if (entry.compare_exchange_strong(expected, 0)) return;
  }
}

extern "C" void end_groups(int signal_number) {
  for (std::atomic<pid_t>& entry : running_groups) {
    const pid_t group = entry.load();
    if (group > 0) kill(-group, SIGTERM);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void catch_interrupts() {
  static const bool once = [] {
    for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) signal(signal_number, end_groups);
    return true;
  }();
  static_cast<void>(once);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// --- one child -----------------------------------------------------------------------------------

std::vector<std::string> merged_environment(const Process& process) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(process.environment.begin(), process.environment.end(),
                                      [&](const auto& added) { return added.first == name; });
    if (!replaced) merged.emplace_back(text);
  }
  for (const auto& [name, value] : process.environment) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Runs between fork and exec, where only async-signal-safe calls are allowed.
[[noreturn]] void become(const Process& process, char* const* arguments, char* const* environment,
                         int in_fd, int out_fd, int error_fd, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) {
    signal(signal_number, SIG_DFL);
  }
  if (process.cpu >= 0) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(static_cast<size_t>(process.cpu), &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
  }
  dup2(in_fd, STDIN_FILENO);
  dup2(out_fd, STDOUT_FILENO);
  dup2(error_fd, STDERR_FILENO);
  execvpe(arguments[0], arguments, environment);
  const char* reason = std::strerror(errno);
  for (const char* part : {static_cast<const char*>(arguments[0]), ": ", reason, "\n"}) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  _exit(127);
}

// Opens a file from which a child reads |text|. Returns -1 if that fails.
int open_input(const std::string& text) {
  if (text.empty()) return open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int fd = memfd_create("input", MFD_CLOEXEC);
  size_t done = 0;
  while (fd >= 0 && done < text.size()) {
    const ssize_t count =
        pwrite(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  if (done == text.size()) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

pid_t start(const Process& process, int out_fd, int error_fd) {
  const int in_fd = open_input(process.input);
  if (in_fd < 0) return -1;
  std::vector<std::string> command = process.command;
  std::vector<std::string> environment = merged_environment(process);
  const std::vector<char*> arguments = pointers(command);
  const std::vector<char*> variables = pointers(environment);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    become(process, arguments.data(), variables.data(), in_fd, out_fd, error_fd, parent);
  }
  close(in_fd);
  if (child > 0) {
    setpgid(child, child);
    remember_group(child);
  }
  return child;
}

// --- all children of a launch --------------------------------------------------------------------

class Running {
 public:
  Running(const Launch& launch, const LineFunction& on_line) : launch_(launch), on_line_(on_line) {}
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    end_all(SIGKILL);
    for (int fd : {out_[0], out_[1], error_[0], error_[1]}) {
      if (fd >= 0) close(fd);
    }
  }

  std::string run(double silence_seconds) {
    if (pipe2(out_, O_CLOEXEC) != 0 || pipe2(error_, O_CLOEXEC) != 0) {
      return fmt::format("no pipe can be made: {}", std::strerror(errno));
    }
    for (const Process& process : launch_.processes) {
      const pid_t child = start(process, out_[1], error_[1]);
      if (child < 0) return fmt::format("no process can be started: {}", std::strerror(errno));
      children_.push_back({child, true});
    }
    for (int* fd : {&out_[1], &error_[1]}) {
      close(*fd);
      *fd = -1;
    }
    silent_since_ = now_seconds();
    while (step(silence_seconds)) {
    }
    drain();
    return failure_;
  }

 private:
  struct Child {
    pid_t pid;
    bool alive;
  };

  bool any_alive() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.alive; });
  }

  // Reads output and checks the time limits once. Returns false when all processes have exited.
  bool step(double silence_seconds) {
    read_some(50);
    reap();
    if (!any_alive()) return false;
    const double now = now_seconds();
    if (failure_.empty() && now - silent_since_ > silence_seconds) {
      failure_ = fmt::format("{} printed nothing for {:.0f} s and was ended",
                             launch_.processes[0].command[0], silence_seconds);
      failed_at_ = now;
      end_all(SIGTERM);
    }
    if (!failure_.empty() && now - failed_at_ > kGraceSeconds) end_all(SIGKILL);
    return true;
  }

  void reap() {
    // If a signal kills a rank, other ranks fail as a consequence. If several have exited, a killed
    // one is reported as the cause.
    size_t cause = 0;
    int cause_status = 0;
    for (size_t i = 0; i < children_.size(); ++i) {
      int status = 0;
      if (!children_[i].alive || waitpid(children_[i].pid, &status, WNOHANG) <= 0) continue;
      children_[i].alive = false;
      // Also kills processes that the child itself started.
      kill(-children_[i].pid, SIGKILL);
      forget_group(children_[i].pid);
      if (status == 0 || (cause_status != 0 && !WIFSIGNALED(status))) continue;
      cause = i;
      cause_status = status;
    }
    if (cause_status != 0 && failure_.empty()) note_failure(cause, cause_status);
  }

  void note_failure(size_t index, int status) {
    drain();
    failed_at_ = now_seconds();
    const std::string& program = launch_.processes[index].command[0];
    const std::string how = WIFSIGNALED(status)
                                ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                : fmt::format("ended with status {}", WEXITSTATUS(status));
    failure_ = fmt::format("process {} ({}) {}", index, program, how);
    if (!errors_.empty() && !launch_.echo_errors) failure_ += ": " + errors_;
  }

  void end_all(int signal_number) {
    for (Child& child : children_) {
      if (!child.alive) continue;
      kill(-child.pid, signal_number);
      if (signal_number != SIGKILL) continue;
      while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      child.alive = false;
      forget_group(child.pid);
    }
  }

  // Waits up to |wait_ms| for output. Returns false if there is none.
  bool read_some(int wait_ms) {
    pollfd polled[2] = {{out_[0], POLLIN, 0}, {error_[0], POLLIN, 0}};
    if (poll(polled, 2, wait_ms) <= 0) return false;
    bool any = false;
    if (polled[0].revents != 0) any |= read_output();
    if (polled[1].revents != 0) any |= read_errors();
    return any;
  }
  void drain() {
    while (read_some(0)) {
    }
  }

  bool read_output() {
    char buffer[4096];
    const ssize_t count = read_or_close(&out_[0], buffer, sizeof buffer);
    if (count <= 0) return false;
    silent_since_ = now_seconds();
    output_.append(buffer, static_cast<size_t>(count));
    for (size_t end = output_.find('\n'); end != std::string::npos; end = output_.find('\n')) {
      on_line_(std::string_view(output_).substr(0, end));
      output_.erase(0, end + 1);
    }
    return true;
  }

  bool read_errors() {
    char buffer[4096];
    const ssize_t count = read_or_close(&error_[0], buffer, sizeof buffer);
    if (count <= 0) return false;
    if (launch_.echo_errors && write(STDERR_FILENO, buffer, static_cast<size_t>(count)) < 0) {
      return true;
    }
    errors_.append(buffer, static_cast<size_t>(count));
    if (errors_.size() > kKeptErrorBytes) errors_.erase(0, errors_.size() - kKeptErrorBytes);
    return true;
  }

  // Reads from |*fd|. At the end of the file, closes it and sets |*fd| to -1, which poll() ignores.
  static ssize_t read_or_close(int* fd, char* buffer, size_t size) {
    const ssize_t count = read(*fd, buffer, size);
    if (count == 0) {
      close(*fd);
      *fd = -1;
    }
    return count;
  }

  const Launch& launch_;
  const LineFunction& on_line_;
  std::vector<Child> children_;
  int out_[2] = {-1, -1};
  int error_[2] = {-1, -1};
  std::string output_;
  std::string errors_;
  std::string failure_;
  double silent_since_ = 0;
  double failed_at_ = 0;
};

bool is_executable(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string run(const Launch& launch, double silence_seconds, const LineFunction& on_line) {
  catch_interrupts();
  Running running(launch, on_line);
  return running.run(silence_seconds);
}

std::string find_program(const std::string& program) {
  const char* path = secure_getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/bin:/bin";
  while (!rest.empty()) {
    const size_t end = rest.find(':');
    const std::string candidate = std::string(rest.substr(0, end)) + "/" + program;
    if (is_executable(candidate)) return candidate;
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return "";
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  int port = 0;
  sockaddr* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd >= 0 && bind(fd, generic, length) == 0 && getsockname(fd, generic, &length) == 0) {
    port = ntohs(address.sin_port);
  }
  if (fd >= 0) close(fd);
  return port;
}

std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), static_cast<size_t>(length)) : "/proc/self/exe";
}

}  // namespace tools
