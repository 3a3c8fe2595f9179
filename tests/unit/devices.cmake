# The stream tests measure; with sanitizers they allow for more.
set(serial RUN_SERIAL)
if(HETCOMM_SANITIZE)
  set(serial)
endif()
hetcomm_test(device_test ${serial}
  SOURCES
    device_host_test.cc
    device_options_test.cc
    device_plugin_test.cc
    device_sim_memory_test.cc
    device_sim_stream_test.cc
    device_table_test.cc
  DEPENDS base device_api device_host device_plugin device_sim
  ENVIRONMENT
    HETCOMM_TEST_PLUGIN=$<TARGET_FILE:example_device_plugin>
    HETCOMM_TEST_BAD_PLUGIN=$<TARGET_FILE:bad_device_plugin>
  LABELS asan tsan
  PROCESSORS 2
  TIMEOUT 120)
hetcomm_plugin(bad_device_plugin SOURCES bad_device_plugin.c)
add_dependencies(device_test example_device_plugin bad_device_plugin)
