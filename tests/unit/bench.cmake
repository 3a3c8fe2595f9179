hetcomm_test(bench_links_plan_test
  SOURCES bench_links_plan_test.cc ${PROJECT_SOURCE_DIR}/bench/links_plan.cc
  LABELS asan)
hetcomm_test(bench_links_inference_test
  SOURCES bench_links_inference_test.cc ${PROJECT_SOURCE_DIR}/bench/links_plan.cc
  DEPENDS topology_links topology_machine topology_read present base system fmt::fmt
  LABELS asan)
