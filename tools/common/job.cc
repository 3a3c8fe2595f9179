#include "tools/common/job.h"

#include <cstdlib>
#include <random>

#include <fmt/core.h>

#include "tools/common/mpi/bridge.h"

namespace tools {
namespace {

// Returns a new secret for ranks that find each other through a port of this host, or "" if the
// user has set one.
std::string fresh_secret() {
  if (is_set("HETCOMM_SECRET") || is_set("HETCOMM_SECRET_FILE")) return "";
  std::random_device random;
  std::string text;
  for (int i = 0; i < 8; ++i) text += fmt::format("{:08x}", random());
  return text;
}

}  // namespace

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

Launcher detect_launcher() {
  if (is_set("RANK") && is_set("WORLD_SIZE")) return Launcher::kEnvironment;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS"}) {
    if (is_set(name)) return Launcher::kMpi;
  }
  return Launcher::kNone;
}

std::string create_bootstrap(Launcher launcher, hetcomm_context_t* context,
                             hetcomm_bootstrap_t** out_bootstrap) {
  if (launcher == Launcher::kMpi) return mpi_bootstrap(context, out_bootstrap);
  const hetcomm_status_t status = hetcomm_bootstrap_create_from_environment(context, out_bootstrap);
  if (status == HETCOMM_OK) return "";
  return fmt::format("finding the other ranks: {}: {}", hetcomm_status_name(status),
                     hetcomm_last_error());
}

std::vector<Process> ranks_on_this_host(const std::vector<std::string>& command, int count) {
  const std::string port = std::to_string(free_port());
  const std::string secret = fresh_secret();
  std::vector<Process> processes;
  for (int rank = 0; rank < count; ++rank) {
    Process process;
    process.command = command;
    process.environment = {{"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", std::to_string(count)},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", port}};
    if (!secret.empty()) process.environment.emplace_back("HETCOMM_SECRET", secret);
    // The ranks start together, so a rank that is missing after a minute will not arrive.
    if (!is_set("HETCOMM_BOOTSTRAP_TIMEOUT")) {
      process.environment.emplace_back("HETCOMM_BOOTSTRAP_TIMEOUT", "60s");
    }
    processes.push_back(std::move(process));
  }
  return processes;
}

}  // namespace tools
