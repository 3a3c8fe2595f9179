hetcomm_test(self_transport_test
  SOURCES self_transport_test.cc
  DEPENDS transport_self net base system fmt::fmt
  LABELS asan
  TIMEOUT 30)
