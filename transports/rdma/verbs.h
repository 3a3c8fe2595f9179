// Verbs is a table of all libibverbs functions that this transport calls. It is loaded at run time,
// or faked in tests. Functions that the header defines inline are included, so that nothing
// bypasses the table. Results and errno are as documented for the ibv_ functions of the same names.
// query_gid stands for ibv_query_gid_ex, and moderate_cq for ibv_modify_cq.
#pragma once

#include <infiniband/verbs.h>
#include <string>

#include "src/base/status.h"

namespace hetcomm::rdma {

struct Verbs {
  ibv_device** (*get_device_list)(int* count);
  void (*free_device_list)(ibv_device** list);
  const char* (*get_device_name)(ibv_device* device);
  // These two functions do not open the device. may_open() returns whether the permissions of the
  // device's file let this process open it. files_of() returns the device's folder below /sys;
  // empty if unknown.
  bool (*may_open)(ibv_device* device);
  std::string (*files_of)(ibv_device* device);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);
  int (*query_device)(ibv_context* context, ibv_device_attr* out);
  int (*query_port)(ibv_context* context, uint8_t port, ibv_port_attr* out);
  int (*query_gid)(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* out);

  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* pd);
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, size_t length, int access);
  // Null if the library lacks the function.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                           int access);
  int (*dereg_mr)(ibv_mr* mr);

  ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
  int (*destroy_comp_channel)(ibv_comp_channel* channel);
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                       int vector);
  int (*destroy_cq)(ibv_cq* cq);
  int (*moderate_cq)(ibv_cq* cq, uint16_t count, uint16_t period_us);
  int (*poll_cq)(ibv_cq* cq, int count, ibv_wc* out);
  int (*req_notify_cq)(ibv_cq* cq, int solicited_only);
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** user);
  void (*ack_cq_events)(ibv_cq* cq, unsigned count);

  ibv_srq* (*create_srq)(ibv_pd* pd, ibv_srq_init_attr* attributes);
  int (*modify_srq)(ibv_srq* srq, ibv_srq_attr* attributes, int mask);
  int (*destroy_srq)(ibv_srq* srq);
  int (*post_srq_recv)(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad);

  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes);
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
  int (*query_qp)(ibv_qp* qp, ibv_qp_attr* out, int mask, ibv_qp_init_attr* initial);
  int (*destroy_qp)(ibv_qp* qp);
  int (*post_send)(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad);

  int (*get_async_event)(ibv_context* context, ibv_async_event* out);
  void (*ack_async_event)(ibv_async_event* event);

  const char* (*wc_status_str)(ibv_wc_status status);
  const char* (*event_type_str)(ibv_event_type event);

  int (*fork_init)();
};

// Returns the installed library's table, or the reason why there is none. The library is loaded
// once per process and never unloaded.
Result<const Verbs*> load_verbs();

}  // namespace hetcomm::rdma
