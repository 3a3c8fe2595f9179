// Implements the command `schedule`, which checks a pipeline schedule and forecasts its run,
// without a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hetcomm_info {

// The links over which all pipelines of a plan are simulated at once.
struct LinksOrder {
  std::string model;                     // a file; "": none
  std::vector<std::string> nics;         // NIC of each rank; empty: the first one of its host
  std::vector<uint64_t> gradient_bytes;  // one for all items of the model, or one for each
};

struct ScheduleOrder {
  std::string what;  // a schedule's name, or a file: a question, a plan, or a schedule as CSV
  uint32_t ranks = 0;
  uint32_t chunks = 0;  // stages of each rank; 0: the schedule's own number
  uint32_t micro_batches = 0;
  std::vector<uint32_t> warmups;
  // Times such as "12.5ms": one for all stages, or one for each.
  std::vector<std::string> forward;
  std::vector<std::string> backward;
  std::vector<std::string> weight_grad;  // the part of |backward| for the gradient of the weights
  std::vector<std::string> boundaries;   // "S=BUSY" or "S=BUSY+LATENCY", behind stage S
  double epsilon_percent = 0;
  double overlap_percent = 0;
  std::string order;    // arranged: how stages go to ranks, "loop" or "v"; "": the default
  uint64_t effort = 0;  // arranged: simulated steps that the search may take; 0: the default
  uint64_t limit = 0;   // activations that a rank may hold; 0: any number
  std::string level = "compute";
  std::optional<uint32_t> receives_ahead;
  std::optional<uint32_t> send_buffers;
  std::string send_waits;            // "at_once", or "before_reuse"; "": the default
  std::string routes;                // a file with the routes of transfers; "": none
  bool reductions = false;           // adds REDUCE_GRAD
  std::vector<uint32_t> in_flight;   // one for all boundaries, or one for each
  std::vector<std::string> traces;   // files with the traces of a run, one for each rank
  bool may_split = false;            // a better schedule may split backward steps
  std::optional<uint32_t> pipeline;  // number of the pipeline in a plan; traces contain their own
  LinksOrder links;                  // links for the forecast of a whole plan
};

// The output formats of the command.
const std::vector<std::string>& schedule_formats();

// Prints the answer as |format|. Returns the exit status.
int print_schedule(const ScheduleOrder& order, const std::string& format);

}  // namespace hetcomm_info
