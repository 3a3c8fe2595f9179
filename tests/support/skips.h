// Makes skipped tests visible, so that nobody takes a skip for a success, and keeps tests apart
// whose bound is time.
#pragma once

namespace hetcomm::test {

// A test whose suite or own name contains "Timed" compares durations, rates or processor time with
// a bound that a busy machine may break. With HETCOMM_TEST_TIMING=1 in the environment only such
// tests run, and a program that has none fails. Without it, only the others run.
//
// Runs all tests of the program that were chosen, and prints how many were skipped, each reason
// once with its number. The exit status is 77, which ctest shows as skipped, where all of them
// were.
int run_all_tests();

}  // namespace hetcomm::test
