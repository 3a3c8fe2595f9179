foreach(name memory connect hostile bulk wake)
  hetcomm_test(shm_${name}_test
    SOURCES shm_${name}_test.cc
    DEPENDS transport_shm net base system fmt::fmt
    LABELS asan tsan
    PROCESSORS 2
    TIMEOUT 120)
endforeach()

# Not a test: prints latency and bandwidth beside the machine's floors.
hetcomm_test(shm_speed NO_ENTRY OWN_MAIN
  SOURCES shm_speed.cc
  DEPENDS transport_shm net base system fmt::fmt)
