// A launch is the launcher's information: rank, number of ranks, location of rank 0, and name of
// the job. It comes from torchrun's variables, else from those of Open MPI, PMI, PMIx or Slurm.
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
  std::string name;    // "": unknown
  std::string source;  // the variable that gives it
};

struct Launch {
  int rank = 0;
  int size = 1;
  // Empty in a job of one rank, which does not need it.
  std::string master_address;
  int master_port = 0;
  JobName job;
};

// The job's name is HETCOMM_JOB, else the run id of torchrun, else the launcher's id of the job.
// Slurm's name contains SLURM_RESTART_COUNT. TORCHELASTIC_RESTART_COUNT is not part of a name,
// because each agent of torchrun counts for itself. BOOTSTRAP_FAILED names the variable that is
// missing or malformed.
Result<Launch> read_launch(const Config& config);

// This process's rank according to the launcher, if known.
std::optional<int> launched_rank();

// This process's number among those that the launcher has started on its host, if known.
std::optional<int> launched_local_rank();

// The first host of Slurm's |list| of nodes, such as "node[003-010,012],other"; "" if it has none.
std::string first_host(std::string_view list);

}  // namespace hetcomm
