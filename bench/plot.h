// A plot holds what a drawing of a report shows: panels with lines, before anything is drawn.
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
  std::string name;            // as the legend has it
  std::string implementation;  // "openmpi": without version and variant
  std::string setting;         // what differs beside implementation and transport; "" mostly
  std::string transport;
  std::vector<Spot> spots;
  bool ours() const { return implementation == "hetcomm"; }
};

struct Panel {
  std::string title;
  std::string unit;  // of the vertical axis; says "median"
  std::vector<Series> series;
};

// One panel for each test. Values are medians: of the rounds where implementations were measured in
// turn, else of single messages (of windows, for bandwidths and rates). The name of a series says
// "average" where no median was measured.
std::vector<Panel> panels_of(const Report& report);

// A colour for each implementation, the same in every drawing; hetcomm's is red. Where hetcomm is
// alone its settings have colours of their own.
std::string colour_of(const Series& series, const std::vector<Panel>& panels);

}  // namespace bench
