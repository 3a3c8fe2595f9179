#include "tests/support/skips.h"

#include <cstdio>
#include <map>
#include <string>

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

}  // namespace

int run_all_tests() {
  testing::UnitTest& program = *testing::UnitTest::GetInstance();
  program.listeners().Append(new Skips);
  const int status = RUN_ALL_TESTS();
  const bool none_ran = program.skipped_test_count() == program.test_to_run_count();
  return status == 0 && program.test_to_run_count() > 0 && none_ran ? kAllSkipped : status;
}

}  // namespace hetcomm::test
