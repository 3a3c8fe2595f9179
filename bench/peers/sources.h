// The runners' sources, embedded in this program at build time (sources.cc.in).
#pragma once

#include <string_view>

namespace bench {

struct SourceFile {
  const char* path;  // from the root of the tree, as in #include
  std::string_view text;
};

extern const SourceFile kRunnerSources[];
extern const unsigned kRunnerSourceCount;

}  // namespace bench
