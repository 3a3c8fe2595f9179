# The functions by which every folder declares what it builds; README.md has an example of each.

include_guard(GLOBAL)

# What `cmake --install` puts into place.
add_custom_target(hetcomm_installed)

# Reads ARGN by cmake_parse_arguments and refuses what it does not know.
macro(_hetcomm_parse function options one_value multi_value)
  cmake_parse_arguments(arg "${options}" "${one_value}" "${multi_value}" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${function}(${name}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
endmacro()

# Targets of this tree may be written without their prefix: base is hetcomm_base. Imported targets
# (fmt::fmt) and the library itself (hetcomm) stay as they are.
function(_hetcomm_targets out_targets)
  set(targets)
  foreach(entry IN LISTS ARGN)
    if(NOT entry MATCHES "::|^hetcomm$|^hetcomm_|^-")
      string(PREPEND entry "hetcomm_")
    endif()
    list(APPEND targets ${entry})
  endforeach()
  set(${out_targets} ${targets} PARENT_SCOPE)
endfunction()

# hetcomm_module(<name> [SOURCES <file>...] [DEPENDS <target>...])
#
# The code of one folder, as target hetcomm_<name>. With SOURCES: a static, position independent
# library with hidden visibility, which becomes part of libhetcomm. Without: a header-only interface.
# Dependencies are private: who uses a second module's headers names that module itself.
# With HETCOMM_UNITY the compiler reads several files at once.
function(hetcomm_module name)
  _hetcomm_parse(hetcomm_module "" "" "SOURCES;DEPENDS" ${ARGN})
  _hetcomm_targets(name ${name})
  _hetcomm_targets(arg_DEPENDS ${arg_DEPENDS})
  if(NOT arg_SOURCES)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_DEPENDS})
    return()
  endif()
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE hetcomm_flags ${arg_DEPENDS})
  set_target_properties(${name} PROPERTIES
    UNITY_BUILD ${HETCOMM_UNITY}
    POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# hetcomm_run_path(<target> <path>)
#
# Where the loader looks for libraries of <target>, in the build tree and after the installation alike.
# A path of the build tree's own would end with empty entries, which CMake adds so that it can replace the
# path later. The loader takes each of these for the current directory, in which somebody else may have put
# a library.
function(hetcomm_run_path target path)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${path}" BUILD_WITH_INSTALL_RPATH ON)
endfunction()

# hetcomm_shared_library(<name> EXPORT_MAP <file> SOURCES <file>...
#                        [DEPENDS <target>...] [PUBLIC_DEPENDS <target>...])
#
# A library that is installed. It exports what EXPORT_MAP names and nothing else, and has no undefined
# symbol left. PUBLIC_DEPENDS are what its own public headers include.
function(hetcomm_shared_library name)
  _hetcomm_parse(hetcomm_shared_library "" "EXPORT_MAP" "SOURCES;DEPENDS;PUBLIC_DEPENDS" ${ARGN})
  _hetcomm_targets(arg_DEPENDS ${arg_DEPENDS})
  add_library(${name} SHARED ${arg_SOURCES})
  target_link_libraries(${name}
    PUBLIC ${arg_PUBLIC_DEPENDS}
    PRIVATE hetcomm_flags ${arg_DEPENDS})
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  cmake_path(ABSOLUTE_PATH arg_EXPORT_MAP BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_options(${name} PRIVATE LINKER:--version-script=${arg_EXPORT_MAP})
  # clang leaves the sanitizer's runtime to the executable.
  if(NOT (HETCOMM_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES "Clang"))
    target_link_options(${name} PRIVATE LINKER:-z,defs)
  endif()
  set_target_properties(${name} PROPERTIES
    LINK_DEPENDS ${arg_EXPORT_MAP}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  hetcomm_run_path(${name} "\$ORIGIN")
  add_dependencies(hetcomm_installed ${name})
endfunction()

# hetcomm_tool(<name> SOURCES <file>... [DEPENDS <target>...] [NO_INSTALL])
#
# An executable in bin/ that uses the public library only; installed unless NO_INSTALL.
function(hetcomm_tool name)
  _hetcomm_parse(hetcomm_tool "NO_INSTALL" "" "SOURCES;DEPENDS" ${ARGN})
  _hetcomm_targets(arg_DEPENDS ${arg_DEPENDS})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE hetcomm_flags hetcomm ${arg_DEPENDS})
  # A program in C gets the run-time of clang's sanitizers that the library in C++ needs, too.
  if(HETCOMM_SANITIZE)
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  file(RELATIVE_PATH lib_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set(path "\$ORIGIN/${lib_from_bin}")
  if(NOT lib_from_bin STREQUAL "../lib")
    list(APPEND path "\$ORIGIN/../lib")  # in the build tree
  endif()
  hetcomm_run_path(${name} "${path}")
  if(NOT arg_NO_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    add_dependencies(hetcomm_installed ${name})
  endif()
endfunction()

# hetcomm_plugin(<name> SOURCES <file>...)
#
# A shared library in bin/plugins/ that a process loads, and that sees the public headers only.
function(hetcomm_plugin name)
  _hetcomm_parse(hetcomm_plugin "" "" "SOURCES" ${ARGN})
  add_library(${name} MODULE ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE hetcomm_flags)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  set_target_properties(${name} PROPERTIES
    C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin/plugins)
endfunction()

# hetcomm_ctest(<name> COMMAND <word>... [TARGET <target>] [LABELS <label>...] [TIMEOUT <seconds>]
#               [PROCESSORS <n>] [RUN_SERIAL] [TIMED] [ENVIRONMENT <NAME=value>...]
#               [FIXTURES_SETUP <name>...] [FIXTURES_REQUIRED <name>...])
#
# One ctest entry that runs COMMAND. See README.md for the labels. TIMED adds the entry <name>_timing, which
# runs only the tests of COMMAND whose bound is time; the first entry leaves these out.
function(hetcomm_ctest name)
  _hetcomm_parse(hetcomm_ctest "RUN_SERIAL;TIMED" "TARGET;TIMEOUT;PROCESSORS"
    "COMMAND;LABELS;ENVIRONMENT;FIXTURES_SETUP;FIXTURES_REQUIRED" ${ARGN})
  if(arg_TIMED)
    hetcomm_ctest(${name}_timing TARGET ${arg_TARGET} COMMAND ${arg_COMMAND} LABELS timing
      TIMEOUT ${arg_TIMEOUT}
      ENVIRONMENT ${arg_ENVIRONMENT} HETCOMM_TEST_TIMING=1)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  math(EXPR timeout "${arg_TIMEOUT} * ${HETCOMM_TEST_TIMEOUT_SCALE}")
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()

  set(labels ${arg_LABELS})
  if("timing" IN_LIST labels)
    # Sanitizers change every duration.
    if(HETCOMM_SANITIZE)
      return()
    endif()
    set(arg_RUN_SERIAL TRUE)
  elseif(NOT "long" IN_LIST labels)
    list(APPEND labels quick)
    if(NOT "asan" IN_LIST labels)
      list(APPEND labels plain)
    endif()
  endif()
  file(RELATIVE_PATH below_tests ${PROJECT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  if(below_tests MATCHES "^([a-z0-9_]+)")
    list(APPEND labels ${CMAKE_MATCH_1})
  endif()
  list(REMOVE_DUPLICATES labels)

  if(NOT arg_TIMED AND NOT "timing" IN_LIST labels)
    list(APPEND arg_ENVIRONMENT HETCOMM_TEST_TIMING=never)
  endif()
  list(APPEND arg_ENVIRONMENT HETCOMM_TEST_TIMEOUT_SCALE=${HETCOMM_TEST_TIMEOUT_SCALE})
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES
    LABELS "${labels}"
    TIMEOUT ${timeout}
    # In a fresh build folder those that may take long start first, so that no processor idles at the
    # end; later ctest goes by what it has measured.
    COST ${arg_TIMEOUT}
    PROCESSORS ${arg_PROCESSORS}
    RUN_SERIAL ${arg_RUN_SERIAL}
    SKIP_RETURN_CODE 77
    ENVIRONMENT "${arg_ENVIRONMENT}"
    FIXTURES_SETUP "${arg_FIXTURES_SETUP}"
    FIXTURES_REQUIRED "${arg_FIXTURES_REQUIRED}")

  # 'tests-<label>' builds what the tests of a label need.
  foreach(label IN LISTS labels)
    if(NOT TARGET tests-${label})
      add_custom_target(tests-${label})
    endif()
    if(arg_TARGET)
      add_dependencies(tests-${label} ${arg_TARGET})
    endif()
  endforeach()
endfunction()

# hetcomm_test_part(<name> SOURCES <file>... [DEPENDS <target>...])
#
# Sources that several tests are linked with, compiled once: tests name them among their DEPENDS. Their
# objects are linked whether a test needs them or not, so that they may replace functions.
function(hetcomm_test_part name)
  _hetcomm_parse(hetcomm_test_part "" "" "SOURCES;DEPENDS" ${ARGN})
  _hetcomm_targets(name ${name})
  _hetcomm_targets(arg_DEPENDS ${arg_DEPENDS})
  add_library(${name} OBJECT ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE
    hetcomm_flags ${arg_DEPENDS} GTest::gtest hetcomm_test_flags hetcomm_quickly_compiled)
  set_target_properties(${name} PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
endfunction()

# hetcomm_test(<name> SOURCES <file>... [DEPENDS <target>...] [LABELS <label>...] [TIMEOUT <seconds>]
#              [ARGS <word>...] [ENVIRONMENT <NAME=value>...] [PROCESSORS <n>] [RUN_SERIAL] [TIMED]
#              [OWN_MAIN] [NO_ENTRY] [LIKE_LIBRARY])
#
# A GoogleTest binary in bin/tests/, and one ctest entry of the same name that runs all of it; it is
# shown as skipped where all its tests were. With
# NO_ENTRY, only the binary: hetcomm_ctest then adds as many entries as it takes. LIKE_LIBRARY compiles it
# with the flags of the library, for tests that compute much or test headers; see hetcomm_quickly_compiled.
function(hetcomm_test name)
  _hetcomm_parse(hetcomm_test "RUN_SERIAL;TIMED;OWN_MAIN;NO_ENTRY;LIKE_LIBRARY" "TIMEOUT;PROCESSORS"
    "SOURCES;DEPENDS;LABELS;ARGS;ENVIRONMENT" ${ARGN})
  _hetcomm_targets(arg_DEPENDS ${arg_DEPENDS})
  add_executable(${name} ${arg_SOURCES})
  set(main)
  if(NOT arg_OWN_MAIN)
    set(main hetcomm_test_main)
  endif()
  target_link_libraries(${name} PRIVATE
    hetcomm_flags ${main} hetcomm_test_support ${arg_DEPENDS} GTest::gmock GTest::gtest Threads::Threads
    hetcomm_test_flags)
  if(NOT arg_LIKE_LIBRARY)
    target_link_libraries(${name} PRIVATE hetcomm_quickly_compiled)
    if(HETCOMM_UNITY)
      target_precompile_headers(${name} REUSE_FROM hetcomm_test_watched_main)
    endif()
  endif()
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin/tests
    INTERPROCEDURAL_OPTIMIZATION OFF)
  if(arg_NO_ENTRY)
    return()
  endif()

  set(words)
  foreach(word RUN_SERIAL TIMED)
    if(arg_${word})
      list(APPEND words ${word})
    endif()
  endforeach()
  hetcomm_ctest(${name} TARGET ${name} ${words}
    COMMAND ${name} ${arg_ARGS}
    LABELS ${arg_LABELS}
    TIMEOUT ${arg_TIMEOUT}
    PROCESSORS ${arg_PROCESSORS}
    ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()
