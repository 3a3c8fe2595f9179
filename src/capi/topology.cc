// Implements the C ABI of topologies (hetcomm/topology.h), and the old functions of link models
// (hetcomm/compat.h).
#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <hetcomm/compat.h>

#include "src/capi/guard.h"
#include "src/capi/link_model.h"
#include "src/capi/output.h"
#include "topology/links/link_inference.h"
#include "topology/links/link_model_draw.h"
#include "topology/links/link_model_json.h"
#include "topology/machine/affinity_json.h"
#include "topology/machine/draw.h"

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

// Refuses a document that is longer than 8 MiB, without reading past this limit.
Status check_length(const char* text) {
  if (strnlen(text, topology::kMaxLinkModelBytes + 1) <= topology::kMaxLinkModelBytes) return {};
  return {Code::kInvalidArgument, "the document is longer than 8 MiB"};
}

std::string_view text_or_empty(const char* text) { return text != nullptr ? text : ""; }

}  // namespace

namespace hetcomm::capi {

Result<std::string> write_link_model(const topology::LinkModel& model, int32_t format) {
  switch (format) {
    case HETCOMM_TOPOLOGY_TEXT:
      return topology::draw_text(model);
    case HETCOMM_TOPOLOGY_JSON:
      return topology::to_json(model);
    case HETCOMM_TOPOLOGY_SVG:
      return topology::draw_svg(model);
    default:
      return Status(Code::kInvalidArgument, "format is none of HETCOMM_TOPOLOGY_*");
  }
}

}  // namespace hetcomm::capi

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

hetcomm_status_t hetcomm_link_model_infer(const char* measurements, int32_t format, size_t capacity,
                                          char* out_text, size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    if (measurements == nullptr) return {Code::kInvalidArgument, "measurements is NULL"};
    HETCOMM_RETURN_IF_ERROR(check_length(measurements));
    const Result<topology::LinkMeasurements> measured =
        topology::parse_link_measurements(measurements);
    if (!measured.ok()) return measured.status().annotate("measurements");
    const Result<topology::LinkModel> model = topology::infer(measured.value());
    if (!model.ok()) return model.status().annotate("measurements");
    const Result<std::string> text = capi::write_link_model(model.value(), format);
    if (!text.ok()) return text.status();
    return capi::write_text(text.value(), capacity, out_text, out_size);
  });
}

hetcomm_status_t hetcomm_link_model_rates(const char* model, size_t count,
                                          const hetcomm_link_ends_t* transfers,
                                          uint64_t* out_bytes_per_s) noexcept {
  return capi::guard([&]() -> Status {
    constexpr size_t kMax = 65536;
    if (model == nullptr) return {Code::kInvalidArgument, "model is NULL"};
    if (count > kMax) return {Code::kInvalidArgument, "count is above 65536"};
    if (count > 0 && (transfers == nullptr || out_bytes_per_s == nullptr)) {
      return {Code::kInvalidArgument, "transfers or out_bytes_per_s is NULL"};
    }
    HETCOMM_RETURN_IF_ERROR(check_length(model));
    const Result<topology::LinkModel> links = topology::parse_link_model(model);
    if (!links.ok()) return links.status().annotate("model");
    std::vector<topology::Route> routes;
    for (const hetcomm_link_ends_t& ends : std::span(transfers, count)) {
      if (ends.from_host == nullptr || ends.to_host == nullptr) {
        return {Code::kInvalidArgument,
                "a host of transfers[" + std::to_string(routes.size()) + "] is NULL"};
      }
      Result<topology::Route> found =
          topology::route(links.value(), {ends.from_host, text_or_empty(ends.from_nic)},
                          {ends.to_host, text_or_empty(ends.to_nic)});
      if (!found.ok()) return found.status();
      routes.push_back(std::move(found).value());
    }
    const std::vector<uint64_t> rates = topology::rates(links.value(), routes);
    std::copy(rates.begin(), rates.end(), out_bytes_per_s);
    return {};
  });
}

}  // extern "C"
