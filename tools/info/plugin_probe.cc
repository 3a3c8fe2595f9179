#include "tools/info/plugin_probe.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "tools/info/handles.h"

namespace hetcomm_info {
namespace {

constexpr const char* kPlugins = "HETCOMM_DEVICE_PLUGINS";
constexpr const char* kDevices = "HETCOMM_DEVICES";
constexpr unsigned kMaxSeconds = 60;
constexpr int kCameBack = 113;  // the child's exit status if no plug-in has terminated it

// Returns the variable's value, or "" in a program with more privileges than its caller. Such a
// program must not load anything that the caller specifies.
std::string value_of(const char* variable) {
  const char* const value = secure_getenv(variable);
  return value != nullptr ? value : "";
}

// Creates a context with these settings in a child process. Returns a text that describes how the
// child ended, or "" if it survived or could not be started.
std::string end_of(const std::string& plugins, const std::string& devices) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return "";  // the settings cannot be tried
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
    setenv(kPlugins, plugins.c_str(), 1);
    setenv(kDevices, devices.c_str(), 1);
    alarm(kMaxSeconds);
    const Context context = create_context();
    _exit(kCameBack);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCameBack) return "";
  if (!WIFSIGNALED(status)) return "exits with status " + std::to_string(WEXITSTATUS(status));
  if (WTERMSIG(status) == SIGALRM) {
    return "did not return within " + std::to_string(kMaxSeconds) + " s";
  }
  return std::string("ends the process: ") + strsignal(WTERMSIG(status));
}

}  // namespace

bool probe_plugins() {
  const std::string plugins = value_of(kPlugins);
  if (plugins.empty()) return true;
  std::string usable;
  std::istringstream paths(plugins);
  for (std::string path; std::getline(paths, path, ',');) {
    const std::string end = end_of(path, "");
    if (!end.empty()) {
      std::fprintf(stderr, "hetcomm_info: %s: the plug-in %s %s\n", kPlugins, path.c_str(),
                   end.c_str());
      continue;
    }
    usable += (usable.empty() ? "" : ",") + path;
  }
  bool well = usable.size() == plugins.size();
  const std::string devices = value_of(kDevices);
  const std::string end = well ? end_of(usable, devices) : "";
  if (!end.empty()) {
    std::fprintf(stderr, "hetcomm_info: making '%s' of %s %s\n", devices.c_str(), kDevices,
                 end.c_str());
    well = false;
  }
  if (!well) {
    // HETCOMM_DEVICES is also removed, since it may contain kinds of the plug-ins.
    std::fprintf(stderr, "hetcomm_info: what follows is without %s and %s\n", kPlugins, kDevices);
    unsetenv(kPlugins);
    unsetenv(kDevices);
  }
  return well;
}

}  // namespace hetcomm_info
