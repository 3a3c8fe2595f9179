foreach(name cost draw layout plan schedule)
  hetcomm_test(reshard_${name}_test
    SOURCES reshard_${name}_test.cc
    DEPENDS reshard topology base fmt::fmt nlohmann_json::nlohmann_json
    LABELS asan)
endforeach()

hetcomm_test(reshard_speed NO_ENTRY OWN_MAIN
  SOURCES reshard_speed.cc
  DEPENDS reshard topology base fmt::fmt)
