// A process that is one rank of a job does this.
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

// Carries out |work| and prints a measurement line for each point (rank 0).
int run_as_runner(const Work& work);

// The ranks of a job that somebody else launched carry out |works| together; all must have been
// given the same. Rows are rank 0's; empty on the others.
std::vector<Row> run_in_job(Launcher launcher, const std::vector<Work>& works);

// The links between the hosts of a job that somebody launched. A result of rank 0; empty on the
// others. Progress goes to |progress| there.
LinksResult run_links(Launcher launcher, const Work& work, const LinksOptions& options,
                      const std::function<void(const std::string&)>& progress);

// How much the NIC near each device is worth, as above.
AffinityResult run_affinity(Launcher launcher, const Work& work, const AffinityOptions& options,
                            const std::function<void(const std::string&)>& progress);

// Two hosts: one waits, the other connects to it with the works, which it may have read from its
// own command line or (the waiting one) gets from there. Both receive all rows.
std::vector<Row> run_as_listener(int port);
std::vector<Row> run_as_client(const std::string& host, int port, const std::vector<Work>& works);

}  // namespace bench
