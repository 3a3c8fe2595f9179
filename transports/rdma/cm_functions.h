// Cm is a table of all librdmacm functions that this transport calls. It is loaded at run time, or
// faked in tests. Results and errno are as documented for the rdma_ functions of the same names.
// The table exists only if the headers were found at build time.
#pragma once

#include <rdma/rdma_cma.h>

#include "src/base/status.h"

namespace hetcomm::rdma {

struct Cm {
  rdma_event_channel* (*create_event_channel)();
  void (*destroy_event_channel)(rdma_event_channel* channel);
  int (*get_cm_event)(rdma_event_channel* channel, rdma_cm_event** out);
  int (*ack_cm_event)(rdma_cm_event* event);
  const char* (*event_str)(rdma_cm_event_type type);

  int (*create_id)(rdma_event_channel* channel, rdma_cm_id** out, void* context,
                   rdma_port_space space);
  int (*destroy_id)(rdma_cm_id* id);
  int (*bind_addr)(rdma_cm_id* id, sockaddr* address);
  int (*listen)(rdma_cm_id* id, int backlog);
  int (*resolve_addr)(rdma_cm_id* id, sockaddr* from, sockaddr* to, int timeout_ms);
  int (*resolve_route)(rdma_cm_id* id, int timeout_ms);
  int (*connect)(rdma_cm_id* id, rdma_conn_param* parameters);
  int (*accept)(rdma_cm_id* id, rdma_conn_param* parameters);
  int (*reject)(rdma_cm_id* id, const void* data, uint8_t data_bytes);

  // These functions serve queue pairs that are created outside of librdmacm.
  int (*init_qp_attr)(rdma_cm_id* id, ibv_qp_attr* out, int* mask);
  int (*establish)(rdma_cm_id* id);
};

// Returns the installed library's table, or the reason why there is none. The library is loaded
// once per process and never unloaded.
Result<const Cm*> load_cm();

}  // namespace hetcomm::rdma
