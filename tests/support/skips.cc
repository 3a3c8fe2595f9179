#include "tests/support/skips.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace hetcomm::test {
namespace {

constexpr int kAllSkipped = 77;

class Skips final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& info) override {
    if (!info.result()->Skipped()) return;
    for (int i = 0; i < info.result()->total_part_count(); ++i) {
      const testing::TestPartResult& part = info.result()->GetTestPartResult(i);
      if (part.skipped()) ++reasons_[part.message()];
    }
  }
  void OnTestProgramEnd(const testing::UnitTest& program) override {
    for (const auto& [reason, count] : reasons_) {
      std::printf("skipped %d: %s\n", count, reason.empty() ? "no reason given" : reason.c_str());
    }
    if (program.skipped_test_count() == 0) return;
    // tests/tools/skips.py reads this line.
    std::printf("skipped in all: %d of %d\n", program.skipped_test_count(),
                program.test_to_run_count());
  }

  std::map<std::string, int> reasons_;
};

// Returns whether |name| matches one of the colon-separated |patterns|. GoogleTest's patterns
// support * and ?.
bool matches_any(std::string_view patterns, const std::string& name) {
  while (!patterns.empty()) {
    const size_t end = std::min(patterns.find(':'), patterns.size());
    const std::string pattern(patterns.substr(0, end));
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
    patterns.remove_prefix(std::min(end + 1, patterns.size()));
  }
  return false;
}

// Returns whether the suite or the test of the full |name| begins with "Timed".
bool is_timed(std::string_view name) {
  for (size_t at = name.find("Timed"); at != std::string_view::npos;
       at = name.find("Timed", at + 1)) {
    if (at == 0 || name[at - 1] == '.' || name[at - 1] == '/') return true;
  }
  return false;
}

// Returns the timed tests that |filter| selects, separated by colons.
std::string timed_tests_of(std::string_view filter) {
  const size_t minus = std::min(filter.find('-'), filter.size());
  const std::string_view chosen = minus == 0 ? "*" : filter.substr(0, minus);
  const std::string_view refused = filter.substr(std::min(minus + 1, filter.size()));
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  std::string names;
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(k)->name();
      if (!is_timed(name)) continue;
      if (!matches_any(chosen, name) || matches_any(refused, name)) continue;
      names += (names.empty() ? "" : ":") + name;
    }
  }
  return names;
}

// Selects only the timed tests, or only the untimed ones. Returns false if no requested test is
// left.
bool choose_by_time() {
  const std::string filter = GTEST_FLAG_GET(filter);
  const std::string timed = timed_tests_of(filter);
  const char* const wanted = std::getenv("HETCOMM_TEST_TIMING");
  if (wanted == nullptr || std::string_view(wanted) != "1") {
    if (timed.empty()) return true;
    if (wanted != nullptr && std::string_view(wanted) == "never") {
      std::printf("tests of time that nothing runs, as the program is not TIMED: %s\n",
                  timed.c_str());
      return false;
    }
    const char* const joint = filter.find('-') == std::string::npos ? "-" : ":";
    GTEST_FLAG_SET(filter, filter + joint + timed);
    std::printf("left out, since only HETCOMM_TEST_TIMING=1 runs tests of time: %s\n",
                timed.c_str());
    return true;
  }
  GTEST_FLAG_SET(filter, timed);
  if (timed.empty()) std::printf("no test of time in %s\n", filter.c_str());
  return !timed.empty();
}

}  // namespace

int run_all_tests() {
  testing::UnitTest& program = *testing::UnitTest::GetInstance();
  if (!choose_by_time()) return 1;
  program.listeners().Append(new Skips);
  const int status = RUN_ALL_TESTS();
  const bool none_ran = program.skipped_test_count() == program.test_to_run_count();
  return status == 0 && program.test_to_run_count() > 0 && none_ran ? kAllSkipped : status;
}

}  // namespace hetcomm::test
