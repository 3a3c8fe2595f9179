// The runners' sources, put into this program when it is built (sources.cc.in).
#pragma once

#include <string_view>

namespace bench {

struct SourceFile {
  const char* path;  // from the root of the tree, as it is included
  std::string_view text;
};

extern const SourceFile kRunnerSources[];
extern const unsigned kRunnerSourceCount;

}  // namespace bench
