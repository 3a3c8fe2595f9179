#include "transports/rdma/verbs.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "src/system/loaded_library.h"

namespace hetcomm::rdma {
namespace {

// Library functions that the wrappers below call. The table contains the wrappers instead.
struct Raw {
  int (*query_port)(ibv_context*, uint8_t, _compat_ibv_port_attr*);
  int (*query_gid_ex)(ibv_context*, uint32_t, uint32_t, ibv_gid_entry*, uint32_t, size_t);
};
Raw raw;

// --- functions that the header defines inline ------------------------------------------------

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* out) {
  verbs_context* extended = verbs_get_ctx_op(context, query_port);
  if (extended != nullptr) return extended->query_port(context, port, out, sizeof(*out));
  std::memset(out, 0, sizeof(*out));
  return raw.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(out));
}

int query_gid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* out) {
  return raw.query_gid_ex(context, port, index, out, 0, sizeof(*out));
}

int moderate_cq(ibv_cq* cq, uint16_t count, uint16_t period_us) {
  verbs_context* extended = verbs_get_ctx_op(cq->context, modify_cq);
  if (extended == nullptr) return EOPNOTSUPP;
  ibv_modify_cq_attr attributes{};
  attributes.attr_mask = IBV_CQ_ATTR_MODERATE;
  attributes.moderate = {count, period_us};
  return extended->modify_cq(cq, &attributes);
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* out) { return cq->context->ops.poll_cq(cq, count, out); }
int req_notify_cq(ibv_cq* cq, int solicited_only) {
  return cq->context->ops.req_notify_cq(cq, solicited_only);
}
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
  return srq->context->ops.post_srq_recv(srq, list, bad);
}
int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  return qp->context->ops.post_send(qp, list, bad);
}

// --- facts about a device that is not open -----------------------------------------------------

bool may_open(ibv_device* device) {
  const std::string file = fmt::format("/dev/infiniband/{}", device->dev_name);
  return access(file.c_str(), R_OK | W_OK) == 0;
}
std::string files_of(ibv_device* device) { return device->ibdev_path; }

// --- loading ---------------------------------------------------------------------------------

class Loader {
 public:
  Result<const Verbs*> load() {
    if (!library_.load("libibverbs.so.1")) {
      return Status(Code::kUnsupported,
                    fmt::format("rdma: libibverbs cannot be loaded ({}); install libibverbs1 and "
                                "ibverbs-providers",
                                dlerror()));
    }
    library_.need("ibv_get_device_list", table_.get_device_list);
    library_.need("ibv_free_device_list", table_.free_device_list);
    library_.need("ibv_get_device_name", table_.get_device_name);
    library_.need("ibv_open_device", table_.open_device);
    library_.need("ibv_close_device", table_.close_device);
    library_.need("ibv_query_device", table_.query_device);
    library_.need("ibv_query_port", raw.query_port);
    library_.need("_ibv_query_gid_ex", raw.query_gid_ex);
    library_.need("ibv_alloc_pd", table_.alloc_pd);
    library_.need("ibv_dealloc_pd", table_.dealloc_pd);
    library_.need("ibv_reg_mr", table_.reg_mr);
    library_.need("ibv_dereg_mr", table_.dereg_mr);
    library_.need("ibv_create_comp_channel", table_.create_comp_channel);
    library_.need("ibv_destroy_comp_channel", table_.destroy_comp_channel);
    library_.need("ibv_create_cq", table_.create_cq);
    library_.need("ibv_destroy_cq", table_.destroy_cq);
    library_.need("ibv_get_cq_event", table_.get_cq_event);
    library_.need("ibv_ack_cq_events", table_.ack_cq_events);
    library_.need("ibv_create_srq", table_.create_srq);
    library_.need("ibv_modify_srq", table_.modify_srq);
    library_.need("ibv_destroy_srq", table_.destroy_srq);
    library_.need("ibv_create_qp", table_.create_qp);
    library_.need("ibv_modify_qp", table_.modify_qp);
    library_.need("ibv_query_qp", table_.query_qp);
    library_.need("ibv_destroy_qp", table_.destroy_qp);
    library_.need("ibv_get_async_event", table_.get_async_event);
    library_.need("ibv_ack_async_event", table_.ack_async_event);
    library_.need("ibv_wc_status_str", table_.wc_status_str);
    library_.need("ibv_event_type_str", table_.event_type_str);
    library_.need("ibv_fork_init", table_.fork_init);
    if (!library_.missing().empty()) {
      return Status(Code::kUnsupported,
                    fmt::format("rdma: the installed libibverbs is too old: it has no {}",
                                library_.missing()));
    }
    library_.find("ibv_reg_dmabuf_mr", table_.reg_dmabuf_mr);
    table_.may_open = may_open;
    table_.files_of = files_of;
    table_.query_port = query_port;
    table_.query_gid = query_gid;
    table_.moderate_cq = moderate_cq;
    table_.poll_cq = poll_cq;
    table_.req_notify_cq = req_notify_cq;
    table_.post_srq_recv = post_srq_recv;
    table_.post_send = post_send;
    return const_cast<const Verbs*>(&table_);
  }

 private:
  Library library_;
  Verbs table_{};
};

}  // namespace

Result<const Verbs*> load_verbs() {
  static auto* const loader = new Loader();
  static const auto* const result = new Result<const Verbs*>(loader->load());
  return *result;
}

}  // namespace hetcomm::rdma
