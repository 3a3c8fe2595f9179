// hetcomm against its peers on a machine that does not hold still: every round measures each
// implementation once, in an order that rotates, with a probe of the cores' placement before and
// after each launch. Only figures of one round and one placement are set against each other.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/implementation.h"
#include "bench/row.h"

namespace bench {

// The result of one launch.
struct Trial {
  int round = 0;
  std::string placement;  // "mixed" when it changed meanwhile
  double hand_over_us = kUnknown;
  std::vector<Row> rows;
};

// |works| by hetcomm (the first implementation) and the others, |rounds| times. Fills in rows
// (medians in the most frequent placement), placements and ratios. |tell| shows where it is.
// "" or why hetcomm itself could not be measured; a peer that fails is left out and noted.
std::string compare(const std::vector<Implementation>& implementations,
                    const std::vector<Work>& works, int rounds, double silence_seconds,
                    const std::function<void(const std::string&)>& tell, Report* report);

// Rows of works that were measured in turn, of one process of ours: medians of each into |report|,
// and ratios of the first of a test to the others. Pure.
void compare_variants(std::vector<Row> rows, int rounds, Report* report);

// Ratios of |ours| to |theirs|, one for each placement and point that both have. Pure.
std::vector<Ratio> ratios_of(const std::vector<Trial>& ours, const std::vector<Trial>& theirs);

// Returns for each point the row of |trials| in |placement| with the median figure in avg_us,
// bandwidth and rate. Takes all trials if |placement| has none. Pure.
std::vector<Row> median_rows(const std::vector<Trial>& trials, const std::string& placement);

}  // namespace bench
