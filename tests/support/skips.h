// Reports skipped tests, so that a skip is not mistaken for a success, and separates
// timing-dependent tests from the others.
#pragma once

namespace hetcomm::test {

// Runs all selected tests of the program and prints how many were skipped, with each reason and its
// count. The exit status is 77, which ctest shows as skipped, if all of them were.
//
// A test whose suite or own name begins with "Timed" compares durations, rates or processor time
// with a bound that a busy machine may break. With HETCOMM_TEST_TIMING=1 in the environment only
// such tests run, and a program that has none fails. Without it, only the others run. With
// HETCOMM_TEST_TIMING=never a program that has such tests fails, since nothing would run them.
int run_all_tests();

}  // namespace hetcomm::test
