#include "transports/rdma/cm_functions.h"

#include <fmt/core.h>

#include "src/system/loaded_library.h"

namespace hetcomm::rdma {
namespace {

class Loader {
 public:
  Result<const Cm*> load() {
    if (!library_.load("librdmacm.so.1")) {
      return Status(Code::kUnsupported,
                    fmt::format("librdmacm cannot be loaded ({}); install librdmacm1", dlerror()));
    }
    library_.need("rdma_create_event_channel", table_.create_event_channel);
    library_.need("rdma_destroy_event_channel", table_.destroy_event_channel);
    library_.need("rdma_get_cm_event", table_.get_cm_event);
    library_.need("rdma_ack_cm_event", table_.ack_cm_event);
    library_.need("rdma_event_str", table_.event_str);
    library_.need("rdma_create_id", table_.create_id);
    library_.need("rdma_destroy_id", table_.destroy_id);
    library_.need("rdma_bind_addr", table_.bind_addr);
    library_.need("rdma_listen", table_.listen);
    library_.need("rdma_resolve_addr", table_.resolve_addr);
    library_.need("rdma_resolve_route", table_.resolve_route);
    library_.need("rdma_connect", table_.connect);
    library_.need("rdma_accept", table_.accept);
    library_.need("rdma_reject", table_.reject);
    library_.need("rdma_init_qp_attr", table_.init_qp_attr);
    library_.need("rdma_establish", table_.establish);
    if (!library_.missing().empty()) {
      return Status(
          Code::kUnsupported,
          fmt::format("the installed librdmacm is too old: it has no {}", library_.missing()));
    }
    return const_cast<const Cm*>(&table_);
  }

 private:
  Library library_;
  Cm table_{};
};

}  // namespace

Result<const Cm*> load_cm() {
  static auto* const loader = new Loader();
  static const auto* const result = new Result<const Cm*>(loader->load());
  return *result;
}

}  // namespace hetcomm::rdma
