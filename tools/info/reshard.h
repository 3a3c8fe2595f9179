// Implements the command `reshard`, which plans the transfer between two layouts, without a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hetcomm_info {

struct ReshardQuestion {
  std::vector<std::string>
      layouts;  // source and destination, as words of tools/common/reshard_cases.h
  std::vector<uint64_t> shape = {16, 16, 65536};
  std::string strategy = "auto";
  std::string model;        // path of a link model; "": the links are unknown
  int ranks_per_host = 1;   // ranks fill the hosts of the model in its order
  bool same_ranks = false;  // both sides begin with rank 0
};

// Prints the plan as |format|: text, json or svg. Returns the exit status.
int print_reshard(const ReshardQuestion& question, const std::string& format);

}  // namespace hetcomm_info
