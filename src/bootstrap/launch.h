// A launch describes how the launcher started this process: its rank, the number of ranks, the
// address of rank 0, and the job's name. It is read from torchrun's variables, or if they are not
// set, from the variables of Open MPI, PMI, PMIx or Slurm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/system/config.h"

namespace hetcomm {

// The job's name. It is the same on all ranks of a job, and different for different jobs.
struct JobName {
  std::string name;    // empty if unknown
  std::string source;  // the variable that gives it
};

struct Launch {
  int rank = 0;
  int size = 1;
  // Empty in a job of one rank.
  std::string master_address;
  int master_port = 0;
  JobName job;
};

// Reads the launcher's variables. The job's name is HETCOMM_JOB, else torchrun's run id, else the
// launcher's job id. Slurm's job name includes SLURM_RESTART_COUNT. TORCHELASTIC_RESTART_COUNT is
// not part of a name, because each torchrun agent has its own count. If a variable is missing or
// malformed, fails with BOOTSTRAP_FAILED and names the variable.
Result<Launch> read_launch(const Config& config);

// Returns this process's rank according to the launcher, if known.
std::optional<int> launched_rank();

// Returns this process's index among the processes that the launcher started on its host, if known.
std::optional<int> launched_local_rank();

// Returns the first host in Slurm's |list|, such as "node[003-010,012],other"; "" if there is none.
std::string first_host(std::string_view list);

}  // namespace hetcomm
