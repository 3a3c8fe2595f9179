hetcomm_test(device_test TIMED
  SOURCES
    device_checked_test.cc
    device_host_test.cc
    device_options_test.cc
    device_plugin_test.cc
    device_reduce_test.cc
    device_sim_memory_test.cc
    device_sim_stream_test.cc
    device_table_test.cc
  DEPENDS base system device_api device_host device_plugin device_sim reduce
  ENVIRONMENT
    HETCOMM_TEST_PLUGIN=$<TARGET_FILE:example_device_plugin>
    HETCOMM_TEST_BAD_PLUGIN=$<TARGET_FILE:bad_device_plugin>
  LABELS asan tsan
  PROCESSORS 2
  TIMEOUT 120)
hetcomm_plugin(bad_device_plugin SOURCES bad_device_plugin.c)
hetcomm_plugin(strict_device_plugin SOURCES strict_device_plugin.c)
add_dependencies(device_test example_device_plugin bad_device_plugin strict_device_plugin)
if(NOT HETCOMM_SANITIZE)
  hetcomm_ctest(device_suite TARGET device_test
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/device_suite_test.py
      $<TARGET_FILE:device_test> $<TARGET_FILE:strict_device_plugin>
    TIMEOUT 120)
endif()

# Over the run-times of this machine: those that tools/install-deps --opencl has put beside each other,
# else the system's. Not under sanitizers, which the run-times do not stand.
if(TARGET hetcomm_device_opencl AND NOT HETCOMM_SANITIZE)
  hetcomm_test(opencl_test
    SOURCES device_opencl_faults_test.cc device_opencl_test.cc device_reduce_test.cc device_table_test.cc
    DEPENDS base system device_api device_host device_opencl device_plugin device_sim reduce fmt::fmt
    ENVIRONMENT ${HETCOMM_OPENCL_ENVIRONMENT}
    PROCESSORS 2
    TIMEOUT 240)
  target_include_directories(opencl_test SYSTEM PRIVATE ${HETCOMM_OPENCL_INCLUDE_DIR})
  target_compile_definitions(opencl_test PRIVATE HETCOMM_HAS_OPENCL)
endif()
