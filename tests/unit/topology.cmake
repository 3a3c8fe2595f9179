foreach(name machine affinity link_estimate link_inference link_model pairing rank_nodes sysfs)
  hetcomm_test(topology_${name}_test
    SOURCES topology_${name}_test.cc
    DEPENDS topology_links topology_machine topology_read present base system fmt::fmt
    LABELS asan
    ENVIRONMENT HETCOMM_TEST_MACHINES=${PROJECT_SOURCE_DIR}/tests/machines)
endforeach()
