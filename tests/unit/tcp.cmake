foreach(name transport break)
  hetcomm_test(tcp_${name}_test
    SOURCES tcp_${name}_test.cc
    DEPENDS transport_tcp net base system fmt::fmt
    LABELS asan tsan
    PROCESSORS 2
    TIMEOUT 120)
endforeach()

hetcomm_test(tcp_path_test
  SOURCES tcp_path_test.cc
  DEPENDS transport_tcp net base system fmt::fmt OpenSSL::Crypto
  LABELS asan tsan
  TIMEOUT 120)

# Not a test: prints latency and bandwidth beside those of plain sockets.
hetcomm_test(tcp_speed NO_ENTRY OWN_MAIN
  SOURCES tcp_speed.cc
  DEPENDS transport_tcp net base system fmt::fmt)
hetcomm_test(tcp_tls_test
  SOURCES tcp_tls_test.cc
  DEPENDS transport_tcp net base system fmt::fmt OpenSSL::Crypto
  LABELS asan tsan
  PROCESSORS 2
  TIMEOUT 120)
