// A launch is what the launcher said: rank, number of ranks, where rank 0 is, and which job this
// is. It comes from torchrun's variables, else from those of Open MPI, PMI, PMIx or Slurm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/system/config.h"

namespace hetcomm {

// The name of a job, which all its ranks agree on, and by which jobs are told apart.
struct JobName {
  std::string name;    // "": nothing says it
  std::string source;  // the variable that says it
};

struct Launch {
  int rank = 0;
  int size = 1;
  // Empty, and not needed, in a job of one.
  std::string master_address;
  int master_port = 0;
  JobName job;
};

// HETCOMM_JOB is the job's name, else the run id of torchrun, else what the launcher calls the job.
// Slurm's name has SLURM_RESTART_COUNT in it. TORCHELASTIC_RESTART_COUNT is not part of a name,
// because each agent of torchrun counts for itself.
// BOOTSTRAP_FAILED names the variable that is missing or malformed.
Result<Launch> read_launch(const Config& config);

// This process's rank as the launcher says it; none where nothing says it.
std::optional<int> launched_rank();

// This process's number among those that the launcher has started on its host; none where nothing
// says it.
std::optional<int> launched_local_rank();

// The first host of Slurm's |list| of nodes, such as "node[003-010,012],other"; "" if it has none.
std::string first_host(std::string_view list);

}  // namespace hetcomm
