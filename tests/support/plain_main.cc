// main() for test binaries without their own.
#include <gmock/gmock.h>

#include "tests/support/skips.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  return hetcomm::test::run_all_tests();
}
