// The machine and the NICs of its accelerators.
#include "src/capi/guard.h"
#include "src/capi/output.h"
#include "topology/affinity_json.h"
#include "topology/draw.h"

namespace {

using hetcomm::Code;
using hetcomm::Result;
using hetcomm::Status;
namespace capi = hetcomm::capi;
namespace topology = hetcomm::topology;

Result<std::string> write(const topology::HostView& view, int32_t format) {
  switch (format) {
    case HETCOMM_TOPOLOGY_TEXT:
      return topology::draw_text(view.machine, view.affinity);
    case HETCOMM_TOPOLOGY_JSON:
      return topology::to_json(view.machine, view.affinity);
    case HETCOMM_TOPOLOGY_SVG:
      return topology::draw_svg(view.machine, view.affinity);
    default:
      return Status(Code::kInvalidArgument, "format is none of HETCOMM_TOPOLOGY_*");
  }
}

}  // namespace

extern "C" {

hetcomm_status_t hetcomm_context_topology(hetcomm_context_t* context, int32_t format,
                                          size_t capacity, char* out_text,
                                          size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    Result<const topology::HostView*> view = context->impl->topology().view();
    if (!view.ok()) return view.status();
    const Result<std::string> text = write(*view.value(), format);
    if (!text.ok()) return text.status();
    return capi::write_text(text.value(), capacity, out_text, out_size);
  });
}

}  // extern "C"
