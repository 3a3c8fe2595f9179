if(HETCOMM_HAVE_VERBS_H)
  foreach(name faults nic open queue_pair)
    hetcomm_test(rdma_${name}_test
      SOURCES rdma_${name}_test.cc
      DEPENDS test_fake_verbs transport_rdma net base system fmt::fmt
      LABELS asan tsan
      TIMEOUT 120)
  endforeach()
  if(HETCOMM_HAVE_RDMA_CMA_H)
    # What needs a device skips without one; it also runs in the virtual machine.
    hetcomm_test(rdma_cm_test
      SOURCES rdma_cm_test.cc
      DEPENDS test_fake_verbs test_fake_cm transport_rdma net base system fmt::fmt
      LABELS asan tsan
      TIMEOUT 120)
    hetcomm_rdma_test(cm COMMAND rdma_cm_test --gtest_filter=RdmaCmDevice.* --gtest_brief=1)
  endif()
  # Replaces the operators new and delete of its program, so it has one of its own.
  hetcomm_test(rdma_out_of_memory_test
    SOURCES rdma_out_of_memory_test.cc ../support/counting_allocator.cc
    DEPENDS test_fake_verbs transport_rdma net base system fmt::fmt
    LABELS asan
    TIMEOUT 120)
  hetcomm_test(rdma_device_memory_test TIMED
    SOURCES rdma_device_memory_test.cc
    DEPENDS test_fake_verbs transport_rdma device_api device_host device_plugin device_sim net base system fmt::fmt
    LABELS asan tsan
    TIMEOUT 120)
  hetcomm_test(rdma_flow_test
    SOURCES rdma_flow_test.cc
    DEPENDS transport_rdma net base system
    LABELS asan)
  # What needs events of memory skips where the kernel does not allow them.
  hetcomm_test(rdma_memory_region_test
    SOURCES rdma_memory_region_test.cc
    DEPENDS test_fake_verbs transport_rdma net base system fmt::fmt
    LABELS asan)
endif()
