hetcomm_test(core_stand_ins_test
  SOURCES core_stand_ins_test.cc
  DEPENDS core device_sim device_host base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_waiting_calls_test
  SOURCES core_waiting_calls_test.cc
  DEPENDS core device_sim device_host base system
  LABELS asan tsan
  TIMEOUT 60)
hetcomm_test(core_staging_test
  SOURCES core_staging_test.cc
  DEPENDS core device_host device_sim base system fmt::fmt
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_device_sums_test
  SOURCES core_device_sums_test.cc
  DEPENDS core device_sim reduce base system fmt::fmt
  LABELS asan
  TIMEOUT 60)
hetcomm_test(core_collectives_test LIKE_LIBRARY
  SOURCES core_collectives_test.cc
  DEPENDS core reduce base system fmt::fmt
  LABELS asan
  TIMEOUT 150)
hetcomm_test(core_shared_arena_test
  SOURCES core_shared_arena_test.cc
  DEPENDS core base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_channel_table_test
  SOURCES core_channel_table_test.cc
  DEPENDS core base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_reshard_board_test
  SOURCES core_reshard_board_test.cc
  DEPENDS core base system fmt::fmt
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_job_offer_test
  SOURCES core_job_offer_test.cc
  DEPENDS core net base system fmt::fmt
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_job_digest_test
  SOURCES core_job_digest_test.cc
  DEPENDS core bootstrap net base system fmt::fmt
  LABELS asan
  TIMEOUT 60)
hetcomm_test(core_host_devices_test
  SOURCES core_host_devices_test.cc
  DEPENDS core bootstrap net base system fmt::fmt
  LABELS asan
  TIMEOUT 60)
hetcomm_test(core_introductions_test
  SOURCES core_introductions_test.cc ../support/counting_allocator.cc
  DEPENDS core net base system fmt::fmt
  TIMEOUT 30)
hetcomm_test(core_link_agreement_test
  SOURCES core_link_agreement_test.cc
  DEPENDS core topology_links topology_machine topology_read present net base system fmt::fmt
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_peer_directory_test
  SOURCES core_peer_directory_test.cc
  DEPENDS core topology_links topology_machine topology_read present base system fmt::fmt
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_pairing_report_test
  SOURCES core_pairing_report_test.cc
  DEPENDS core topology_links topology_machine topology_read present base system fmt::fmt nlohmann_json::nlohmann_json
  LABELS asan
  TIMEOUT 30
  ENVIRONMENT HETCOMM_TEST_MACHINES=${PROJECT_SOURCE_DIR}/tests/machines)
hetcomm_test(core_reason_test
  SOURCES core_reason_test.cc
  DEPENDS core base system fmt::fmt
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_blocked_paths_test
  SOURCES core_blocked_paths_test.cc
  DEPENDS core base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_rail_needs_test
  SOURCES core_rail_needs_test.cc
  DEPENDS core topology_links topology_machine topology_read present base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_operation_pool_test
  SOURCES core_operation_pool_test.cc
  DEPENDS core base system fmt::fmt
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_bulk_chooser_test
  SOURCES core_bulk_chooser_test.cc
  DEPENDS core
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_host_blocks_test
  SOURCES core_host_blocks_test.cc ../support/counting_allocator.cc
  DEPENDS core base system
  TIMEOUT 30)
hetcomm_test(core_link_share_test
  SOURCES core_link_share_test.cc
  DEPENDS core base system
  LABELS asan
  TIMEOUT 300)
hetcomm_test(core_pacer_test
  SOURCES core_pacer_test.cc
  DEPENDS core base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_far_ways_test
  SOURCES core_far_ways_test.cc
  DEPENDS core
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_pull_chooser_test
  SOURCES core_pull_chooser_test.cc
  DEPENDS core
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_transport_choice_test
  SOURCES core_transport_choice_test.cc
  DEPENDS core transport_self transport_shm transport_tcp
  TIMEOUT 30)
hetcomm_test(core_match_test
  SOURCES core_match_test.cc
  DEPENDS core base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_retention_test
  SOURCES core_retention_test.cc
  DEPENDS core base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_growth_test
  SOURCES core_growth_test.cc ../support/counting_allocator.cc
  DEPENDS core base system
  TIMEOUT 30)
hetcomm_test(core_track_ends_test
  SOURCES core_track_ends_test.cc
  DEPENDS core base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_tables_test
  SOURCES core_tables_test.cc
  DEPENDS core device_host base system
  LABELS asan
  TIMEOUT 30)
hetcomm_test(core_registration_test
  SOURCES core_registration_test.cc
  DEPENDS core transport_self device_host bootstrap net base system fmt::fmt
  LABELS asan
  TIMEOUT 60)
hetcomm_test(core_engine_test
  SOURCES core_engine_test.cc
  DEPENDS core net base system fmt::fmt
  LABELS asan tsan
  TIMEOUT 60)
