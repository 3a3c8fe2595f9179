hetcomm_test(base_test TIMED LIKE_LIBRARY
  SOURCES
    base_biased_lock_test.cc
    base_bytes_test.cc
    base_clock_test.cc
    base_config_test.cc
    base_copy_test.cc
    base_free_index_test.cc
    base_log_test.cc
    base_memory_file_test.cc
    base_numa_memory_test.cc
    base_packed_test.cc
    base_processors_test.cc
    base_interface_list_test.cc
    base_extent_cursor_test.cc
    base_small_file_test.cc
    base_span_test.cc
    base_status_test.cc
    base_text_test.cc
    base_yielder_test.cc
  DEPENDS base system fmt::fmt
  LABELS asan tsan)
