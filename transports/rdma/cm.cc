#include "transports/rdma/cm.h"

#include <dlfcn.h>

#include <string>

#include <fmt/format.h>

namespace hetcomm::rdma {
namespace {

class Loader {
 public:
  Result<const Cm*> load() {
    library_ = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      return Status(Code::kUnsupported,
                    fmt::format("librdmacm cannot be loaded ({}); install librdmacm1", dlerror()));
    }
    find("rdma_create_event_channel", table_.create_event_channel);
    find("rdma_destroy_event_channel", table_.destroy_event_channel);
    find("rdma_get_cm_event", table_.get_cm_event);
    find("rdma_ack_cm_event", table_.ack_cm_event);
    find("rdma_event_str", table_.event_str);
    find("rdma_create_id", table_.create_id);
    find("rdma_destroy_id", table_.destroy_id);
    find("rdma_bind_addr", table_.bind_addr);
    find("rdma_listen", table_.listen);
    find("rdma_resolve_addr", table_.resolve_addr);
    find("rdma_resolve_route", table_.resolve_route);
    find("rdma_connect", table_.connect);
    find("rdma_accept", table_.accept);
    find("rdma_reject", table_.reject);
    find("rdma_init_qp_attr", table_.init_qp_attr);
    find("rdma_establish", table_.establish);
    if (!missing_.empty()) {
      return Status(Code::kUnsupported,
                    fmt::format("the installed librdmacm is too old: it has no {}", missing_));
    }
    return const_cast<const Cm*>(&table_);
  }

 private:
  template <typename Function>
  void find(const char* name, Function& out) {
    out = reinterpret_cast<Function>(dlsym(library_, name));
    if (out == nullptr) missing_ += missing_.empty() ? name : std::string(", ") + name;
  }

  void* library_ = nullptr;
  Cm table_{};
  std::string missing_;
};

}  // namespace

Result<const Cm*> load_cm() {
  // Never unloaded, as libibverbs.
  static auto* const loader = new Loader();
  static const auto* const result = new Result<const Cm*>(loader->load());
  return *result;
}

}  // namespace hetcomm::rdma
