// Runs works in a process that is one rank of a job.
#pragma once

#include <string>
#include <vector>

#include "bench/row.h"
#include "bench/work.h"
#include "tools/common/session.h"

namespace bench {

// Runs |work|. Rank 0 prints a measurement line for each point.
int run_as_runner(const Work& work);

// Runs |works| on all ranks of a job that was launched elsewhere. All ranks must have the same
// works. Returns rows on rank 0 and none on the others.
std::vector<Row> run_in_job(tools::Launcher launcher, const std::vector<Work>& works);

// Waits for a hetcomm_bench in run_as_client(), which sends the works of its command line, and runs
// them together with it. Returns all rows.
std::vector<Row> run_as_listener(int port);
// Connects to the listener on |host|, sends it |works|, and runs them together with it. Returns all
// rows.
std::vector<Row> run_as_client(const std::string& host, int port, const std::vector<Work>& works);

}  // namespace bench
