// main() for test binaries that start processes, kill them, or wait for other processes:
//
//   * a watchdog aborts the binary, naming the test, when one test runs for longer than
//     HETCOMM_TEST_WATCHDOG seconds (90);
//   * skipped tests are counted (skips.h);
//   * SIGPIPE is left untouched, as in any program that uses the library.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/skips.h"

namespace {

char running_test[256];

extern "C" void watchdog_bites(int) {
  static const char kText[] = "\nwatchdog: this test takes too long: ";
  (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
  (void)!write(STDERR_FILENO, running_test, strnlen(running_test, sizeof(running_test)));
  (void)!write(STDERR_FILENO, "\n", 1);
  // A core dump or a debugger shows where the test hangs. Forked children die with their parent.
  std::abort();
}

long number_of(const char* variable, long otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::max(0L, std::strtol(value, nullptr, 10));
}

// Returns the time limit of one test. Sanitizers slow every test down, so the limit grows like that
// of the test's ctest entry.
unsigned watchdog_seconds() {
  return static_cast<unsigned>(number_of("HETCOMM_TEST_WATCHDOG", 90) *
                               number_of("HETCOMM_TEST_TIMEOUT_SCALE", 1));
}

class Watchdog final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& info) override {
    std::snprintf(running_test, sizeof(running_test), "%s.%s", info.test_suite_name(), info.name());
    alarm(watchdog_seconds());
  }
  void OnTestEnd(const testing::TestInfo& /*info*/) override { alarm(0); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  struct sigaction action {};
  action.sa_handler = watchdog_bites;
  sigaction(SIGALRM, &action, nullptr);
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return hetcomm::test::run_all_tests();
}
