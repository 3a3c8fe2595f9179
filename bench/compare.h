// Compares hetcomm with its peers on a machine whose speed varies. Every round measures each
// implementation once, in a rotating order, and probes the cores' placement before and after each
// launch. Only figures from the same round and the same placement are compared.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/implementation.h"
#include "bench/row.h"

namespace bench {

// A Trial is the result of one launch of one implementation.
struct Trial {
  int round = 0;
  std::string placement;  // "mixed" if it changed during the launch
  double hand_over_us = kUnknown;
  std::vector<Row> rows;
};

// Runs |works| with hetcomm (the first implementation) and the others, |rounds| times. Fills in
// rows (medians in the most frequent placement), placements and ratios. Calls |tell| with a line of
// progress before each launch. Returns "", or an error if hetcomm itself could not be measured or
// no peer can take part. A peer that fails is left out, with a note in the report.
std::string compare(const std::vector<Implementation>& implementations,
                    const std::vector<Work>& works, int rounds, double silence_seconds,
                    const std::function<void(const std::string&)>& tell, Report* report);

// Adds to |report| the medians of works that one hetcomm process measured in turn, and the ratios
// of a test's first variant to the others. Pure.
void compare_variants(std::vector<Row> rows, int rounds, Report* report);

// Returns the ratios of |ours| to |theirs|, one for each placement and point in both. Pure.
std::vector<Ratio> ratios_of(const std::vector<Trial>& ours, const std::vector<Trial>& theirs);

// Returns, for each point, the row with the median figure() among the |trials| in |placement|. The
// row's count of wrong bytes is the largest in any of these trials. Uses all trials if none has
// |placement|. Pure.
std::vector<Row> median_rows(const std::vector<Trial>& trials, const std::string& placement);

}  // namespace bench
