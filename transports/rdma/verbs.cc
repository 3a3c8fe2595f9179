#include "transports/rdma/verbs.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>
#include <string>

#include <fmt/format.h>

namespace hetcomm::rdma {
namespace {

// Entries of the library that have no place in the table as they are.
struct Raw {
  int (*query_port)(ibv_context*, uint8_t, _compat_ibv_port_attr*);
  int (*query_gid_ex)(ibv_context*, uint32_t, uint32_t, ibv_gid_entry*, uint32_t, size_t);
};
Raw raw;

// --- what the header defines inline ----------------------------------------------------------

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

// --- loading ---------------------------------------------------------------------------------

class Loader {
 public:
  Result<const Verbs*> load() {
    library_ = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      return Status(Code::kUnsupported,
                    fmt::format("rdma: libibverbs cannot be loaded ({}); install libibverbs1 and "
                                "ibverbs-providers",
                                dlerror()));
    }
    find("ibv_get_device_list", table_.get_device_list);
    find("ibv_free_device_list", table_.free_device_list);
    find("ibv_get_device_name", table_.get_device_name);
    find("ibv_open_device", table_.open_device);
    find("ibv_close_device", table_.close_device);
    find("ibv_query_device", table_.query_device);
    find("ibv_query_port", raw.query_port);
    find("_ibv_query_gid_ex", raw.query_gid_ex);
    find("ibv_alloc_pd", table_.alloc_pd);
    find("ibv_dealloc_pd", table_.dealloc_pd);
    find("ibv_reg_mr", table_.reg_mr);
    find("ibv_dereg_mr", table_.dereg_mr);
    find("ibv_create_comp_channel", table_.create_comp_channel);
    find("ibv_destroy_comp_channel", table_.destroy_comp_channel);
    find("ibv_create_cq", table_.create_cq);
    find("ibv_destroy_cq", table_.destroy_cq);
    find("ibv_get_cq_event", table_.get_cq_event);
    find("ibv_ack_cq_events", table_.ack_cq_events);
    find("ibv_create_srq", table_.create_srq);
    find("ibv_modify_srq", table_.modify_srq);
    find("ibv_destroy_srq", table_.destroy_srq);
    find("ibv_create_qp", table_.create_qp);
    find("ibv_modify_qp", table_.modify_qp);
    find("ibv_query_qp", table_.query_qp);
    find("ibv_destroy_qp", table_.destroy_qp);
    find("ibv_get_async_event", table_.get_async_event);
    find("ibv_ack_async_event", table_.ack_async_event);
    find("ibv_wc_status_str", table_.wc_status_str);
    find("ibv_event_type_str", table_.event_type_str);
    find("ibv_fork_init", table_.fork_init);
    if (!missing_.empty()) {
      return Status(
          Code::kUnsupported,
          fmt::format("rdma: the installed libibverbs is too old: it has no {}", missing_));
    }
    table_.reg_dmabuf_mr =
        reinterpret_cast<decltype(table_.reg_dmabuf_mr)>(dlsym(library_, "ibv_reg_dmabuf_mr"));
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
  template <typename Function>
  void find(const char* name, Function& out) {
    out = reinterpret_cast<Function>(dlsym(library_, name));
    if (out == nullptr) missing_ += missing_.empty() ? name : std::string(", ") + name;
  }

  void* library_ = nullptr;
  Verbs table_{};
  std::string missing_;
};

}  // namespace

Result<const Verbs*> load_verbs() {
  // Never unloaded: providers keep state of the process, and a context may outlive whoever asked.
  static auto* const loader = new Loader();
  static const auto* const result = new Result<const Verbs*>(loader->load());
  return *result;
}

}  // namespace hetcomm::rdma
