// A launch describes how the launcher started this process: its rank, the number of ranks, the
// location of rank 0, and the job's name. It is read from torchrun's variables, or without them
// from the variables of Open MPI, PMI, PMIx or Slurm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/system/config.h"

namespace hetcomm {

// The name of a job, on which all its ranks agree and which distinguishes jobs.
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
// launcher's job id. Slurm's name contains SLURM_RESTART_COUNT. TORCHELASTIC_RESTART_COUNT is not
// part of a name, because each torchrun agent has its own count. Fails with BOOTSTRAP_FAILED, and
// names the variable, if one is missing or malformed.
Result<Launch> read_launch(const Config& config);

// Returns this process's rank according to the launcher, if known.
std::optional<int> launched_rank();

// Returns this process's index among those that the launcher has started on its host, if known.
std::optional<int> launched_local_rank();

// Returns the first host in Slurm's |list|, such as "node[003-010,012],other"; "" if there is none.
std::string first_host(std::string_view list);

}  // namespace hetcomm
