#include "src/bootstrap/launch.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "src/bootstrap/store_protocol.h"
#include "src/bootstrap/variables.h"

namespace hetcomm {
namespace {

constexpr int kDefaultMasterPort = 29500;
// The ports for jobs whose launcher specifies none. They are below the kernel's default range of
// ephemeral ports.
constexpr uint64_t kFirstDerivedPort = 15'000;
constexpr uint64_t kDerivedPorts = 16'384;

// The two variables in which a launcher gives the rank and the number of ranks.
struct Names {
  enum class Launcher : uint8_t { kTorch, kMpi, kSlurm };
  const char* rank;
  const char* size;
  Launcher launcher;
};

// The innermost launcher comes first: an mpirun inside a Slurm step also sees Slurm's variables.
constexpr Names kNames[] = {
    {"RANK", "WORLD_SIZE", Names::Launcher::kTorch},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", Names::Launcher::kMpi},
    {"PMI_RANK", "PMI_SIZE", Names::Launcher::kMpi},
    {"PMIX_RANK", "PMIX_SIZE", Names::Launcher::kMpi},
    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", Names::Launcher::kMpi},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", Names::Launcher::kSlurm},
    {"SLURM_PROCID", "SLURM_NTASKS", Names::Launcher::kSlurm},
};

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

bool is_set(const char* name) { return !variable(name).empty(); }

// Slurm also gives a batch script a rank and a number of tasks, although the script is not a task.
// Only a job step has one of the two variables that this function checks.
bool in_slurm_step() { return is_set("SLURM_STEP_NODELIST") || is_set("SLURM_STEP_NUM_TASKS"); }

// Returns the variables of the innermost launcher. If none are set, returns torchrun's, so that the
// error names them.
const Names& choose_names() {
  if (is_set("RANK") || is_set("WORLD_SIZE")) return kNames[0];
  for (const Names& names : kNames) {
    if (names.launcher == Names::Launcher::kSlurm && !in_slurm_step()) continue;
    if (is_set(names.rank) && is_set(names.size)) return names;
  }
  return kNames[0];
}

Result<int> number(const char* name, int low, int high, std::optional<int> fallback = {}) {
  const std::string_view text = variable(name);
  if (text.empty()) {
    if (fallback) return *fallback;
    return Status(Code::kBootstrapFailed,
                  fmt::format("environment variable {} is not set; start the program with "
                              "torchrun, srun or mpirun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
                              "MASTER_PORT",
                              name));
  }
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("environment variable {}: '{}' is not a number from {} to {}", name,
                              text, low, high));
  }
  return value;
}

// Appends Slurm's count of restarts to the job's name. Processes left over from an earlier start
// have the same ids, but belong to another job. The first start has no count.
JobName of_slurm_start(std::string name, std::string source) {
  const std::string_view count = variable("SLURM_RESTART_COUNT");
  if (count.empty() || count == "0") return {std::move(name), std::move(source)};
  return {fmt::format("{} restart {}", name, count), source + " and SLURM_RESTART_COUNT"};
}

JobName read_job(const Config& config, Names::Launcher launcher) {
  if (const std::string_view job = config.text(variable::kJob); !job.empty()) {
    return {std::string(job), "HETCOMM_JOB"};
  }
  // torchrun uses this run id for a run without a name.
  constexpr std::string_view kUnnamed = "none";
  const std::string_view run = variable("TORCHELASTIC_RUN_ID");
  if (!run.empty() && run != kUnnamed) return {std::string(run), "TORCHELASTIC_RUN_ID"};
  if (launcher == Names::Launcher::kMpi && is_set("PMIX_NAMESPACE")) {
    return {std::string(variable("PMIX_NAMESPACE")), "PMIX_NAMESPACE"};
  }
  if (launcher == Names::Launcher::kSlurm && is_set("SLURM_JOB_ID") && is_set("SLURM_STEP_ID")) {
    return of_slurm_start(fmt::format("{}.{}", variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID")),
                          "SLURM_JOB_ID and SLURM_STEP_ID");
  }
  if (is_set("SLURM_JOB_ID")) {
    return of_slurm_start(std::string(variable("SLURM_JOB_ID")), "SLURM_JOB_ID");
  }
  for (const char* name : {"PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"}) {
    if (is_set(name)) return {std::string(variable(name)), name};
  }
  return {};
}

std::string read_master_address(Names::Launcher launcher) {
  if (is_set("MASTER_ADDR") || launcher == Names::Launcher::kTorch) {
    return std::string(variable("MASTER_ADDR"));
  }
  if (in_slurm_step()) return first_host(variable("SLURM_STEP_NODELIST"));
  const std::string_view size = variable("OMPI_COMM_WORLD_SIZE");
  const bool one_host = !size.empty() && size == variable("OMPI_COMM_WORLD_LOCAL_SIZE");
  return one_host ? "127.0.0.1" : "";
}

// Returns a port derived from the ids of the Slurm job and its step, because steps of one
// allocation may run in parallel. Returns the default port if there is no Slurm job.
int derived_port() {
  uint64_t id = 0;
  uint64_t step = 0;
  const auto read = [](std::string_view text, uint64_t* out) {
    return std::from_chars(text.data(), text.data() + text.size(), *out).ec == std::errc();
  };
  if (!read(variable("SLURM_JOB_ID"), &id)) return kDefaultMasterPort;
  read(variable("SLURM_STEP_ID"), &step);
  // Jobs with consecutive ids get ports 32 apart. A store tries fewer ports than that.
  return static_cast<int>(kFirstDerivedPort + (id * 32 + step) % kDerivedPorts);
}

}  // namespace

Result<Launch> read_launch(const Config& config) {
  const Names& names = choose_names();
  const Result<int> size = number(names.size, 1, kMaxStoreRanks);
  if (!size.ok()) return size.status();
  const Result<int> rank = number(names.rank, 0, size.value() - 1);
  if (!rank.ok()) return rank.status();
  Launch launch;
  launch.rank = rank.value();
  launch.size = size.value();
  launch.job = read_job(config, names.launcher);
  if (launch.size == 1) return launch;
  const bool torch = names.launcher == Names::Launcher::kTorch;
  const Result<int> port =
      number("MASTER_PORT", 1, 65535, torch ? kDefaultMasterPort : derived_port());
  if (!port.ok()) return port.status();
  launch.master_port = port.value();
  launch.master_address = read_master_address(names.launcher);
  if (launch.master_address.empty()) {
    return Status(Code::kBootstrapFailed,
                  "environment variable MASTER_ADDR is not set: it names the host of rank 0");
  }
  return launch;
}

std::optional<int> launched_local_rank() {
  for (const char* const name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                 "PMIX_LOCAL_RANK", "SLURM_LOCALID"}) {
    if (!is_set(name)) continue;
    const Result<int> local = number(name, 0, kMaxStoreRanks);
    if (local.ok()) return local.value();
  }
  return std::nullopt;
}

std::optional<int> launched_rank() {
  const Result<int> rank = number(choose_names().rank, 0, kMaxStoreRanks - 1);
  return rank.ok() ? std::optional(rank.value()) : std::nullopt;
}

std::string first_host(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    // "[003-010,012]": take the first number.
    const size_t end = list.find(']', i);
    if (end == std::string_view::npos) return "";
    const std::string_view inside = list.substr(i + 1, end - i - 1);
    host += inside.substr(0, inside.find_first_of(",-"));
    i = end;
  }
  return host;
}

}  // namespace hetcomm
