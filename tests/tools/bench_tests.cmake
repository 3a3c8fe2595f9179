# Tests of hetcomm_bench and hetcomm_info, for CMakeLists.txt beside this file.
if(TARGET hetcomm_bench)
  set(bench_dir ${PROJECT_SOURCE_DIR}/bench)
  hetcomm_test(bench_report_test
    SOURCES
      bench_report_test.cc
      ${bench_dir}/compare.cc
      ${bench_dir}/implementation.cc
      ${bench_dir}/probe.cc
      ${bench_dir}/report.cc
      ${bench_dir}/report_fields.cc
      ${bench_dir}/report_osu.cc
      ${bench_dir}/report_table.cc
      ${bench_dir}/row.cc
      ${bench_dir}/work.cc
    DEPENDS tools_common hetcomm present base fmt::fmt nlohmann_json::nlohmann_json
    LABELS asan)
  hetcomm_test(bench_launch_test
    SOURCES bench_launch_test.cc
    DEPENDS tools_common fmt::fmt)
  hetcomm_test(bench_affinity_test
    SOURCES bench_affinity_test.cc
    DEPENDS tools_links hetcomm fmt::fmt nlohmann_json::nlohmann_json
    LABELS asan)
  hetcomm_test(bench_loops_test
    SOURCES bench_loops_test.cc
    LABELS asan)
  set(bench_tool_test Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/bench_tool_test.py
    $<TARGET_FILE:hetcomm_bench>)
  foreach(part Formats Usage Comparison Lifetime Pipelines Places Simulation TwoHosts Links)
    string(TOLOWER ${part} name)
    hetcomm_ctest(bench_${name} TARGET hetcomm_bench
      COMMAND ${bench_tool_test} ${part}
      PROCESSORS 2
      TIMEOUT 180)
  endforeach()
  hetcomm_ctest(bench_driver TARGET hetcomm_bench
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/bench_driver_test.py
      $<TARGET_FILE:hetcomm_bench> ${bench_dir}/driver
    PROCESSORS 2
    TIMEOUT 240)
  # Whether copies and the wire overlap.
  hetcomm_ctest(bench_overlap TARGET hetcomm_bench
    COMMAND ${bench_tool_test} Overlap SlowWire
    LABELS timing
    TIMEOUT 180)
endif()
if(TARGET hetcomm_info)
  hetcomm_ctest(info_tool TARGET hetcomm_info
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/info_tool_test.py
      $<TARGET_FILE:hetcomm_info>
    TIMEOUT 120)
endif()
if(TARGET hetcomm_info AND TARGET hetcomm_bench)
  hetcomm_ctest(device_plugin TARGET hetcomm_info
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/device_plugin_test.py
      $<TARGET_FILE:hetcomm_info> $<TARGET_FILE:hetcomm_bench>
      $<TARGET_FILE:example_device_plugin> $<TARGET_FILE:bad_device_plugin>
    PROCESSORS 2
    TIMEOUT 120)
  add_dependencies(tests-plain hetcomm_bench example_device_plugin bad_device_plugin)
endif()
