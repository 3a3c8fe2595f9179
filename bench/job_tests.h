// Runs the tests that measure a whole job: links, affinity, queue, pipeline and reshard.
#pragma once

#include "bench/options.h"
#include "tools/common/job.h"

namespace bench {

// Runs the test of |options| as one rank of a job that |launcher| started. Rank 0 reports. Without
// a launcher, starts ranks on this host with the command line |argv|. Two cases need no job: a
// simulation runs in this process, and the driver starts the ranks of pipelines over emulated links
// and of comparisons. Returns the exit status, kUsage if the driver was requested in a job.
int run_job_test(tools::Launcher launcher, const Options& options, int argc, char** argv);

}  // namespace bench
