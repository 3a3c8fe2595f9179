hetcomm_test(core_staging_test
  SOURCES core_staging_test.cc
  DEPENDS core device_sim base fmt::fmt
  LABELS asan
  TIMEOUT 30)
