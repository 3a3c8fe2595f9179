# Compiler and linker settings of everything in this tree.
#
# hetcomm_flags is linked (PRIVATE) by every target that the functions in HetcommTargets.cmake make.
# It is never exported: an installed hetcomm puts no flag on its users.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# A misspelt target in DEPENDS is an error when CMake runs, not a missing -l when the linker does.
set(CMAKE_LINK_LIBRARIES_ONLY_TARGETS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug or Release" FORCE)
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
# A build folder can be moved or copied to another machine as a whole.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

find_program(HETCOMM_CCACHE ccache)
mark_as_advanced(HETCOMM_CCACHE)
if(HETCOMM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${HETCOMM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HETCOMM_CCACHE})
endif()

add_library(hetcomm_flags INTERFACE)
target_include_directories(hetcomm_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)

# --- warnings --------------------------------------------------------------------------------

set(warnings
  -Wall
  -Wextra
  -Wpedantic
  -Wshadow
  -Wconversion
  -Wsign-conversion
  -Wdouble-promotion
  -Wcast-align
  -Wcast-qual
  -Wformat=2
  -Wundef
  -Wunused
  -Wimplicit-fallthrough
  # Designated initializers leave fields out on purpose.
  -Wno-missing-field-initializers)
set(cxx_warnings -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi -Wsuggest-override)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND warnings
    -Wduplicated-cond
    -Wlogical-op
    # ThreadSanitizer does not follow fences; where one stands beside atomics it is meant.
    -Wno-tsan)
  # clang would complain about C headers as well; gcc leaves extern "C" alone.
  list(APPEND cxx_warnings -Wold-style-cast)
else()
  # A lock discipline that the compiler can check is never optional.
  list(APPEND cxx_warnings -Wthread-safety -Werror=thread-safety)
endif()
if(HETCOMM_WARNINGS_AS_ERRORS)
  list(PREPEND warnings -Werror)
endif()
target_compile_options(hetcomm_flags INTERFACE ${warnings} $<$<COMPILE_LANGUAGE:CXX>:${cxx_warnings}>)

# --- code generation -------------------------------------------------------------------------

# Debug is optimised: tests move real data and have time limits. clang inlines from -O2 on, which makes
# tests with sanitizers a third faster and takes no longer to compile. Debug information names functions
# and lines, not variables, which takes a fifth off the time to compile.
option(HETCOMM_DEBUG_VARIABLES "Let debuggers show variables in debug builds" OFF)
set(debug_level -g1)
if(HETCOMM_DEBUG_VARIABLES)
  set(debug_level -g)
endif()
set(debug_optimisation -O1)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(debug_optimisation -O2)
endif()
set(CMAKE_C_FLAGS_DEBUG "${debug_optimisation} ${debug_level}" CACHE STRING "" FORCE)
set(CMAKE_CXX_FLAGS_DEBUG "${debug_optimisation} ${debug_level}" CACHE STRING "" FORCE)
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG" CACHE STRING "" FORCE)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG" CACHE STRING "" FORCE)

# No -march: one binary runs on every machine of its architecture.
target_compile_options(hetcomm_flags INTERFACE
  $<$<NOT:$<CONFIG:Release>>:-fno-omit-frame-pointer>
  -ffunction-sections
  -fdata-sections
  # Some compilers predefine _FORTIFY_SOURCE, hence the -U first.
  "$<$<CONFIG:Release>:-fno-plt;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
target_compile_definitions(hetcomm_flags INTERFACE _GNU_SOURCE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
target_link_options(hetcomm_flags INTERFACE LINKER:--gc-sections LINKER:-z,relro LINKER:-z,now)

# The path of one message crosses folders, and with them libraries: let the linker inline it.
option(HETCOMM_LTO "Optimise across modules in release builds" ON)
if(HETCOMM_LTO AND CMAKE_BUILD_TYPE STREQUAL "Release" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  include(CheckIPOSupported)
  check_ipo_supported(RESULT ipo_works LANGUAGES C CXX)
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ${ipo_works})
endif()

# Most of the time to compile goes into headers. So they are read once for several sources of a module, and
# once for all tests; names without linkage then have to differ within a module. Developers turn it off:
# the change of a source then compiles that source alone, and a missing include is found.
option(HETCOMM_UNITY "Compile the sources of a module together, and headers of tests once" ON)
if(HETCOMM_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc takes a source that another one includes for a header.
  target_compile_options(hetcomm_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
if(HETCOMM_UNITY AND HETCOMM_BUILD_TESTS)
  # ccache knows the content of precompiled headers, and takes it for the same whenever it was compiled.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(hetcomm_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(hetcomm_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
  if(HETCOMM_CCACHE AND CMAKE_CXX_COMPILER_LAUNCHER STREQUAL HETCOMM_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${HETCOMM_CCACHE})
  endif()
endif()

# --- sanitizers ------------------------------------------------------------------------------

if(HETCOMM_SANITIZE)
  set(sanitizer_flags -fsanitize=${HETCOMM_SANITIZE})
  target_compile_options(hetcomm_flags INTERFACE ${sanitizer_flags} -fno-sanitize-recover=all)
  target_link_options(hetcomm_flags INTERFACE ${sanitizer_flags})
  # clang looks at an object's type through a pipe, and errs where a test uses up all descriptors.
  target_compile_options(hetcomm_flags INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=vptr>)
  # Compilers name their sanitizers differently.
  if(HETCOMM_SANITIZE MATCHES "address")
    target_compile_definitions(hetcomm_flags INTERFACE HETCOMM_ASAN)
  elseif(HETCOMM_SANITIZE MATCHES "thread")
    target_compile_definitions(hetcomm_flags INTERFACE HETCOMM_TSAN)
  endif()
endif()

# These flags come after hetcomm_flags for tests' own sources. A test drives single parts from its only
# thread, and has no baton to hold.
add_library(hetcomm_test_flags INTERFACE)
target_compile_options(hetcomm_test_flags INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang>:-Wno-thread-safety-analysis>)

# Most of the time to build goes into tests' own sources. So those that are not LIKE_LIBRARY are compiled
# with these flags too: without optimisation, and without checks for undefined behaviour. gcc's flow
# analysis errs there. With ThreadSanitizer tests would take too long.
add_library(hetcomm_quickly_compiled INTERFACE)
if(NOT HETCOMM_SANITIZE MATCHES "thread")
  target_compile_options(hetcomm_quickly_compiled INTERFACE
    $<$<CONFIG:Debug>:-O0> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
if(HETCOMM_SANITIZE MATCHES "address")
  target_compile_options(hetcomm_quickly_compiled INTERFACE -fno-sanitize=undefined)
endif()
