foreach(name cost draw layout memory plan slicing)
  hetcomm_test(reshard_${name}_test
    SOURCES reshard_${name}_test.cc
    DEPENDS reshard topology_links topology_machine topology_read present base system fmt::fmt nlohmann_json::nlohmann_json
    LABELS asan)
endforeach()

hetcomm_test(reshard_claim_test
  SOURCES reshard_claim_test.cc ../support/counting_allocator.cc
  DEPENDS reshard_execution reshard core reduce base system fmt::fmt)

hetcomm_test(reshard_region_test
  SOURCES reshard_region_test.cc
  DEPENDS reshard_execution reshard core reduce base system fmt::fmt
  LABELS asan)

# Hundreds of thousands of layouts.
foreach(name cost plan slicing)
  hetcomm_ctest(reshard_${name}_long TARGET reshard_${name}_test
    COMMAND reshard_${name}_test
    ENVIRONMENT HETCOMM_TEST_LONG=1
    LABELS long TIMEOUT 1800)
endforeach()

hetcomm_test(reshard_speed NO_ENTRY OWN_MAIN
  SOURCES reshard_speed.cc
  DEPENDS reshard topology_links topology_machine topology_read present base system fmt::fmt)
