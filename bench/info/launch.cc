#include "bench/info/launch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <thread>

#include <fmt/format.h>

namespace hetcomm_info {
namespace {

using std::chrono::steady_clock;

// More than the ranks' own deadlines add up to; a rank that still runs then is stuck.
constexpr std::chrono::seconds kPatience{120};
// Between a rank's failure and the end of the others, which may be about to say why.
constexpr std::chrono::seconds kGrace{2};

struct Child {
  pid_t pid = -1;
  int output = -1;
  bool running = false;
};

// A port that was free a moment ago, 0 on failure.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool ok = bind(fd, generic, length) == 0 && getsockname(fd, generic, &length) == 0;
  close(fd);
  return ok ? ntohs(address.sin_port) : 0;
}

// The environment of this process without |removed|, and with |added| ("NAME=value").
std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::vector<std::string> result = added;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& other : added) replaced = replaced || other.starts_with(name);
    if (!replaced) result.emplace_back(text);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Only async-signal-safe calls between fork and exec.
Child start(std::vector<std::string> arguments, std::vector<std::string> environment) {
  Child child;
  child.output = memfd_create("hetcomm_info", MFD_CLOEXEC);
  if (child.output < 0) return child;
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  const pid_t parent = getpid();
  child.pid = fork();
  if (child.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // the parent was gone before the line above
    dup2(child.output, STDOUT_FILENO);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }
  child.running = child.pid > 0;
  return child;
}

std::string contents(int fd) {
  std::string text;
  char part[4096];
  ssize_t got = 0;
  for (off_t offset = 0; (got = pread(fd, part, sizeof(part), offset)) > 0; offset += got) {
    text.append(part, static_cast<size_t>(got));
  }
  return text;
}

void end_all(const std::vector<Child>& children, int signal) {
  for (const Child& child : children) {
    if (child.running) kill(child.pid, signal);
  }
}

// Says how |child| ended; true for success. |stuck|: it was ended here.
bool ended_well(int rank, int status, bool stuck) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (WIFSIGNALED(status) && stuck && WTERMSIG(status) == SIGKILL) {
    std::fprintf(stderr, "hetcomm_info: rank %d still waited for the other and was ended\n", rank);
  } else if (WIFSIGNALED(status)) {
    std::fprintf(stderr, "hetcomm_info: rank %d was ended by signal %d (%s)\n", rank,
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
  } else {
    std::fprintf(stderr, "hetcomm_info: rank %d failed with exit status %d\n", rank,
                 WEXITSTATUS(status));
  }
  return false;
}

bool wait_for(std::vector<Child>& children) {
  bool ok = true;
  bool stuck = false;
  auto deadline = steady_clock::now() + kPatience;
  for (size_t left = children.size(); left > 0;) {
    const size_t before = left;
    for (size_t rank = 0; rank < children.size(); ++rank) {
      Child& child = children[rank];
      int status = 0;
      if (!child.running || waitpid(child.pid, &status, WNOHANG) == 0) continue;
      child.running = false;
      --left;
      const bool was_ok = ok;
      ok = ended_well(static_cast<int>(rank), status, stuck) && ok;
      if (was_ok && !ok) deadline = std::min(deadline, steady_clock::now() + kGrace);
    }
    if (steady_clock::now() >= deadline) {
      ok = false;
      stuck = true;
      end_all(children, SIGKILL);
    }
    if (left == before) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return ok;
}

}  // namespace

bool launch_ranks(int count, const std::vector<std::string>& arguments,
                  std::vector<std::string>* out_outputs) {
  const int port = free_port();
  if (port == 0) {
    std::fprintf(stderr, "hetcomm_info: no free port on 127.0.0.1: %s\n", std::strerror(errno));
    return false;
  }
  std::vector<std::string> argv = {"hetcomm_info"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  // They meet over a port of this host, which others may reach.
  std::string secret;
  if (std::getenv("HETCOMM_SECRET") == nullptr && std::getenv("HETCOMM_SECRET_FILE") == nullptr) {
    std::random_device random;
    for (int i = 0; i < 8; ++i) secret += fmt::format("{:08x}", random());
  }
  std::vector<Child> children;
  bool started = true;
  for (int rank = 0; rank < count && started; ++rank) {
    std::vector<std::string> added = {fmt::format("RANK={}", rank),
                                      fmt::format("WORLD_SIZE={}", count), "MASTER_ADDR=127.0.0.1",
                                      fmt::format("MASTER_PORT={}", port)};
    if (!secret.empty()) added.push_back("HETCOMM_SECRET=" + secret);
    // The ranks start together: who is not there soon will not come.
    if (std::getenv("HETCOMM_BOOTSTRAP_TIMEOUT") == nullptr) {
      added.emplace_back("HETCOMM_BOOTSTRAP_TIMEOUT=30s");
    }
    const Child child = start(argv, environment_with(added));
    started = child.running;
    if (started) {
      children.push_back(child);
    } else {
      std::fprintf(stderr, "hetcomm_info: rank %d could not be started: %s\n", rank,
                   std::strerror(errno));
      if (child.output >= 0) close(child.output);
    }
  }
  if (!started) end_all(children, SIGKILL);
  const bool ok = wait_for(children) && started;
  for (const Child& child : children) {
    out_outputs->push_back(contents(child.output));
    close(child.output);
  }
  return ok;
}

}  // namespace hetcomm_info
