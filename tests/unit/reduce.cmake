hetcomm_test(reduce_test
  SOURCES reduce_combine_test.cc reduce_convert_test.cc
  DEPENDS reduce base system hwy::hwy
  LABELS asan)

# Not a test: prints the speed of reductions beside that of copying as many bytes.
hetcomm_test(reduce_speed NO_ENTRY OWN_MAIN
  SOURCES reduce_speed.cc
  DEPENDS reduce base system)
