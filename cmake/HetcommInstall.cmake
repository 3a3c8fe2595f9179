# What `cmake --install` puts into a prefix: headers, libraries, pkg-config files, a CMake package.
# Nothing of it contains the prefix, so the tree can be moved afterwards.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hetcomm)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/hetcomm ${PROJECT_SOURCE_DIR}/include/hetcomm_plan
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN mpi.h EXCLUDE)
set_target_properties(hetcomm_plan PROPERTIES EXPORT_NAME plan)
set_target_properties(hetcomm_pipeline PROPERTIES EXPORT_NAME pipeline)
install(TARGETS hetcomm hetcomm_plan hetcomm_pipeline EXPORT hetcommTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT hetcommTargets NAMESPACE hetcomm:: DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/pipeline/plan/plan.schema.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/hetcomm RENAME pipeline_plan.schema.json)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/hetcomm)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hetcommConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/hetcommConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# While the major version is 0, every minor version may change the ABI.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/hetcommConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/package/hetcommConfig.cmake
  ${PROJECT_BINARY_DIR}/package/hetcommConfigVersion.cmake
  DESTINATION ${package_dir})

file(RELATIVE_PATH prefix_from_pkgconfig /${pkgconfig_dir} /)
string(REGEX REPLACE "/$" "" prefix_from_pkgconfig "${prefix_from_pkgconfig}")
foreach(library hetcomm hetcomm_plan hetcomm_pipeline)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${library}.pc.in
    ${PROJECT_BINARY_DIR}/package/${library}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/${library}.pc DESTINATION ${pkgconfig_dir})
endforeach()

if(TARGET hetcomm_mpi)
  set_target_properties(hetcomm_mpi PROPERTIES EXPORT_NAME mpi)
  install(FILES ${PROJECT_SOURCE_DIR}/include/hetcomm/mpi.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hetcomm)
  install(TARGETS hetcomm_mpi EXPORT hetcommMpiTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT hetcommMpiTargets NAMESPACE hetcomm:: DESTINATION ${package_dir})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/hetcomm_mpi.pc.in
    ${PROJECT_BINARY_DIR}/package/hetcomm_mpi.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/hetcomm_mpi.pc DESTINATION ${pkgconfig_dir})
endif()
