# Which Python the package is built for, and which torch it imports.
#
# HETCOMM_BUILD_PYTHON: ON, OFF, or AUTO: where nanobind and Python's headers are there.
# Python_EXECUTABLE: the interpreter; the one of build/venv (tools/install-deps --torch) where there is.
# Sets HETCOMM_PYTHON_FOUND, HETCOMM_TORCH_FOUND, HETCOMM_TORCH_DIR, _MAJOR, _MINOR, _CXX11_ABI.

set(HETCOMM_BUILD_PYTHON AUTO CACHE STRING "Build the Python package: ON, OFF or AUTO")
set(HETCOMM_PYTHON_FOUND OFF)
set(HETCOMM_TORCH_FOUND OFF)
# A sanitizer's runtime would have to be in the interpreter.
if(NOT HETCOMM_BUILD_PYTHON OR HETCOMM_SANITIZE)
  return()
endif()

set(venv_python ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
if(NOT Python_EXECUTABLE AND EXISTS ${venv_python})
  set(Python_EXECUTABLE ${venv_python})
endif()
find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
if(Python_FOUND)
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(nanobind CONFIG QUIET)
endif()
if(Python_FOUND AND nanobind_FOUND)
  set(HETCOMM_PYTHON_FOUND ON)
elseif(HETCOMM_BUILD_PYTHON STREQUAL "AUTO")
  message(STATUS "hetcomm: no Python headers or no nanobind; the Python package is left out (make torch build has both)")
  return()
else()
  message(FATAL_ERROR "the Python package needs Python 3.9 with headers, and nanobind")
endif()

# pip builds with a PYTHONPATH of its own, which hides the environment's torch.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH --unset=PYTHONNOUSERSITE
    ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/python/find_torch.py
  OUTPUT_VARIABLE torch_found)
if(torch_found)
  list(GET torch_found 0 HETCOMM_TORCH_DIR)
  list(GET torch_found 1 HETCOMM_TORCH_MAJOR)
  list(GET torch_found 2 HETCOMM_TORCH_MINOR)
  list(SUBLIST torch_found 3 -1 HETCOMM_TORCH_DEFINITIONS)
  # torch's wheels bring it; distributions have it in a package of its own.
  find_path(HETCOMM_PYBIND11_DIR pybind11/pybind11.h HINTS ${HETCOMM_TORCH_DIR}/include)
  mark_as_advanced(HETCOMM_PYBIND11_DIR)
  set(torch_version "torch ${HETCOMM_TORCH_MAJOR}.${HETCOMM_TORCH_MINOR} in ${HETCOMM_TORCH_DIR}")
  if(HETCOMM_PYBIND11_DIR)
    set(HETCOMM_TORCH_FOUND ON)
    message(STATUS "hetcomm: ${torch_version}")
  else()
    message(STATUS "hetcomm: ${torch_version}, but no pybind11; the process group is left out")
  endif()
else()
  message(STATUS "hetcomm: no torch; the process group is left out")
endif()
