hetcomm_test(net_handshake_test
  SOURCES net_handshake_test.cc
  DEPENDS base system net fmt::fmt
  LABELS asan tsan
  TIMEOUT 30)
hetcomm_test(net_socket_test
  SOURCES net_socket_test.cc
  DEPENDS base system net fmt::fmt
  LABELS asan tsan
  TIMEOUT 60)
hetcomm_test(net_address_test
  SOURCES net_address_test.cc
  DEPENDS base system net fmt::fmt
  LABELS asan
  TIMEOUT 30)
hetcomm_test(net_tls_test
  SOURCES net_tls_test.cc
  DEPENDS base system net fmt::fmt OpenSSL::SSL OpenSSL::Crypto
  LABELS asan tsan
  TIMEOUT 60)
hetcomm_test(net_listener_test
  SOURCES net_listener_test.cc
  DEPENDS base system net fmt::fmt
  LABELS asan
  TIMEOUT 90)
