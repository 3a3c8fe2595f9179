// Functions of a process that is one rank of a job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/affinity.h"
#include "bench/links.h"
#include "bench/row.h"
#include "bench/session.h"
#include "bench/work.h"

namespace bench {

// Carries out |work|. Rank 0 prints a measurement line for each point.
int run_as_runner(const Work& work);

// Carries out |works| on all ranks of a job that was launched elsewhere. All ranks must have the
// same works. Returns rows on rank 0 and none on the others.
std::vector<Row> run_in_job(tools::Launcher launcher, const std::vector<Work>& works);

// Measures the links between the hosts of a job that was launched elsewhere. The result is on rank
// 0 and empty on the others. |progress| receives lines at rank 0.
LinksResult run_links(tools::Launcher launcher, const Work& work, const LinksOptions& options,
                      const std::function<void(const std::string&)>& progress);

// Measures the gain of the NIC near each device. The conventions are those of run_links().
AffinityResult run_affinity(tools::Launcher launcher, const Work& work,
                            const AffinityOptions& options,
                            const std::function<void(const std::string&)>& progress);

// Waits for another hetcomm_bench, which connects and sends the works of its command line. Both
// processes return all rows.
std::vector<Row> run_as_listener(int port);
std::vector<Row> run_as_client(const std::string& host, int port, const std::vector<Work>& works);

}  // namespace bench
