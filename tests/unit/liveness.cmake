hetcomm_test(liveness_parts_test
  SOURCES liveness_parts_test.cc
  DEPENDS base system net liveness fmt::fmt
  LABELS asan tsan
  TIMEOUT 60)
hetcomm_test(liveness_control_connection_test
  SOURCES liveness_control_connection_test.cc
  DEPENDS base system net liveness fmt::fmt
  LABELS asan
  TIMEOUT 60)
hetcomm_test(liveness_judge_test
  SOURCES liveness_judge_test.cc
  DEPENDS base system net liveness fmt::fmt
  LABELS asan
  TIMEOUT 60)
hetcomm_test(liveness_simulation_test LIKE_LIBRARY
  SOURCES liveness_simulation_test.cc ${PROJECT_SOURCE_DIR}/tests/support/liveness_simulation.cc
  DEPENDS base system net liveness fmt::fmt
  LABELS asan
  TIMEOUT 300)
# In the build without sanitizers.
if(NOT HETCOMM_SANITIZE)
  hetcomm_ctest(liveness_simulation_whole TARGET liveness_simulation_test
    COMMAND liveness_simulation_test --gtest_brief=1
    TIMEOUT 300)
  hetcomm_ctest(liveness_simulation_long TARGET liveness_simulation_test
    COMMAND liveness_simulation_test --gtest_brief=1
    ENVIRONMENT HETCOMM_TEST_LONG=1 HETCOMM_TEST_SEEDS=1:100000
    LABELS long TIMEOUT 3600)
endif()
