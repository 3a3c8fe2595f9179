// hetcomm_bench links: measures the links between the hosts of a job and infers a link model. One
// rank of each host takes part. A second rank on the same host, if there is one, is used to measure
// transfers within the host.
//
// Rank 0 plans rounds of transfers, sends the plan to all ranks, and gathers the receivers'
// measurements. The library infers the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/common/job.h"

namespace tools {

struct LinksOptions {
  std::string progress;            // "caller", "thread"; "": set by HETCOMM_PROGRESS
  std::string transport = "auto";  // "auto": every usable transport
  double seconds = 0.4;            // duration of one round of transfers
  size_t check = 0;                // number of further rounds that are compared with the model
  uint32_t seed = 0;               // seed for the choice of further rounds
};

// The result on rank 0. It is empty on other ranks.
struct LinksResult {
  std::string measurements;        // JSON, for infer_links()
  std::vector<std::string> notes;  // human-readable: what was measured, and how
  // One line for each transfer of the further rounds, with the model's prediction.
  std::vector<std::string> comparison;
  double worst = 0;  // the greatest deviation in |comparison|, relative to the measurement
};

// Runs one rank of a job that |launcher| started. Calls |progress| with lines of progress on rank
// 0. Exits the process on any failure.
LinksResult measure_links(Launcher launcher, const LinksOptions& options,
                          const std::function<void(const std::string&)>& progress);

// Returns the link model that the library infers from |measurements|. |form| is one of
// HETCOMM_PLAN_*. Exits the process on failure.
std::string infer_links(const std::string& measurements, int32_t form);

}  // namespace tools
