foreach(name cost layout plan)
  hetcomm_test(reshard_${name}_test
    SOURCES reshard_${name}_test.cc
    DEPENDS reshard topology base fmt::fmt
    LABELS asan)
endforeach()
