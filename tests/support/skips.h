// Makes skipped tests visible, so that nobody takes a skip for a success.
#pragma once

namespace hetcomm::test {

// Runs all tests of the program that were chosen, and prints how many were skipped, each reason
// once with its number. The exit status is 77, which ctest shows as skipped, where all of them
// were.
int run_all_tests();

}  // namespace hetcomm::test
