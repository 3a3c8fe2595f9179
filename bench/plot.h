// A plot: the contents of a report's drawing as panels with lines.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"

namespace bench {

struct Spot {
  double bytes;
  double value;
};

// The line of one implementation over one transport in one setting.
struct Series {
  std::string name;            // as in the legend
  std::string implementation;  // "openmpi": without version and variant
  std::string setting;         // other differences from implementation and transport; mostly ""
  std::string transport;
  std::vector<Spot> spots;
  bool ours() const { return implementation == "hetcomm"; }
};

struct Panel {
  std::string title;
  std::string unit;  // unit of the vertical axis, with "median" if that applies
  std::vector<Series> series;
};

// Returns one panel for each test. Values are medians: over the rounds if implementations were
// measured in turn, else over single messages (over windows, for bandwidths and rates). If no
// median was measured, the name of a series contains "average".
std::vector<Panel> panels_of(const Report& report);

// Returns a colour for each implementation, the same in every drawing. hetcomm's is red. If only
// hetcomm is drawn, each of its settings has its own colour.
std::string colour_of(const Series& series, const std::vector<Panel>& panels);

}  // namespace bench
