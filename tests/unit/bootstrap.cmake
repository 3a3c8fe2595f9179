hetcomm_test(bootstrap_store_test
  SOURCES bootstrap_store_test.cc
  DEPENDS base system net bootstrap fmt::fmt OpenSSL::Crypto
  LABELS asan tsan
  TIMEOUT 60)
hetcomm_test(bootstrap_environment_test
  SOURCES bootstrap_environment_test.cc
  DEPENDS base system net bootstrap fmt::fmt
  LABELS asan
  TIMEOUT 60)
hetcomm_test(bootstrap_callbacks_test
  SOURCES bootstrap_callbacks_test.cc
  DEPENDS base system net bootstrap fmt::fmt
  LABELS asan tsan
  TIMEOUT 60)
hetcomm_test(bootstrap_groups_test
  SOURCES bootstrap_groups_test.cc
  DEPENDS base system net bootstrap fmt::fmt
  LABELS asan tsan
  TIMEOUT 60)
hetcomm_test(bootstrap_digest_test
  SOURCES bootstrap_digest_test.cc
  DEPENDS base system net bootstrap fmt::fmt OpenSSL::Crypto
  LABELS asan tsan
  TIMEOUT 180)
