# The stream tests measure; with sanitizers they allow for more.
set(serial RUN_SERIAL)
if(HETCOMM_SANITIZE)
  set(serial)
endif()
hetcomm_test(device_test ${serial}
  SOURCES
    device_host_test.cc
    device_options_test.cc
    device_sim_memory_test.cc
    device_sim_stream_test.cc
    device_table_test.cc
  DEPENDS base device_api device_host device_sim
  LABELS asan tsan
  PROCESSORS 2
  TIMEOUT 120)
